package dispatcher

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// Waker tells devices that are pushed to; *mqtt.Client.
type Waker interface {
	// Wake asks a device to report now: a slot is kept for it for hold; 0: there
	// is other news. It never blocks, and may be lost.
	Wake(device devices.ID, hold time.Duration)
}

// reachOf is how the device of a report can be told of a slot from now on.
func (d *Dispatcher) reachOf(h *handling) store.Reach {
	switch {
	case h.caller.Via == ViaBroker && d.config.Waker != nil:
		return store.ReachPush
	case h.park != nil:
		return store.ReachPark
	}
	return store.ReachNone
}

// wake tells a device that a slot is kept for it; began is when this handoff had its turn.
func (d *Dispatcher) wake(ctx context.Context, pool string, o placed, began time.Time) {
	now := d.now()
	d.refusals.forget(o.Device)
	d.config.Waker.Wake(devices.ID(o.Device), o.Left)
	if !o.since.IsZero() {
		d.metrics.handedOn(pool, now.Sub(o.since))
		steps := d.stepsOf(ctx, o.since)
		steps.done("called", began)
		steps.done("read", now)
		steps.say(d.config.Logger, pool, "push")
	}
}
