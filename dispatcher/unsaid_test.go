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

// passInterval is the interval at which the program runs the pass `hand on` (see TestSlotsAreHandedOnTwiceASecond
// in internal/app).
const passInterval = 500 * time.Millisecond

// setOfferClock sets the clock that determines the end of offers to the time moment plus the duration after.
func (b *testBench) setOfferClock(moment time.Time, after time.Duration) {
	b.mini.SetTime(moment.Add(after))
}

// A replica dies after it released a slot and before it woke the next waiter, or it loses the reply to the release. Another replica must
// wake the waiter within a second, whenever its passes run.
func TestWhatWasLeftUnsaidIsSaidWithinASecond(t *testing.T) {
	t.Parallel()
	for _, first := range []time.Duration{time.Millisecond, passInterval / 2, passInterval - time.Millisecond, passInterval} {
		t.Run(fmt.Sprint("passes from ", first), func(t *testing.T) {
			t.Parallel()
			var config dispatcher.Config
			lossy, living := &lossySemaphore{}, &wakeRecorder{}
			b := newEmbeddedBench(t, withWaker(&wakeRecorder{}), func(c *dispatcher.Config) {
				config = *c
				lossy.Semaphore, c.Semaphore = c.Semaphore, lossy
			})
			config.Waker = living
			other := &testBench{Dispatcher: dispatcher.New(config), t: t, ctx: b.ctx, store: b.store, semaphore: b.semaphore, redis: b.redis}
			b.createPool("a", 1, minute)
			other.reconcile()
			b.registerDevices("first", "second")
			b.createBatch("a", nil, "first", "second")
			freed := time.Now()
			b.setOfferClock(freed, 0)
			held := b.expectSessionReason("first", devices.ReasonGranted)
			b.expectSessionReason("second", devices.ReasonFull)
			b.reportOverSession("first", resultReport(*held.Task, "succeeded", ""))
			if lossy.lostOffers.Load() != 1 {
				t.Fatalf("%d offers lost, want 1", lossy.lostOffers.Load())
			}
			for after := first; after <= first+passInterval; after += passInterval { // the replica runs two passes
				b.setOfferClock(freed, after)
				b.must(other.Waiters.Filler.FillAllPools(b.ctx))
			}
			b.must(other.Waiters.Stop(b.ctx))
			if got := living.wokenDevices(); !slices.Contains(got, "second") {
				t.Errorf("woken after two passes: %q", got)
			}
		})
	}
}

// losingBoard is a board of parked reports that loses all messages to other replicas.
type losingBoard struct{ waiters.Parking }

func (losingBoard) Wake(context.Context, []parked.WakeMessage) error { return nil }

// A report is parked at a replica that receives no messages from other replicas. It must get its slot within a second all the same: the
// passes of its own replica find the offer, whenever they run, and even if the passes of the other replica run first.
func TestALostWakeUpOfAParkedReportCostsASecond(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, first := range [][2]time.Duration{ // first pass of the replica that frees the slot, and of the replica with the parked report
		{ms, passInterval}, {passInterval, ms}, {passInterval, passInterval}, {passInterval / 2, passInterval - ms}, {passInterval - ms, passInterval / 2},
	} {
		t.Run(fmt.Sprint("passes from ", first), func(t *testing.T) {
			t.Parallel()
			b := newEmbeddedBench(t)
			replica := func() *dispatcher.Dispatcher {
				d := dispatcher.New(dispatcher.Config{
					Store: b.store, Semaphore: b.semaphore, Parking: losingBoard{parked.New(b.redis, b.redisDatabase)},
					FleetTokens: []string{"fleet-token-of-the-tests"}, Offer: minute,
				})
				t.Cleanup(func() { _ = d.Waiters.Stop(context.Background()) })
				return d
			}
			frees, deaf := replica(), replica()
			b.Dispatcher = frees
			b.createPool("a", 1, minute)
			b.reconcile()
			_, err := deaf.Upkeep.Reconcile(b.ctx)
			b.must(err)
			b.createBatch("a", nil, "first", "waits")
			freed := time.Now()
			b.setOfferClock(freed, 0)
			held := b.expectGrant("first")
			w := b.startReport(deaf, fleetCaller("waits"), `{}`, long)
			w.awaitParked()
			b.sendResult("first", held, "succeeded", "", devices.OutcomeRecorded)
			for after := time.Duration(0); after <= 2*passInterval; after += ms {
				for i, d := range []*dispatcher.Dispatcher{frees, deaf} {
					if after >= first[i] && (after-first[i])%passInterval == 0 {
						b.setOfferClock(freed, after)
						b.must(d.Waiters.Filler.FillAllPools(b.ctx))
					}
				}
			}
			if a := w.awaitAnswer(); a.Task == nil {
				t.Errorf("%+v, want a grant", a)
			}
		})
	}
}

// A device is woken for an offer but does not report, because its connection is gone or the wake-up was lost. This must cost one offer
// only. After that the device keeps its position, but must be offered nothing until it reports again.
func TestWhoMissesItsOfferIsToldNothingUntilItReports(t *testing.T) {
	t.Parallel()
	const kept = 3 * time.Second
	w := &wakeRecorder{}
	b := newEmbeddedBench(t, withWaker(w), func(c *dispatcher.Config) { c.Offer = kept })
	b.createPool("a", 1, minute)
	b.reconcile()
	b.registerDevices("first", "gone", "next", "last")
	b.createBatch("a", nil, "first", "gone", "next", "last")
	began := time.Now()
	b.setOfferClock(began, 0)
	held := b.expectSessionReason("first", devices.ReasonGranted)
	b.expectSessionReason("gone", devices.ReasonFull)
	b.expectSessionReason("next", devices.ReasonFull)
	b.reportOverSession("first", resultReport(*held.Task, "succeeded", ""))
	b.awaitWoken(w, "gone")
	b.setOfferClock(began, kept)
	b.must(b.Waiters.Filler.FillAllPools(b.ctx))
	b.awaitWoken(w, "gone", "next")

	held = b.expectSessionReason("next", devices.ReasonGranted)
	b.reportOverSession("next", resultReport(*held.Task, "succeeded", ""))
	_, due, err := b.semaphore.FindWaitingPools(b.ctx, []string{"a"})
	if offered, err2 := b.semaphore.PoolsWithOffer(b.ctx, []string{"a"}, "gone"); err != nil || err2 != nil || len(offered)+len(due) > 0 {
		t.Errorf("a slot is kept for a device that is gone: %v, due %v (%v, %v)", offered, due, err, err2)
	}
	held = b.expectSessionReason("last", devices.ReasonGranted) // no slot is kept for the device that is gone

	b.expectSessionReason("gone", devices.ReasonFull)
	b.reportOverSession("last", resultReport(*held.Task, "succeeded", ""))
	b.awaitWoken(w, "gone", "next", "gone")
	b.expectSessionReason("gone", devices.ReasonGranted)
}
