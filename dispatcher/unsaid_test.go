package dispatcher_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
)

// passEvery is the interval of the pass `hand on` in the application (see TestSlotsAreHandedOnTwiceASecond
// there).
const passEvery = 500 * time.Millisecond

// at sets the clock of offers to a time after moment.
func (b *bench) at(moment time.Time, after time.Duration) { b.mini.SetTime(moment.Add(after)) }

// If a replica dies between the release of a slot and the wake-up, or loses the reply to the release, another
// replica wakes the waiter within a second, whenever its passes run.
func TestWhatWasLeftUnsaidIsSaidWithinASecond(t *testing.T) {
	t.Parallel()
	for _, first := range []time.Duration{time.Millisecond, passEvery / 2, passEvery - time.Millisecond, passEvery} {
		t.Run(fmt.Sprint("passes from ", first), func(t *testing.T) {
			t.Parallel()
			var config dispatcher.Config
			lossy, living := &lossySemaphore{}, &wakes{}
			b := embedded(t, pushing(&wakes{}), func(c *dispatcher.Config) {
				config = *c
				lossy.Semaphore, c.Semaphore = c.Semaphore, lossy
			})
			config.Waker = living
			other := &bench{Dispatcher: dispatcher.New(config), t: t, ctx: b.ctx, store: b.store, semaphore: b.semaphore, redis: b.redis}
			b.pool("a", 1, minute)
			other.reconcile()
			b.registered("first", "second")
			b.batch("a", nil, "first", "second")
			freed := time.Now()
			b.at(freed, 0)
			held := b.expectPushed("first", devices.ReasonGranted)
			b.expectPushed("second", devices.ReasonFull)
			b.pushed("first", result(*held.Task, "succeeded", ""))
			if lossy.lost.Load() != 1 {
				t.Fatalf("%d offers lost, want 1", lossy.lost.Load())
			}
			for after := first; after <= first+passEvery; after += passEvery { // runs two passes
				b.at(freed, after)
				b.must(other.Waiters.Filler.FillAll(b.ctx))
			}
			b.must(other.Waiters.Stop(b.ctx))
			if got := living.woken(); !slices.Contains(got, "second") {
				t.Errorf("woken after two passes: %q", got)
			}
		})
	}
}

// silentBoard loses the messages to other replicas.
type silentBoard struct{ waiters.Parking }

func (silentBoard) Wake(context.Context, []parked.Call) error { return nil }

// A report that is parked at a replica that receives no messages also gets its slot within a second. The
// passes of its own replica find the offer, whenever they run, and even if the passes of the other replica
// run first.
func TestALostWakeUpOfAParkedReportCostsASecond(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, first := range [][2]time.Duration{ // first pass of the replica that frees the slot, and of the replica with the parked report
		{ms, passEvery}, {passEvery, ms}, {passEvery, passEvery}, {passEvery / 2, passEvery - ms}, {passEvery - ms, passEvery / 2},
	} {
		t.Run(fmt.Sprint("passes from ", first), func(t *testing.T) {
			t.Parallel()
			b := embedded(t)
			replica := func() *dispatcher.Dispatcher {
				d := dispatcher.New(dispatcher.Config{
					Store: b.store, Semaphore: b.semaphore, Parking: silentBoard{parked.New(b.redis, b.database)},
					FleetTokens: []string{"fleet-token-of-the-tests"}, Offer: minute,
				})
				t.Cleanup(func() { _ = d.Waiters.Stop(context.Background()) })
				return d
			}
			frees, deaf := replica(), replica()
			b.Dispatcher = frees
			b.pool("a", 1, minute)
			b.reconcile()
			_, err := deaf.Upkeep.Reconcile(b.ctx)
			b.must(err)
			b.batch("a", nil, "first", "waits")
			freed := time.Now()
			b.at(freed, 0)
			held := b.granted("first")
			w := b.wait(deaf, fleetCaller("waits"), `{}`, long)
			w.isParked()
			b.ended("first", held, "succeeded", "", devices.OutcomeRecorded)
			for after := time.Duration(0); after <= 2*passEvery; after += ms {
				for i, d := range []*dispatcher.Dispatcher{frees, deaf} {
					if after >= first[i] && (after-first[i])%passEvery == 0 {
						b.at(freed, after)
						b.must(d.Waiters.Filler.FillAll(b.ctx))
					}
				}
			}
			if a := w.answered(); a.Task == nil {
				t.Errorf("%+v, want a grant", a)
			}
		})
	}
}

// If a device is woken without a result, because its connection is gone or the wake-up was lost, it costs one
// offer. After that it keeps its position, but is offered nothing until it reports again.
func TestWhoMissesItsOfferIsToldNothingUntilItReports(t *testing.T) {
	t.Parallel()
	const kept = 3 * time.Second
	w := &wakes{}
	b := embedded(t, pushing(w), func(c *dispatcher.Config) { c.Offer = kept })
	b.pool("a", 1, minute)
	b.reconcile()
	b.registered("first", "gone", "next", "last")
	b.batch("a", nil, "first", "gone", "next", "last")
	began := time.Now()
	b.at(began, 0)
	held := b.expectPushed("first", devices.ReasonGranted)
	b.expectPushed("gone", devices.ReasonFull)
	b.expectPushed("next", devices.ReasonFull)
	b.pushed("first", result(*held.Task, "succeeded", ""))
	b.eventuallyWoken(w, "gone")
	b.at(began, kept)
	b.must(b.Waiters.Filler.FillAll(b.ctx))
	b.eventuallyWoken(w, "gone", "next")

	held = b.expectPushed("next", devices.ReasonGranted)
	b.pushed("next", result(*held.Task, "succeeded", ""))
	_, due, err := b.semaphore.Queues(b.ctx, []string{"a"})
	if offered, err2 := b.semaphore.Offered(b.ctx, []string{"a"}, "gone"); err != nil || err2 != nil || len(offered)+len(due) > 0 {
		t.Errorf("a slot is kept for a device that is gone: %v, due %v (%v, %v)", offered, due, err, err2)
	}
	held = b.expectPushed("last", devices.ReasonGranted) // no slot is kept for the device that is gone

	b.expectPushed("gone", devices.ReasonFull)
	b.pushed("last", result(*held.Task, "succeeded", ""))
	b.eventuallyWoken(w, "gone", "next", "gone")
	b.expectPushed("gone", devices.ReasonGranted)
}
