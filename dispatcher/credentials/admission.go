package credentials

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// Admission is what a caller that may act for its device brings with it.
type Admission struct {
	Device     *store.Device // as it is registered now
	Credential string        // its new token; empty: it gets none
}

// Admit checks that the caller may act for the device, which was read as view, and
// registers a device that a fleet token vouches for. Nothing is changed for a caller it
// refuses: devices.ErrForbidden.
func (r *Registry) Admit(ctx context.Context, caller devices.Caller, view store.View) (Admission, error) {
	admitted := Admission{Device: view.Device}
	switch caller.Via {
	case devices.ViaLease: // who may lease is found out before: no device is registered
		return Admission{Device: &store.Device{ID: string(caller.Device)}}, nil
	case devices.ViaOwnToken:
		return admitted, r.admitOwner(ctx, caller.Device, view.Device)
	case devices.ViaSession:
		if err := r.admitSession(ctx, caller, view); err != nil {
			return admitted, err
		}
	default:
		if view.Device != nil && view.Device.OwnToken {
			return admitted, devices.ErrForbidden
		}
		if r.config.FleetMode == FleetEnroll {
			return r.enroll(ctx, caller.Device)
		}
	}
	if view.Device != nil {
		return admitted, nil
	}
	return r.register(ctx, caller.Device)
}

// AdmitStill says whether a caller that was admitted may go on: its device may have been
// deleted since, or its token revoked.
func (r *Registry) AdmitStill(ctx context.Context, caller devices.Caller, view store.View) (bool, error) {
	if caller.Via == devices.ViaLease {
		return r.leasesStill(ctx, caller)
	}
	if view.Device == nil {
		return false, nil
	}
	if caller.Via != devices.ViaOwnToken {
		return !view.Device.OwnToken, nil
	}
	switch err := r.bears(ctx, caller); {
	case errors.Is(err, devices.ErrUnauthenticated), errors.Is(err, devices.ErrForbidden):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("of a parked report: %w", err)
	}
	return true, nil
}

// leasesStill says whether the token of a caller is valid still. One inside this process has none.
func (r *Registry) leasesStill(ctx context.Context, caller devices.Caller) (bool, error) {
	if caller.Token == ([sha256.Size]byte{}) {
		return true, nil
	}
	_, err := r.known.find(ctx, caller.Token)
	if errors.Is(err, devices.ErrUnauthenticated) {
		return false, nil
	}
	return err == nil, err
}

// Admitted says whether this caller was the last that was admitted for its device, with
// nothing to note of that, and how the device could be told of a slot then. Somebody else
// must say whether the news are followed that let it be doubted.
func (r *Registry) Admitted(caller devices.Caller) (store.Reach, bool) {
	return r.known.admitted(caller)
}

// NoteAdmission remembers it for Admitted.
func (r *Registry) NoteAdmission(caller devices.Caller, reach store.Reach) {
	r.known.admit(caller, reach)
}

// Doubt lets the device be looked at before it is admitted again; empty: all are. Whatever
// changes who may act for a device is news of it.
func (r *Registry) Doubt(device string) { r.known.doubt(device) }

// admitSession checks a device that a broker let in.
func (r *Registry) admitSession(ctx context.Context, caller devices.Caller, view store.View) error {
	device := view.Device
	switch {
	case device == nil:
		if view.Deleted || len(r.config.FleetTokens) == 0 || r.config.FleetMode != FleetAny {
			return devices.ErrForbidden
		}
	case device.Blocked || device.Revoked():
		return devices.ErrForbidden
	case device.HasToken && !r.accounts.askLedger():
		return r.admitOwner(ctx, caller.Device, device)
	}
	return nil
}

// admitOwner notes the first use of a device's own token: from then on fleet
// tokens no longer act for it.
func (r *Registry) admitOwner(ctx context.Context, id devices.ID, device *store.Device) error {
	if device == nil { // deleted meanwhile
		return devices.ErrForbidden
	}
	if device.OwnToken {
		return nil
	}
	if _, err := r.owning.Do(ctx, struct{}{}, string(id)); err != nil {
		return fmt.Errorf("%w: noting the use of a token: %w", devices.ErrUnavailable, err)
	}
	return nil
}

// enroll gives the device a token of its own with this reply. Until it was
// used once a lost reply can be asked for again, and then replaces it.
func (r *Registry) enroll(ctx context.Context, id devices.ID) (Admission, error) {
	admitted, err := r.register(ctx, id)
	if err != nil {
		return admitted, err
	}
	token := NewToken()
	hash := HashToken(token)
	err = r.accounts.serially(ctx, id, token, func(set store.SetAccount) error {
		return r.config.Ledger.EnrollDevice(ctx, string(id), hash[:], set)
	})
	if errors.Is(err, store.ErrExists) { // it used one meanwhile
		return admitted, devices.ErrForbidden
	}
	if err != nil {
		return admitted, fmt.Errorf("%w: enrolling a device: %w", devices.ErrUnavailable, err)
	}
	admitted.Credential = token
	return admitted, nil
}
