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
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// In these tests offers last for a minute and no pass runs. So an offer for a device that disconnected is
// withdrawn because of the departure, or not at all.

// No slot is kept for a device whose connection broke. This holds for a slot that becomes free afterwards,
// and for a slot that was offered to the device before.
func TestABrokenLongPollCostsNoHold(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(b *bench, leaves *waiting, free func()){
		"before": func(_ *bench, leaves *waiting, free func()) {
			leaves.leave()
			leaves.answered()
			free()
		},
		"after": func(b *bench, leaves *waiting, free func()) {
			free()
			b.eventually("offer", func() bool {
				offered, err := b.semaphore.Offered(b.ctx, []string{"a"}, "leaves")
				return err == nil && len(offered) == 1
			})
			leaves.leave()
			leaves.answered()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forServers(t, func(b *bench) {
				b.Dispatcher = b.parking(func(c *dispatcher.Config) {
					if name == "after" { // otherwise the offer would wake the report, which would get the slot before it disconnects
						c.Semaphore = &lossySemaphore{Semaphore: b.semaphore}
					}
				})
				b.pool("a", 1, minute)
				b.batch("a", nil, "first", "leaves", "stays")
				held := b.granted("first")
				leaves, stays := b.parks("leaves"), b.parks("stays")
				test(b, leaves, func() { b.ended("first", held, "succeeded", "", devices.OutcomeRecorded) })
				if a := stays.answered(); a.Task == nil {
					b.t.Errorf("%+v, want the slot", a)
				}
				b.expectReason("leaves", `{}`, devices.ReasonFull)
			})
		})
	}
}

// The end of an older connection does not count as a departure if the device has a newer report at another
// replica, even if the replica of the older report does not know of the newer one.
func TestTheEndOfAnOlderLongPollIsNoNews(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		left, asked := &departing{Semaphore: b.semaphore}, make(chan struct{}, 100)
		b.Dispatcher = b.parking()
		deaf := dispatcher.New(dispatcher.Config{ // this replica receives no messages from other replicas
			Store: b.store, Semaphore: left, Parking: &hooked{Parking: parked.New(b.redis, b.database), asked: asked},
			FleetTokens: []string{"fleet-token-of-the-tests"},
		})
		b.pool("a", 1, minute)
		b.batch("a", nil, "first", "moves", "behind")
		held := b.granted("first")
		older := b.wait(deaf, fleetCaller("moves"), `{"id":"older"}`, long)
		older.isParked()
		behind := b.parks("behind")
		newer := b.wait(b.Dispatcher, fleetCaller("moves"), `{"id":"newer"}`, long)
		newer.isParked()
		older.leave()
		older.answered()
		b.isAsked(asked)
		b.must(deaf.Waiters.Stop(b.ctx)) // after Stop it sends no further updates
		b.ended("first", held, "succeeded", "", devices.OutcomeRecorded)
		if a := newer.answered(); a.Task == nil {
			b.t.Errorf("%+v, want the slot", a)
		}
		behind.stillParked()
		if left.told() != 0 {
			b.t.Errorf("the line was told %d times that the device left", left.told())
		}
	})
}

// departing counts the updates that a waiter is away, and calls before ahead of each.
type departing struct {
	dispatcher.Semaphore
	before func()

	mu   sync.Mutex
	away int
}

func (s *departing) watch(c *dispatcher.Config) { c.Semaphore = s }

func (s *departing) told() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

func (s *departing) OfferSlots(ctx context.Context, pool string, pace slots.Pace, updates []slots.Update) (slots.QueueState, error) {
	if slices.ContainsFunc(updates, func(n slots.Update) bool { return n.Kind == slots.WaiterAway }) {
		s.mu.Lock()
		s.away++
		s.mu.Unlock()
		if s.before != nil {
			s.before()
		}
	}
	return s.Semaphore.OfferSlots(ctx, pool, pace, updates)
}

// hooked lets a test observe and delay the calls about parked reports.
type hooked struct {
	waiters.Parking
	before func()        // called before a report is announced
	asked  chan struct{} // receives a value after each call of Gone; may be nil
}

func (h *hooked) Newest(ctx context.Context, device string, remembered time.Duration) (int64, bool, error) {
	if h.before != nil {
		h.before()
	}
	return h.Parking.Newest(ctx, device, remembered)
}

func (b *bench) isAsked(asked <-chan struct{}) {
	b.t.Helper()
	select {
	case <-asked:
	case <-time.After(patience):
		b.t.Fatal("nobody looked who had gone")
	}
}

func (h *hooked) Gone(ctx context.Context, reports []parked.Report) ([]parked.Report, error) {
	gone, err := h.Parking.Gone(ctx, reports)
	if h.asked != nil {
		h.asked <- struct{}{}
	}
	return gone, err
}

// A device stays reachable if it reports at another replica while the queue is informed of its departure. Two
// cases are checked: the new report is announced before that update, or after it while its device was already
// in the queue.
func TestADeviceThatComesBackWhileItsLineHearsThatItLeft(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"announced before", "announced after"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forServers(t, func(b *bench) {
				asked, inLine, announce := make(chan struct{}, 100), make(chan struct{}), make(chan struct{})
				left := &departing{Semaphore: b.semaphore}
				one := b.parking(left.watch, func(c *dispatcher.Config) { c.Parking = &hooked{Parking: c.Parking, asked: asked} })
				other := b.parking(func(c *dispatcher.Config) {
					c.Parking = &hooked{Parking: c.Parking, before: func() {
						close(inLine)
						<-announce
					}}
				})
				b.Dispatcher = one
				b.pool("a", 1, minute)
				b.batch("a", nil, "first", "moves")
				held := b.granted("first")
				older := b.parks("moves")
				var newer *waiting
				left.before = func() {
					newer = b.wait(other, fleetCaller("moves"), `{"id":"newer"}`, long)
					<-inLine
					if name == "announced before" {
						close(announce)
						newer.isParked()
					}
				}
				older.leave()
				older.answered()
				b.isAsked(asked) // the call of Gone before the update
				b.isAsked(asked) // the call of Gone after the update
				if name == "announced after" {
					close(announce)
				}
				newer.isParked()
				b.eventually("way to tell it", func() bool {
					waiter, err := b.redis.HGet(b.ctx, "slots:{a}:waiter", "moves").Result()
					return err == nil && strings.Contains(waiter, `"class":"T"`)
				})
				b.ended("first", held, "succeeded", "", devices.OutcomeRecorded)
				if a := newer.answered(); a.Task == nil {
					b.t.Errorf("%+v, want the slot", a)
				}
			})
		})
	}
}

// The ledger does not list a device as reachable after the connection of its parked report broke.
func TestWhoLeftIsNotFoundInTheLedger(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.Dispatcher = b.parking()
		w := b.parks("leaves")
		reach := func() store.Reach {
			b.must(b.Seen.FlushReached(b.ctx))
			d, err := b.store.Device(b.ctx, "leaves")
			b.must(err)
			return d.Reach
		}
		if got := reach(); got != store.ReachPark {
			b.t.Fatalf("parked, and known to be told by %d", got)
		}
		w.leave()
		w.answered()
		b.eventually("ledger that knows", func() bool { return reach() == store.ReachNone })
	})
}
