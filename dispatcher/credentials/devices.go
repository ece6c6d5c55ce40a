package credentials

import (
	"cmp"
	"context"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// CreateDevice registers a device, and returns it with the secret of its new token. The secret is chosenToken, or random if chosenToken is
// empty. actor is recorded as the author. CreateDevice returns store.ErrExists, store.ErrUnknownProfile or ErrBroker.
func (r *Registry) CreateDevice(ctx context.Context, actor string, id devices.ID, spec store.DeviceSpec, chosenToken string) (created store.Device, token string, err error) {
	token = cmp.Or(chosenToken, NewToken())
	hash := HashToken(token)
	err = r.accounts.changeAccountSerially(ctx, id, token, func(set store.SetAccount) (err error) {
		created, err = r.config.Ledger.CreateDevice(ctx, actor, string(id), spec, hash[:], set)
		return err
	})
	return created, token, err
}

// RotateToken creates another token for a device and returns its secret. The secret is chosenToken, or random if chosenToken is empty. The
// older tokens stay valid for the duration overlap, until olderUntil. A broker that stores one password for each account accepts only the new
// token. RotateToken returns store.ErrNotFound or ErrBroker.
func (r *Registry) RotateToken(ctx context.Context, actor string, id devices.ID, overlap time.Duration, chosenToken string) (token string, olderUntil time.Time, err error) {
	token = cmp.Or(chosenToken, NewToken())
	hash := HashToken(token)
	err = r.accounts.changeAccountSerially(ctx, id, token, func(set store.SetAccount) (err error) {
		olderUntil, err = r.config.Ledger.RotateDeviceToken(ctx, actor, string(id), hash[:], overlap, set)
		return err
	})
	if err != nil || overlap > 0 {
		return token, olderUntil, err
	}
	r.dropDevice(id)
	if r.accounts.Accounts != nil {
		if err := r.accounts.Disconnect(ctx, id); err != nil {
			r.config.Logger.WarnContext(ctx, "session of a device with a revoked token not ended", "device", id, "err", err)
		}
	}
	return token, olderUntil, nil
}

// SetBlocked blocks or unblocks a device. A blocked device is asked to stop its task, and its session at the broker ends. reason is for
// people and may be empty. SetBlocked returns store.ErrNotFound if the device does not exist.
func (r *Registry) SetBlocked(ctx context.Context, actor string, id devices.ID, blocked bool, reason string) error {
	if err := r.config.Ledger.SetBlocked(ctx, actor, string(id), blocked, reason); err != nil {
		return err
	}
	r.tryToApplyAccountChanges(ctx)
	return nil
}

// SetAllBlocked blocks or unblocks devices as SetBlocked does, in one transaction, and returns how many it changed. If dryRun is true, it
// only counts them.
func (r *Registry) SetAllBlocked(ctx context.Context, actor string, deviceIDs []string, blocked bool, reason string, dryRun bool) (changedDevices int, err error) {
	changedDevices, err = r.config.Ledger.SetAllBlocked(ctx, actor, deviceIDs, blocked, reason, dryRun)
	if err == nil && changedDevices > 0 && !dryRun {
		r.tryToApplyAccountChanges(ctx)
	}
	return changedDevices, err
}

// DeleteDevice deletes a device and its tokens. If the device has open tasks, DeleteDevice cancels them if cancelOpenTasks is true, and
// returns store.ErrOpenTasks otherwise. A slot that the device holds stays held until its lease ends. DeleteDevice returns store.ErrNotFound
// if the device does not exist.
func (r *Registry) DeleteDevice(ctx context.Context, actor string, id devices.ID, cancelOpenTasks bool) (store.DeviceRemoval, error) {
	removed, err := r.config.Ledger.DeleteDevice(ctx, actor, string(id), cancelOpenTasks)
	if err != nil {
		return removed, err
	}
	r.dropDevice(id)
	r.tryToApplyAccountChanges(ctx)
	return removed, nil
}

// DeleteDevices deletes devices and their tokens. Other replicas may accept the tokens for at most five more seconds.
func (r *Registry) DeleteDevices(ctx context.Context, actor string, deviceIDs []string, options store.DeviceDeletion) (store.DeviceRemoval, error) {
	removed, err := r.config.Ledger.DeleteDevices(ctx, actor, deviceIDs, options)
	if err == nil && removed.Deleted > 0 {
		for _, id := range deviceIDs {
			r.dropDevice(devices.ID(id))
		}
		r.tryToApplyAccountChanges(ctx)
	}
	return removed, err
}

// tryToApplyAccountChanges applies at most changesPart recorded changes of accounts, and ignores errors. The next pass "accounts" applies the
// other changes and returns errors.
func (r *Registry) tryToApplyAccountChanges(ctx context.Context) {
	_, _ = r.accounts.applyRecordedChanges(ctx)
}
