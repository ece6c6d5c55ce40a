package credentials

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// combinedRegistrations combines concurrent registrations of devices into one call to the ledger.
type combinedRegistrations = coalesce.Calls[struct{}, store.Registration, store.Registered]

// registerLimit is the time limit of one call to the ledger. It is less than half of the time limit of a report.
const registerLimit = 3 * time.Second

func newCombinedRegistrations(ledger tokenLedger, onPanic rescue.PanicHandler) *combinedRegistrations {
	ensure := func(ctx context.Context, _ struct{}, all []store.Registration) ([]store.Registered, error) {
		return ledger.RegisterDevices(ctx, all...)
	}
	again := func(error) bool { return true } // registering a device again changes nothing
	return &combinedRegistrations{Call: ensure, MayRetryAlone: again, MaxConcurrent: 2, MaxSize: 64, Timeout: registerLimit, OnPanic: onPanic}
}

// combinedFirstUses records the first use of devices' own tokens. It combines concurrent calls into one call to the ledger.
type combinedFirstUses = coalesce.Calls[struct{}, string, struct{}]

func newCombinedFirstUses(ledger tokenLedger, onPanic rescue.PanicHandler) *combinedFirstUses {
	mark := func(ctx context.Context, _ struct{}, ids []string) ([]struct{}, error) {
		return make([]struct{}, len(ids)), ledger.MarkOwnTokens(ctx, ids...)
	}
	again := func(error) bool { return true } // recording a use again changes nothing
	return &combinedFirstUses{Call: mark, MayRetryAlone: again, MaxConcurrent: 1, MaxSize: 256, Timeout: registerLimit, OnPanic: onPanic}
}

// registerDevice registers the caller's device, if necessary, and admits the caller. It returns devices.ErrForbidden if the caller is a session and
// the device is blocked.
func (r *Registry) registerDevice(ctx context.Context, caller devices.Caller) (Admission, error) {
	device, err := r.ensureDevice(ctx, caller)
	if err == nil && device.Blocked && caller.Via == devices.ViaSession {
		err = devices.ErrForbidden
	}
	return Admission{Device: &device}, err
}

// ensureDevice returns the caller's device, and registers it if necessary. It returns devices.ErrRegistrationRate if the registrant has
// recently registered too many devices, and devices.ErrForbidden if an operator has refused the id of the device.
func (r *Registry) ensureDevice(ctx context.Context, caller devices.Caller) (store.Device, error) {
	registrant := registrantOf(caller)
	if err := r.registrations.reserveRegistration(registrant); err != nil {
		return store.Device{}, err
	}
	registration := store.Registration{Device: string(caller.Device), Registrant: registrant, Blocked: r.config.BlockNew}
	if caller.From.IsValid() {
		registration.Detail = "from=" + caller.From.String()
	}
	if registration.Blocked {
		registration.Detail = strings.TrimSpace(registration.Detail + " blocked=true")
	}
	registered, err := r.combinedRegistrations.Do(ctx, struct{}{}, registration)
	if err != nil {
		return registered.Device, fmt.Errorf("%w: registering a device: %w", devices.ErrUnavailable, err)
	}
	if registered.ID == "" {
		return registered.Device, devices.ErrForbidden
	}
	if registered.IsNew {
		r.registrations.countRegistration(registrant)
	}
	return registered.Device, nil
}
