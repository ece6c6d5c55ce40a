package dispatcher_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// In the tests of this file, offers last for a minute and no pass runs. So an offer of a disconnected device can be withdrawn only because
// the departure of the device was noticed.

// The connection of a device's parked report breaks. No slot may stay reserved for this device. There are two cases: the slot becomes free
// after the connection broke, or it was offered to the device before.
func TestABrokenLongPollCostsNoHold(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(b *testBench, leaves *pendingReport, free func()){
		"before": func(_ *testBench, leaves *pendingReport, free func()) {
			leaves.disconnect()
			leaves.awaitAnswer()
			free()
		},
		"after": func(b *testBench, leaves *pendingReport, free func()) {
			free()
			b.awaitCondition("offer", func() bool {
				offered, err := b.semaphore.PoolsWithOffer(b.ctx, []string{"a"}, "leaves")
				return err == nil && len(offered) == 1
			})
			leaves.disconnect()
			leaves.awaitAnswer()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runOnServers(t, func(b *testBench) {
				b.Dispatcher = b.newParkingReplica(func(c *dispatcher.Config) {
					if name == "after" { // otherwise the offer would wake the report, which would get the slot before it disconnects
						c.Semaphore = &lossySemaphore{Semaphore: b.semaphore}
					}
				})
				b.createPool("a", 1, minute)
				b.createBatch("a", nil, "first", "leaves", "stays")
				held := b.expectGrant("first")
				leaves, stays := b.parkReport("leaves"), b.parkReport("stays")
				test(b, leaves, func() { b.sendResult("first", held, "succeeded", "", devices.OutcomeRecorded) })
				if a := stays.awaitAnswer(); a.Task == nil {
					b.t.Errorf("%+v, want the slot", a)
				}
				b.expectReason("leaves", `{}`, devices.ReasonFull)
			})
		})
	}
}

// The connection of a device's older report ends while the device has a newer report at another replica. The end of the older connection
// must not count as a departure, even if the replica of the older report does not know of the newer report.
func TestTheEndOfAnOlderLongPollIsNoNews(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		left, asked := &departureSemaphore{Semaphore: b.semaphore}, make(chan struct{}, 100)
		b.Dispatcher = b.newParkingReplica()
		deaf := dispatcher.New(dispatcher.Config{ // this replica receives no messages from other replicas
			Store: b.store, Semaphore: left, Parking: &hookedParking{Parking: parked.New(b.redis, b.redisDatabase), endedCalled: asked},
			FleetTokens: []string{"fleet-token-of-the-tests"},
		})
		b.createPool("a", 1, minute)
		b.createBatch("a", nil, "first", "moves", "behind")
		held := b.expectGrant("first")
		older := b.startReport(deaf, fleetCaller("moves"), `{"id":"older"}`, long)
		older.awaitParked()
		behind := b.parkReport("behind")
		newer := b.startReport(b.Dispatcher, fleetCaller("moves"), `{"id":"newer"}`, long)
		newer.awaitParked()
		older.disconnect()
		older.awaitAnswer()
		b.awaitEndedCall(asked)
		b.must(deaf.Waiters.Stop(b.ctx)) // after Stop it sends no further updates
		b.sendResult("first", held, "succeeded", "", devices.OutcomeRecorded)
		if a := newer.awaitAnswer(); a.Task == nil {
			b.t.Errorf("%+v, want the slot", a)
		}
		behind.expectStillParked()
		if left.departureCount() != 0 {
			b.t.Errorf("the line was told %d times that the device left", left.departureCount())
		}
	})
}

// departureSemaphore is a semaphore that counts the updates of the kind WaiterPassedOver. It calls beforeDeparture before it passes each of
// them on.
type departureSemaphore struct {
	dispatcher.Semaphore
	beforeDeparture func()

	mu         sync.Mutex
	departures int
}

func (s *departureSemaphore) configure(c *dispatcher.Config) { c.Semaphore = s }

func (s *departureSemaphore) departureCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.departures
}

