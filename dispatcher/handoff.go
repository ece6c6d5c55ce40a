package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/parked"
	"github.com/fleetslots/dispatcher/slots"
)

const (
	handoffLimit = 5 * time.Second // of one piece of handing on
	tellRounds   = 20              // of offers that take the place of others' in one piece
	leaveRounds  = 5               // of waiters that leave with their batch: 1,000 that poll, and as many that can be told

	// An offer of this age was made by an earlier call, of which the answer or the
	// replica was lost.
	toldLate = 100 * time.Millisecond
)

// telling is what devices of a pool, and then the semaphore, are to be told.
type telling struct {
	offers []placed
	news   []slots.News
}

// placed is an offer, and when its place became free by this process' clock; zero:
// it was not handed on, but found free.
type placed struct {
	slots.Offer
	since time.Time
}

func (t telling) and(more telling) telling {
	return telling{offers: append(t.offers, more.offers...), news: append(t.news, more.news...)}
}

// handOn tells waiters of the places that were offered to them, beside the
// caller. since is when the places became free; zero: nobody knows.
func (d *Dispatcher) handOn(pool string, offers []slots.Offer, since time.Time) {
	if len(offers) > 0 {
		d.relay(pool, telling{offers: d.place(offers, since)})
	}
}

// place notes since when the places of offers are free: of those that were
// offered before, the semaphore knows.
func (d *Dispatcher) place(offers []slots.Offer, since time.Time) []placed {
	now, all := d.now(), make([]placed, len(offers))
	for i, o := range offers {
		all[i] = placed{Offer: o, since: since}
		if made := now.Add(-o.Age); made.Before(since) || since.IsZero() && o.Age > toldLate {
			all[i].since = made
		}
	}
	return all
}

// relay does the telling beside the caller.
func (d *Dispatcher) relay(pool string, t telling) {
	if d.tellings.add(pool, t) {
		d.errands.start(func(ctx context.Context) { d.relayInTurn(ctx, pool) })
	}
}

func (d *Dispatcher) relayInTurn(ctx context.Context, pool string) {
	err := d.tellings.inTurn(pool, func(t telling) error { return d.relayNow(ctx, pool, t) })
	if d.panicked.Tell("handing on", err) != nil {
		d.log.WarnContext(ctx, "places are handed on by the next pass", "pool", pool, "err", err)
	}
}

// relayNow tells devices of their offers, and the semaphore what became of these.
// An offer that came to nothing goes to the next waiter in the same step.
func (d *Dispatcher) relayNow(ctx context.Context, pool string, t telling) error {
	ctx, cancel := context.WithTimeout(ctx, handoffLimit)
	defer cancel()
	var failed error
	for range tellRounds {
		told, err := d.tellDevices(ctx, pool, t.offers)
		failed = errors.Join(failed, err)
		news := append(t.news, told...)
		if len(news) == 0 {
			break
		}
		asked := d.now()
		line, err := d.semaphore.HandOn(ctx, pool, d.pace(pool), news)
		if err != nil {
			return errors.Join(failed, fmt.Errorf("telling the line of pool %s: %w", pool, err))
		}
		if len(line.Offers) == 0 {
			break
		}
		t = telling{offers: d.place(line.Offers, asked)}
	}
	return failed
}

// tellDevices tells those that can use their offer, and says of each offer that
// is settled so far what became of it.
func (d *Dispatcher) tellDevices(ctx context.Context, pool string, offers []placed) ([]slots.News, error) {
	var pushed, parked []placed
	for _, o := range offers {
		switch o.Reach {
		case slots.ReachPush:
			pushed = append(pushed, o)
		case slots.ReachPark:
			parked = append(parked, o)
		}
	}
	found, unheard := d.callParked(ctx, pool, parked)
	woken, failed := d.push(ctx, pool, pushed)
	return append(found, woken...), errors.Join(failed, unheard)
}

// callParked lets parked reports look again, which decide by themselves. Those that
// are not parked here may be at another replica: whether one of them has the
// report is not known, so the offer counts as not sent.
func (d *Dispatcher) callParked(ctx context.Context, pool string, offers []placed) (news []slots.News, err error) {
	if len(offers) == 0 {
		return nil, nil
	}
	calls, now := make([]parked.Call, len(offers)), d.now()
	for i, o := range offers {
		calls[i] = parked.Call{Device: o.Device, Pool: pool, Age: -1}
		if !o.since.IsZero() {
			calls[i].Age = now.Sub(o.since)
		}
	}
	others := d.parks.wake(calls)
	for i, o := range offers {
		if !slices.Contains(others, calls[i]) {
			news = append(news, slots.News{What: slots.OfferSent, Device: o.Device, Offer: o.ID})
		}
	}
	if len(others) > 0 && d.config.Parking != nil {
		err = d.config.Parking.Wake(ctx, others)
	}
	return news, err
}

// push wakes the devices that can start a task of the pool now. Being woken in
// vain is what they are spared, and the place the wait: so all are looked at in
// one reading of the ledger.
func (d *Dispatcher) push(ctx context.Context, pool string, offers []placed) ([]slots.News, error) {
	if len(offers) == 0 || d.config.Waker == nil {
		return nil, nil
	}
	began, devices := d.now(), make([]string, len(offers))
	for i, o := range offers {
		devices[i] = o.Device
	}
	views, err := d.store.Views(ctx, devices)
	if err != nil {
		return nil, fmt.Errorf("looking at the devices that are offered places: %w", err)
	}
	limited := d.limitedAmong(ctx, pool, views)
	news := make([]slots.News, len(offers))
	for i, o := range offers {
		news[i] = slots.News{What: useOf(views[i], pool, limited), Device: o.Device, Offer: o.ID}
		if news[i].What == slots.OfferSent {
			d.wake(ctx, pool, o, began)
		}
	}
	return news, nil
}

// LeaveLine lets the devices that wait with a task of a batch leave the line of
// its pool, beside the caller: nothing of it starts any more. Who is overlooked
// is found when it is offered a place.
func (d *Dispatcher) LeaveLine(pool string, batch int64) {
	d.relay(pool, telling{news: slices.Repeat([]slots.News{{What: slots.BatchLeft, Batch: batch}}, leaveRounds)})
}

// StopHandingOn finishes what is under way, and starts no more. What is left, the
// other replicas find.
func (d *Dispatcher) StopHandingOn(ctx context.Context) error {
	if err := d.errands.stop(ctx); err != nil {
		return fmt.Errorf("handing on: %w", err)
	}
	return nil
}
