package credentials

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// registering combines concurrent registrations of devices into one call to the ledger.
type registering = coalesce.Calls[struct{}, string, store.Device]

// registerLimit is the time limit of a call: less than half of the time limit of a report.
const registerLimit = 3 * time.Second

func newRegistering(ledger admissionLedger, panicked rescue.Told) *registering {
	ensure := func(ctx context.Context, _ struct{}, ids []string) ([]store.Device, error) {
		return ledger.EnsureDevices(ctx, ids...)
	}
	again := func(error) bool { return true } // registering a device again changes nothing
	return &registering{Call: ensure, Alone: again, Lanes: 2, Most: 64, Limit: registerLimit, Panicked: panicked}
}

// owning combines concurrent records of the use of own tokens into one call to the ledger.
type owning = coalesce.Calls[struct{}, string, struct{}]

func newOwning(ledger admissionLedger, panicked rescue.Told) *owning {
	mark := func(ctx context.Context, _ struct{}, ids []string) ([]struct{}, error) {
		return make([]struct{}, len(ids)), ledger.MarkOwnTokens(ctx, ids...)
	}
	again := func(error) bool { return true } // recording a use again changes nothing
	return &owning{Call: mark, Alone: again, Lanes: 1, Most: 256, Limit: registerLimit, Panicked: panicked}
}

func (r *Registry) register(ctx context.Context, id devices.ID) (Admission, error) {
	device, err := r.ensure(ctx, id)
	return Admission{Device: &device}, err
}

func (r *Registry) ensure(ctx context.Context, id devices.ID) (store.Device, error) {
	device, err := r.registering.Do(ctx, struct{}{}, string(id))
	if err != nil {
		return device, fmt.Errorf("%w: registering a device: %w", devices.ErrUnavailable, err)
	}
	return device, nil
}
