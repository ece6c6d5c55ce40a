package credentials

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// Admission is the result of Admit for a sender that may report for its device.
type Admission struct {
	Device     *store.Device // the device as it is now registered
	Credential string        // the new token of the device; empty if it gets none
}

// Admit checks that the caller may act for its device. view is the ledger's data of the device. If the device is unknown and the caller has a
// fleet token, Admit registers the device. If Admit refuses the caller, it returns devices.ErrForbidden or devices.ErrRegistrationRate and
// changes nothing.
func (r *Registry) Admit(ctx context.Context, caller devices.Caller, view store.DeviceView) (Admission, error) {
	admitted := Admission{Device: view.Device}
	switch caller.Via {
	case devices.ViaLease: // the holder of a lease is a program, not a registered device; its permission to lease was checked before
		return Admission{Device: &store.Device{ID: string(caller.Device)}}, nil
	case devices.ViaOwnToken:
		return admitted, r.admitByOwnToken(ctx, caller.Device, view.Device)
	case devices.ViaSession:
		if err := r.admitSession(ctx, caller, view); err != nil {
			return admitted, err
		}
	default:
		if view.Device != nil && view.Device.OwnToken {
			return admitted, devices.ErrForbidden
		}
		isBlocked := view.Device != nil && view.Device.Blocked
		if r.config.FleetMode == FleetEnroll && !isBlocked {
			return r.enrollDevice(ctx, caller)
		}
	}
	if view.Device != nil {
		return admitted, nil
	}
	return r.registerDevice(ctx, caller)
}

// IsStillAdmitted reports whether the caller of a parked report may still act for its device. view must have been read after the admission,
// because the device may have been deleted, or its token revoked, in the meantime. The caller is never a session, because reports of a session
// are not parked.
func (r *Registry) IsStillAdmitted(ctx context.Context, caller devices.Caller, view store.DeviceView) (bool, error) {
	if caller.Via == devices.ViaLease {
		return r.isTokenValid(ctx, caller)
	}
	if view.Device == nil {
		return false, nil
	}
	if caller.Via != devices.ViaOwnToken {
		return !view.Device.OwnToken, nil
	}
	switch err := r.checkToken(ctx, caller); {
	case errors.Is(err, devices.ErrUnauthenticated), errors.Is(err, devices.ErrForbidden):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("checking the token of a parked report: %w", err)
	}
	return true, nil
}

// isTokenValid reports whether the token of a caller is still valid. A caller inside this process has no token and is always valid.
func (r *Registry) isTokenValid(ctx context.Context, caller devices.Caller) (bool, error) {
	if caller.Token == ([sha256.Size]byte{}) {
		return true, nil
	}
	_, err := r.findToken(ctx, caller.Token)
	if errors.Is(err, devices.ErrUnauthenticated) {
		return false, nil
	}
	return err == nil, err
}

func (r *Registry) admitSession(ctx context.Context, caller devices.Caller, view store.DeviceView) error {
	device := view.Device
	switch {
	case device == nil:
		if view.Deleted || len(r.config.FleetTokens) == 0 || r.config.FleetMode != FleetAny {
			return devices.ErrForbidden
		}
	case device.Blocked || device.Revoked():
		return devices.ErrForbidden
	case device.HasToken && !r.accounts.brokerAsksLedger():
		return r.admitByOwnToken(ctx, caller.Device, device)
	}
	return nil
}

// admitByOwnToken records the first use of the device's own token. After that, no fleet token can act for the device. device is nil if the
// device is not registered.
func (r *Registry) admitByOwnToken(ctx context.Context, deviceID devices.ID, device *store.Device) error {
	if device == nil { // the device was deleted after its authentication
		return devices.ErrForbidden
	}
	if device.OwnToken {
		return nil
	}
	if _, err := r.firstTokenUses.Do(ctx, struct{}{}, string(deviceID)); err != nil {
		return fmt.Errorf("%w: recording the use of a token: %w", devices.ErrUnavailable, err)
	}
	return nil
}

// enrollDevice returns a new token for the caller's device. A device that has not used a token of its own can enroll again, for example after a
// lost reply. Each call counts as a registration, because it changes an account at the broker. A blocked device gets no token.
func (r *Registry) enrollDevice(ctx context.Context, caller devices.Caller) (Admission, error) {
	device := caller.Device
	admitted, err := r.registerDevice(ctx, caller)
	if err != nil || admitted.Device.Blocked {
		return admitted, err
	}
	token := NewToken()
	hash := HashToken(token)
	err = r.accounts.changeAccountSerially(ctx, device, token, func(set store.SetAccount) error {
		return r.config.Ledger.EnrollDevice(ctx, string(device), hash[:], set)
	})
	if errors.Is(err, store.ErrExists) { // the device has just used a token of its own
		return admitted, devices.ErrForbidden
	}
	if err != nil {
		return admitted, fmt.Errorf("%w: enrolling a device: %w", devices.ErrUnavailable, err)
	}
	admitted.Credential = token
	return admitted, nil
}
