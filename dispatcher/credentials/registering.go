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

// registering registers devices together whose first reports come together.
type registering = coalesce.Calls[struct{}, string, store.Device]

// registerLimit bounds a call: less than half of what a report has.
const registerLimit = 3 * time.Second

func newRegistering(ledger admissionLedger, panicked rescue.Told) *registering {
	ensure := func(ctx context.Context, _ struct{}, ids []string) ([]store.Device, error) {
		return ledger.EnsureDevices(ctx, ids...)
	}
	again := func(error) bool { return true } // a device that is registered stays as it is
	return &registering{Call: ensure, Alone: again, Lanes: 2, Most: 64, Limit: registerLimit, Panicked: panicked}
}

// owning notes together that devices have used tokens of their own.
type owning = coalesce.Calls[struct{}, string, struct{}]

func newOwning(ledger admissionLedger, panicked rescue.Told) *owning {
	mark := func(ctx context.Context, _ struct{}, ids []string) ([]struct{}, error) {
		return make([]struct{}, len(ids)), ledger.MarkOwnTokens(ctx, ids...)
	}
	again := func(error) bool { return true } // what is noted stays noted
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
