package dispatcher

import (
	"context"
	"slices"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// useOf says what is to become of an offer: sent to its device, which could
// start a task of the pool; passed on, while the device keeps its place because
// it is only busy; or passed on, and the device out of the line. limited is what
// policies say of its tasks.
func useOf(view store.View, pool string, limited map[int64]decision.Obstacle) slots.What {
	s := decision.Situation{Now: view.Now, Standstill: view.Standstill, Limited: limited}
	switch {
	case view.Device == nil || view.Device.Blocked:
		return slots.WaiterLeft
	case view.Grant != nil:
		return slots.WaiterAway
	}
	for _, c := range view.Candidates {
		if c.Pool == pool && s.MayStart(c) {
			return slots.OfferSent
		}
	}
	return slots.WaiterLeft
}

// findOffers notes in which pools a place is kept for the device of a report, if
// it has work in several: that is where it starts. With one pool it starts there
// anyway, and what was parked knows.
func (d *Dispatcher) findOffers(ctx context.Context, h *handling) {
	if d.reachOf(h) == store.ReachNone || len(h.offered) > 0 || len(h.pools()) < 2 {
		return
	}
	offered, err := d.semaphore.Offered(ctx, d.lines.amongWaiting(h.pools()), string(h.caller.Device))
	if err != nil {
		d.log.WarnContext(ctx, "decided without knowing where a place is kept", "err", err)
		return
	}
	h.offered = offered
}

// giveBack lets others have the slots that were offered to a device which starts
// nothing there. A device that is limited gives them back also if it polls: nobody waits
// for it meanwhile, and it comes back to the same turn, since the order does not go by
// who came first.
func (d *Dispatcher) giveBack(h *handling) {
	d.leaveLines(h, d.lines.amongWaiting(h.shut))
	if d.reachOf(h) == store.ReachNone {
		return
	}
	if started := h.reply.Task; started != nil {
		elsewhere := slices.DeleteFunc(slices.Clone(h.offered), func(pool string) bool { return pool == started.Pool })
		d.tellLines(h, slots.WaiterAway, elsewhere)
		return
	}
	switch decision.RefusalOf(h.reply.Reason).Queueing {
	case decision.Queues:
	case decision.Returns:
		d.tellLines(h, slots.WaiterAway, h.offered)
	case decision.Away:
		d.tellLines(h, slots.WaiterAway, d.lines.amongWaiting(h.pools()))
	case decision.Leaves:
		d.leaveLines(h, h.offered)
		d.leaveLines(h, d.lines.amongWaiting(h.pools()))
	}
}

func (d *Dispatcher) leaveLines(h *handling, pools []string) {
	d.tellLines(h, slots.WaiterLeft, pools)
}

// tellLines tells the lines of pools what became of a device, whatever it was
// offered there.
func (d *Dispatcher) tellLines(h *handling, what slots.What, pools []string) {
	for _, pool := range pools {
		d.relay(pool, telling{news: []slots.News{{What: what, Device: string(h.caller.Device)}}})
	}
}

// pools are those in which the device has open work, each once.
func (h *handling) pools() []string { return poolsOf(h.view.Candidates) }

func poolsOf(open []store.Candidate) (pools []string) {
	seen := make(map[string]bool)
	for _, c := range open {
		if !seen[c.Pool] {
			seen[c.Pool] = true
			pools = append(pools, c.Pool)
		}
	}
	return pools
}
