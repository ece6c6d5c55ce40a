package credentials

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// CreateDevice registers a device and makes its token, which is shown once.
// store.ErrExists, store.ErrUnknownProfile; ErrBroker.
func (r *Registry) CreateDevice(ctx context.Context, actor string, id devices.ID, spec store.DeviceSpec) (created store.Device, token string, err error) {
	token = NewToken()
	hash := HashToken(token)
	err = r.accounts.serially(ctx, id, token, func(set store.SetAccount) (err error) {
		created, err = r.config.Ledger.CreateDevice(ctx, actor, string(id), spec, hash[:], set)
		return err
	})
	return created, token, err
}

// RotateToken makes one more token of a device. Older ones go on until the
// overlap is over, though not at a broker that has one password per account.
// store.ErrNotFound; ErrBroker.
func (r *Registry) RotateToken(ctx context.Context, actor string, id devices.ID, overlap time.Duration) (token string, olderUntil time.Time, err error) {
	token = NewToken()
	hash := HashToken(token)
	err = r.accounts.serially(ctx, id, token, func(set store.SetAccount) (err error) {
		olderUntil, err = r.config.Ledger.RotateDeviceToken(ctx, actor, string(id), hash[:], overlap, set)
		return err
	})
	if err != nil || overlap > 0 {
		return token, olderUntil, err
	}
	r.known.forget(id)
	if r.accounts.Accounts != nil {
		if err := r.accounts.Disconnect(ctx, id); err != nil {
			r.config.Logger.WarnContext(ctx, "session of a device with an older token not ended", "device", id, "err", err)
		}
	}
	return token, olderUntil, nil
}

// SetBlocked blocks or unblocks a device. A blocked one is asked to stop what it
// runs, and its session at the broker ends. store.ErrNotFound.
func (r *Registry) SetBlocked(ctx context.Context, actor string, id devices.ID, blocked bool) error {
	if err := r.config.Ledger.SetBlocked(ctx, actor, string(id), blocked); err != nil {
		return err
	}
	r.followSoon(ctx)
	return nil
}

// DeleteDevice forgets a device and its tokens, and cancels its open tasks; not
// to cancel them is store.ErrOpenTasks when there are any. A slot that it holds
// stays held until its lease ends. store.ErrNotFound.
func (r *Registry) DeleteDevice(ctx context.Context, actor string, id devices.ID, cancel bool) (store.Removal, error) {
	removed, err := r.config.Ledger.DeleteDevice(ctx, actor, string(id), cancel)
	if err != nil {
		return removed, err
	}
	r.known.forget(id)
	r.followSoon(ctx)
	return removed, nil
}

// followSoon spares a change the wait for the next pass. The pass does, and reports,
// what fails here.
func (r *Registry) followSoon(ctx context.Context) { _, _ = r.accounts.followPart(ctx) }
