package waiters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const (
	handoffLimit = 5 * time.Second // of one piece of handing on
	tellRounds   = 20              // of offers that follow on others in one piece
	leaveRounds  = 5               // of waiters that leave with their batch: 1,000 that poll, and as many that can be told

	// An offer of this age was made by an earlier call, of which the answer or the
	// replica was lost.
	toldLate = 100 * time.Millisecond
)

// offering is what devices of a pool, and then the semaphore, are to be told.
type offering struct {
	offers  []timed
	updates []slots.Update
}

// timed is an offer, and when its slot became free by this process' clock; zero:
// it was not handed on, but found free.
type timed struct {
	slots.Offer
	since time.Time
}

func (t offering) and(more offering) offering {
	return offering{offers: append(t.offers, more.offers...), updates: append(t.updates, more.updates...)}
}

// Offer tells waiters of the slots that were offered to them, beside the
// caller. since is when the slots became free; zero: nobody knows.
func (n *Notifier) Offer(pool string, offers []slots.Offer, since time.Time) {
	if len(offers) > 0 {
		n.offer(pool, offering{offers: n.since(offers, since)})
	}
}

// since notes since when the slots of offers are free: of those that were
// offered before, the semaphore knows.
func (n *Notifier) since(offers []slots.Offer, since time.Time) []timed {
	now, all := n.config.Now(), make([]timed, len(offers))
	for i, o := range offers {
		all[i] = timed{Offer: o, since: since}
		if made := now.Add(-o.Age); made.Before(since) || since.IsZero() && o.Age > toldLate {
			all[i].since = made
		}
	}
	return all
}

// offer does so beside the caller.
func (n *Notifier) offer(pool string, t offering) {
	if n.offers.add(pool, t) {
		n.background.start(func(ctx context.Context) { n.runOffers(ctx, pool) })
	}
}

func (n *Notifier) runOffers(ctx context.Context, pool string) {
	err := n.offers.run(pool, func(t offering) error { return n.offerNow(ctx, pool, t) })
	if n.config.Panicked.Tell("handing on", err) != nil {
		n.config.Logger.WarnContext(ctx, "slots are handed on by the next pass", "pool", pool, "err", err)
	}
}

// offerNow tells devices of their offers, and the semaphore what became of these.
// An offer that came to nothing goes to the next waiter in the same step.
func (n *Notifier) offerNow(ctx context.Context, pool string, t offering) error {
	ctx, cancel := context.WithTimeout(ctx, handoffLimit)
	defer cancel()
	var failed error
	for range tellRounds {
		told, err := n.tellDevices(ctx, pool, t.offers)
		failed = errors.Join(failed, err)
		updates := append(t.updates, told...)
		if len(updates) == 0 {
			break
		}
		asked := n.config.Now()
		queue, err := n.config.Semaphore.OfferSlots(ctx, pool, n.Pace(pool), updates)
		if err != nil {
			return errors.Join(failed, fmt.Errorf("telling the queue of pool %s: %w", pool, err))
		}
		if len(queue.Offers) == 0 {
			break
		}
		t = offering{offers: n.since(queue.Offers, asked)}
	}
	return failed
}

// tellDevices tells those that can use their offer, and says of each offer that
// is settled so far what became of it.
func (n *Notifier) tellDevices(ctx context.Context, pool string, offers []timed) ([]slots.Update, error) {
	var pushed, parked []timed
	for _, o := range offers {
		switch o.Reach {
		case slots.ReachPush:
			pushed = append(pushed, o)
		case slots.ReachPark:
			parked = append(parked, o)
		}
	}
	found, unheard := n.callParked(ctx, pool, parked)
	woken, failed := n.push(ctx, pool, pushed)
	return append(found, woken...), errors.Join(failed, unheard)
}

// callParked lets parked reports look again, which decide by themselves. Those that
// are not parked here may be at another replica: whether one of them has the
// report is not known, so the offer counts as not sent.
func (n *Notifier) callParked(ctx context.Context, pool string, offers []timed) (updates []slots.Update, err error) {
	if len(offers) == 0 {
		return nil, nil
	}
	calls, now := make([]parked.Call, len(offers)), n.config.Now()
	for i, o := range offers {
		calls[i] = parked.Call{Device: o.Device, Pool: pool}
		if !o.since.IsZero() {
			calls[i].Age = max(now.Sub(o.since), 1)
		}
	}
	others := n.Parks.wake(calls)
	for i, o := range offers {
		if !slices.Contains(others, calls[i]) {
			updates = append(updates, slots.Update{Kind: slots.OfferSent, Device: o.Device, Offer: o.ID})
		}
	}
	if len(others) > 0 && n.config.Parking != nil {
		err = n.config.Parking.Wake(ctx, others)
	}
	return updates, err
}

// push wakes the devices that can start a task of the pool now. Being woken in
// vain is what they are spared, and the slot the wait: so all are looked at in
// one reading of the ledger.
func (n *Notifier) push(ctx context.Context, pool string, offers []timed) ([]slots.Update, error) {
	if len(offers) == 0 || n.config.Waker == nil {
		return nil, nil
	}
	began, devices := n.config.Now(), make([]string, len(offers))
	for i, o := range offers {
		devices[i] = o.Device
	}
	views, err := n.config.Ledger.Views(ctx, devices)
	if err != nil {
		return nil, fmt.Errorf("looking at the devices that are offered slots: %w", err)
	}
	limited := n.config.Policies.Among(ctx, pool, views)
	updates := make([]slots.Update, len(offers))
	for i, o := range offers {
		updates[i] = slots.Update{Kind: useOf(views[i], pool, limited), Device: o.Device, Offer: o.ID}
		if updates[i].Kind == slots.OfferSent {
			n.wake(ctx, pool, o, began)
		}
	}
	return updates, nil
}

// useOf says what is to become of an offer: sent to its device, which could
// start a task of the pool; passed on, while the device keeps its turn because
// it is only busy; or passed on, and the device out of the queue. limited is what
// policies say of its tasks.
func useOf(view store.View, pool string, limited map[int64]decision.Obstacle) slots.UpdateKind {
	view.Candidates = slices.DeleteFunc(slices.Clone(view.Candidates), func(c store.Candidate) bool { return c.Pool != pool })
	choice := decision.Decide(decision.Foreseen(view, limited))
	switch {
	case view.Device == nil:
		return slots.WaiterLeft
	case choice.Reason == devices.ReasonGranted:
		return slots.OfferSent
	case decision.WaitingOf(choice.Reason).Queueing == decision.Away:
		return slots.WaiterAway
	}
	return slots.WaiterLeft
}

// wake tells a device that a slot is kept for it; began is when this handoff was begun.
func (n *Notifier) wake(ctx context.Context, pool string, o timed, began time.Time) {
	now := n.config.Now()
	n.config.Waker.Wake(devices.ID(o.Device), o.Left)
	if !o.since.IsZero() {
		n.HandedOn(pool, now.Sub(o.since))
		steps := n.StepsOf(ctx, o.since)
		steps.Done("called", began)
		steps.Done("read", now)
		steps.Say(n.config.Debug, pool, "push")
	}
}

// LeaveQueue lets the devices that wait with a task of a batch leave the queue of
// its pool, beside the caller: nothing of it starts any more. A device that is overlooked
// is found when it is offered a slot.
func (n *Notifier) LeaveQueue(pool string, batch int64) {
	n.offer(pool, offering{updates: slices.Repeat([]slots.Update{{Kind: slots.BatchLeft, Batch: batch}}, leaveRounds)})
}
