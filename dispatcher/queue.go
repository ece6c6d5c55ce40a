package dispatcher

import (
	"context"
	"slices"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// reachOf is how the device of a report can be told of a slot from now on.
func (h *handling) reachOf() store.Reach {
	switch {
	case h.caller.Via == devices.ViaSession && h.d.config.Waker != nil:
		return store.ReachPush
	case h.park != nil:
		return store.ReachPark
	}
	return store.ReachNone
}

// findOffers notes in which pools a slot is offered to the device of a report, if
// it has work in several: that is where it starts. With one pool it starts there
// anyway, and what was parked knows.
func (h *handling) findOffers(ctx context.Context) {
	if h.reachOf() == store.ReachNone || len(h.tried.offered) > 0 || len(h.pools()) < 2 {
		return
	}
	offered, err := h.d.Waiters.Offers.FindPools(ctx, h.pools(), string(h.caller.Device))
	if err != nil {
		h.d.log.WarnContext(ctx, "decided without knowing where a slot is offered", "err", err)
		return
	}
	h.tried.offered = offered
}

// giveBack lets others have the slots that were offered to a device which starts
// nothing there. A device that is limited gives them back also if it polls: nobody waits
// for it meanwhile, and it comes back to the same turn, since the order does not go by
// who came first.
func (h *handling) giveBack() {
	tell := func(what slots.UpdateKind, pools []string) {
		h.d.Waiters.Offers.Update(string(h.caller.Device), what, pools)
	}
	waiting := h.d.Waiters.Pools.AmongWaiting
	tell(slots.WaiterLeft, waiting(h.tried.shut))
	if h.reachOf() == store.ReachNone {
		return
	}
	if started := h.reply.Task; started != nil {
		tell(slots.WaiterAway, slices.DeleteFunc(slices.Clone(h.tried.offered), func(pool string) bool { return pool == started.Pool }))
		return
	}
	switch decision.WaitingOf(h.reply.Reason).Queueing {
	case decision.Keeps: // where it found no slot, it stands in the queue and has no offer
		tell(slots.WaiterAway, slices.DeleteFunc(slices.Clone(h.tried.offered), func(pool string) bool { return h.tried.full[pool] }))
	case decision.Away:
		tell(slots.WaiterAway, waiting(h.pools()))
	case decision.Leaves:
		tell(slots.WaiterLeft, h.tried.offered)
		tell(slots.WaiterLeft, waiting(h.pools()))
	}
}

// pools are those in which the device has open work, each once.
func (h *handling) pools() []string { return decision.PoolsOf(h.view.Candidates) }
