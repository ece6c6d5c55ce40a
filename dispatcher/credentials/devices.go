package credentials

import (
	"cmp"
	"context"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// CreateDevice registers a device with this id and the settings in spec. It returns the stored device and the secret of its new token,
// which cannot be read again. chosen is the secret that the operator chose; if it is empty, a random one is made. actor is recorded as the
// author of the change. CreateDevice returns store.ErrExists, store.ErrUnknownProfile or ErrBroker.
func (r *Registry) CreateDevice(ctx context.Context, actor string, id devices.ID, spec store.DeviceSpec, chosen string) (created store.Device, token string, err error) {
	token = cmp.Or(chosen, NewToken())
	hash := HashToken(token)
	err = r.accounts.runSerially(ctx, id, token, func(set store.SetAccount) (err error) {
		created, err = r.config.Ledger.CreateDevice(ctx, actor, string(id), spec, hash[:], set)
		return err
	})
	return created, token, err
}

// RotateToken creates another token for a device and returns its secret: chosen, or a random one if chosen is empty. The older tokens stay valid for the duration overlap, until
// olderUntil. A broker that stores one password for each account refuses them at once. RotateToken returns store.ErrNotFound or ErrBroker.
func (r *Registry) RotateToken(ctx context.Context, actor string, id devices.ID, overlap time.Duration, chosen string) (token string, olderUntil time.Time, err error) {
	token = cmp.Or(chosen, NewToken())
	hash := HashToken(token)
	err = r.accounts.runSerially(ctx, id, token, func(set store.SetAccount) (err error) {
		olderUntil, err = r.config.Ledger.RotateDeviceToken(ctx, actor, string(id), hash[:], overlap, set)
		return err
	})
	if err != nil || overlap > 0 {
		return token, olderUntil, err
	}
	r.cache.dropDevice(id)
	if r.accounts.Accounts != nil {
		if err := r.accounts.Disconnect(ctx, id); err != nil {
			r.config.Logger.WarnContext(ctx, "session of a device with a revoked token not ended", "device", id, "err", err)
		}
	}
	return token, olderUntil, nil
}

// SetBlocked blocks or unblocks a device. A blocked device is asked to stop its task, and its session at the
// broker ends. reason is shown to people; it may be empty. SetBlocked returns store.ErrNotFound if the device does not exist.
func (r *Registry) SetBlocked(ctx context.Context, actor string, id devices.ID, blocked bool, reason string) error {
	if err := r.config.Ledger.SetBlocked(ctx, actor, string(id), blocked, reason); err != nil {
		return err
	}
	r.tryAccountChanges(ctx)
	return nil
}

// SetAllBlocked blocks or unblocks the devices ids as SetBlocked does, in one transaction. It returns how many devices it changed. If dryRun
// is true, it only counts them.
func (r *Registry) SetAllBlocked(ctx context.Context, actor string, ids []string, blocked bool, reason string, dryRun bool) (changed int, err error) {
	changed, err = r.config.Ledger.SetAllBlocked(ctx, actor, ids, blocked, reason, dryRun)
	if err == nil && changed > 0 && !dryRun {
		r.tryAccountChanges(ctx)
	}
	return changed, err
}

// DeleteDevice deletes a device and its tokens. If cancelOpenTasks is true, it also cancels the open tasks of the device. If
// cancelOpenTasks is false and there are open tasks, it returns store.ErrOpenTasks. A slot that the device holds stays held until its
// lease ends. DeleteDevice returns store.ErrNotFound if the device does not exist.
func (r *Registry) DeleteDevice(ctx context.Context, actor string, id devices.ID, cancelOpenTasks bool) (store.DeviceRemoval, error) {
	removed, err := r.config.Ledger.DeleteDevice(ctx, actor, string(id), cancelOpenTasks)
	if err != nil {
		return removed, err
	}
	r.cache.dropDevice(id)
	r.tryAccountChanges(ctx)
	return removed, nil
}

// DeleteDevices deletes devices and their tokens as options say. Other replicas may accept the tokens for five seconds more.
func (r *Registry) DeleteDevices(ctx context.Context, actor string, ids []string, options store.DeviceDeletion) (store.DeviceRemoval, error) {
	removed, err := r.config.Ledger.DeleteDevices(ctx, actor, ids, options)
	if err == nil && removed.Deleted > 0 {
		for _, id := range ids {
			r.cache.dropDevice(devices.ID(id))
		}
		r.tryAccountChanges(ctx)
	}
	return removed, err
}

// tryAccountChanges applies at most changesPart recorded changes of accounts immediately. It ignores errors: the
// next pass calls ApplyAccountChanges, which applies the remaining changes and returns the error.
func (r *Registry) tryAccountChanges(ctx context.Context) { _, _ = r.accounts.applyChanges(ctx) }
