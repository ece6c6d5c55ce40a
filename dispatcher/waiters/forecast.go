package waiters

import (
	"context"
	"fmt"
	"slices"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// forecast predicts whether devices could start a task of a pool if they reported now.
type forecast struct {
	ledger   Ledger
	policies Policies
}

// predictOutcomes predicts for each device the outcome of an offer of a slot of the pool (see predictOutcome).
func (f *forecast) predictOutcomes(ctx context.Context, pool string, devices []string) ([]slots.UpdateKind, error) {
	views, err := f.ledger.DeviceViews(ctx, devices)
	if err != nil {
		return nil, fmt.Errorf("reading devices for pool %s: %w", pool, err)
	}
	obstacles, kinds := f.policies.LimitedTasks(ctx, pool, views), make([]slots.UpdateKind, len(views))
	for i, view := range views {
		kinds[i] = predictOutcome(view, pool, obstacles)
	}
	return kinds, nil
}

// predictOutcome returns OfferSent if the view's device could start a task of pool now. It returns WaiterPassedOver if the device is only busy,
// and WaiterLeft if the device should leave the queue. obstaclesByTask holds the obstacles that policies found, by task id.
func predictOutcome(view store.DeviceView, pool string, obstaclesByTask map[int64]decision.Obstacle) slots.UpdateKind {
	view.Candidates = slices.DeleteFunc(slices.Clone(view.Candidates), func(c store.Candidate) bool { return c.Pool != pool })
	choice := decision.Decide(decision.ExpectedSituation(view, obstaclesByTask))
	switch {
	case view.Device == nil:
		return slots.WaiterLeft
	case choice.Reason == devices.ReasonGranted:
		return slots.OfferSent
	case decision.WaitRuleFor(choice.Reason).Queueing == decision.PassedOver:
		return slots.WaiterPassedOver
	}
	return slots.WaiterLeft
}

// removeLimitedDevices returns the joiners whose tasks no policy refuses. A refused joiner must not get ahead of devices that can start. If the
// latest pass found no policies in the pool, removeLimitedDevices returns all joiners. If a newer policy refuses a device, the device gives its
// offer back.
func (f *forecast) removeLimitedDevices(ctx context.Context, pool string, joiners []slots.Joiner) (unlimited []slots.Joiner, err error) {
	if !f.policies.HasPolicies(pool) || len(joiners) == 0 {
		return joiners, nil
	}
	names := make([]string, len(joiners))
	for i, joiner := range joiners {
		names[i] = joiner.Device
	}
	kinds, err := f.predictOutcomes(ctx, pool, names)
	for i, kind := range kinds {
		if kind != slots.WaiterLeft {
			unlimited = append(unlimited, joiners[i])
		}
	}
	return unlimited, err
}