func (s *departureSemaphore) OfferSlots(ctx context.Context, pool string, pace slots.Pace, updates []slots.Update) (slots.QueueState, error) {
	if slices.ContainsFunc(updates, func(n slots.Update) bool { return n.Kind == slots.WaiterPassedOver }) {
		s.mu.Lock()
		s.departures++
		s.mu.Unlock()
		if s.beforeDeparture != nil {
			s.beforeDeparture()
		}
	}
	return s.Semaphore.OfferSlots(ctx, pool, pace, updates)
}

// hookedParking lets a test observe and delay the calls that concern parked reports.
type hookedParking struct {
	waiters.Parking
	beforeNewest func()        // called before a report is announced
	endedCalled  chan struct{} // receives a value after each call of RecordClosedConnections; may be nil
}

func (h *hookedParking) RegisterNewestReport(ctx context.Context, device string, remembered time.Duration) (int64, bool, error) {
	if h.beforeNewest != nil {
		h.beforeNewest()
	}
	return h.Parking.RegisterNewestReport(ctx, device, remembered)
}

func (b *testBench) awaitEndedCall(endedCalled <-chan struct{}) {
	b.t.Helper()
	await.Receive(b.t, endedCalled, "nobody looked who had gone")
}

func (h *hookedParking) RecordClosedConnections(ctx context.Context, reports []parked.Report) ([]parked.Report, error) {
	gone, err := h.Parking.RecordClosedConnections(ctx, reports)
	if h.endedCalled != nil {
		h.endedCalled <- struct{}{}
	}
	return gone, err
}

// A device disconnects. While the queue is being informed of the departure, the device reports at another replica. It must stay reachable. There
// are two cases: either the new report is announced before the queue gets the update, or the device is already in the queue again and its report
// is announced after the update.
func TestADeviceThatComesBackWhileItsLineHearsThatItLeft(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"announced before", "announced after"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runOnServers(t, func(b *testBench) {
				asked, inLine, announce := make(chan struct{}, 100), make(chan struct{}), make(chan struct{})
				left := &departureSemaphore{Semaphore: b.semaphore}
				one := b.newParkingReplica(left.configure, func(c *dispatcher.Config) { c.Parking = &hookedParking{Parking: c.Parking, endedCalled: asked} })
				other := b.newParkingReplica(func(c *dispatcher.Config) {
					c.Parking = &hookedParking{Parking: c.Parking, beforeNewest: func() {
						close(inLine)
						<-announce
					}}
				})
				b.Dispatcher = one
				b.createPool("a", 1, minute)
				b.createBatch("a", nil, "first", "moves")
				held := b.expectGrant("first")
				older := b.parkReport("moves")
				var newer *pendingReport
				left.beforeDeparture = func() {
					newer = b.startReport(other, fleetCaller("moves"), `{"id":"newer"}`, long)
					<-inLine
					if name == "announced before" {
						close(announce)
						newer.awaitParked()
					}
				}
				older.disconnect()
				older.awaitAnswer()
				b.awaitEndedCall(asked) // the call of RecordClosedConnections before the update
				b.awaitEndedCall(asked) // the call of RecordClosedConnections after the update
				if name == "announced after" {
					close(announce)
				}
				newer.awaitParked()
				b.awaitCondition("way to tell it", func() bool {
					waiter, err := b.redis.HGet(b.ctx, "slots:{a}:waiter", "moves").Result()
					return err == nil && strings.Contains(waiter, `"class":"T"`)
				})
				b.sendResult("first", held, "succeeded", "", devices.OutcomeRecorded)
				if a := newer.awaitAnswer(); a.Task == nil {
					b.t.Errorf("%+v, want the slot", a)
				}
			})
		})
	}
}

// The connection of a parked report breaks. After that, the ledger must not list the device as reachable.
func TestWhoLeftIsNotFoundInTheLedger(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.Dispatcher = b.newParkingReplica()
		w := b.parkReport("leaves")
		reach := func() store.Reach {
			b.must(b.Seen.FlushReached(b.ctx))
			d, err := b.store.Device(b.ctx, "leaves")
			b.must(err)
			return d.Reach
		}
		if got := reach(); got != store.ReachPark {
			b.t.Fatalf("parked, and known to be told by %d", got)
		}
		w.disconnect()
		w.awaitAnswer()
		b.awaitCondition("ledger that knows", func() bool { return reach() == store.ReachNone })
	})
}
