package slots_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// TestNothingIsRefreshedInADamagedQueue checks reports after Redis lost the waiter or a key of the queue, or after its clock was set back.
// Refresh must not accept such a report. The device is then served, which repairs the queue.
func TestNothingIsRefreshedInADamagedQueue(t *testing.T) {
	t.Parallel()
	for what, damage := range map[string]func(t *testing.T, s *redisSemaphore, pool string, now time.Time) error{
		"a lost waiter": func(t *testing.T, s *redisSemaphore, pool string, _ time.Time) error {
			t.Helper()
			return s.client.HDel(t.Context(), slots.Keys(pool)[5], "d2").Err()
		},
		"lost batches": func(t *testing.T, s *redisSemaphore, pool string, _ time.Time) error {
			t.Helper()
			return s.client.Del(t.Context(), slots.Keys(pool)[7]).Err()
		},
		"a clock that was set back": func(t *testing.T, s *redisSemaphore, pool string, now time.Time) error {
			t.Helper()
			s.setClock(t, pool, now.Add(-2*time.Second))
			return nil
		},
		"a pool that Redis lost": func(t *testing.T, s *redisSemaphore, pool string, _ time.Time) error {
			t.Helper()
			return s.client.Del(t.Context(), slots.Keys(pool)...).Err()
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
				t.Helper()
				pool, now := s.restorePool(t, 1), time.UnixMilli(1_800_000_000_000)
				s.setClock(t, pool, now)
				for task := range int64(2) {
					s.requestForTask(t, pool, offeringPace(), slots.Want{Batch: 1, Task: task + 1})
				}
				expectRefreshed(t, s, pool, true)
				must.Succeed(t, damage(t, s, pool, now))
				expectRefreshed(t, s, pool, false)
			})
		})
	}
}

// expectRefreshed sends the report of the waiting device "d2" to Refresh. Refresh must accept the report if want is true, and must not
// accept it otherwise.
func expectRefreshed(t *testing.T, s *redisSemaphore, pool string, want bool) {
	t.Helper()
	after, err := s.Refresh(t.Context(), pool, offeringPace(), []slots.WaiterRefresh{{Device: "d2"}})
	if err != nil || (after[0] > 0) != want {
		t.Errorf("refreshed for %s, %v, want %v", after, err, want)
	}
}

// TestPollersAreRefreshedUntilTheyAreOwedASlot checks that a poller is refreshed until it counts as owed a slot. A poller is owed a slot if,
// after the grant that was foreseen for it, the pool has made as many grants as it has slots. Only the first three pollers that are owed a slot
// count.
func TestPollersAreRefreshedUntilTheyAreOwedASlot(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 1)
		w := newWaitersBehind(t, s, pool, slots.ReachNone, 5)
		expectEqual(t, "after one grant", w.refresh(t, "waiter-0"), 720*time.Second)
		w.grantOthers(t, 1)
		expectEqual(t, "when the foreseen grant was made", w.refresh(t, "waiter-0"), 720*time.Second)
		w.grantOthers(t, 5)
		for n := range 5 {
			expectEqual(t, "before the poller asks", w.refresh(t, fmt.Sprint("waiter-", n)), time.Duration(0))
			w.ask(t, n)
		}
		for n, want := range []time.Duration{0, 0, 0, 3 * 720 * time.Second, 4 * 720 * time.Second} {
			expectEqual(t, fmt.Sprint("owed, rank ", n), w.refresh(t, fmt.Sprint("waiter-", n)), want)
		}
	})
}

// TestNotifiableWaitersAreRefreshedUntilTheirOffer checks that a device that can be notified is refreshed until it has an offer. After the
// grant that was foreseen for it, the time of its next report must depend on its rank.
func TestNotifiableWaitersAreRefreshedUntilTheirOffer(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 1)
		w := newWaitersBehind(t, s, pool, slots.ReachPush, 2)
		expectEqual(t, "before its grant", w.refresh(t, "waiter-1"), 9*(2*80+360)*time.Second)
		w.grantOthers(t, 4)
		expectEqual(t, "after its grant", w.refresh(t, "waiter-1"), 9*(2*80+360)*time.Second)
		s.releaseTask(t, pool, w.held)
		expectEqual(t, "with an offer", w.refresh(t, "waiter-0"), time.Duration(0))
		expectEqual(t, "behind the device with the offer", w.refresh(t, "waiter-1"), 9*(80+360)*time.Second)
	})
}

// waitersBehind holds devices of one batch that wait in a pool with one slot. Other tasks of the batch have a higher priority.
type waitersBehind struct {
	*redisSemaphore

	pool  string
	reach slots.Reach
	held  int64 // task of the batch that holds the slot
}

// newWaitersBehind adds n devices with the names waiter-0, waiter-1 and so on to the queue of a pool.
func newWaitersBehind(t *testing.T, s *redisSemaphore, pool string, reach slots.Reach, n int) *waitersBehind {
	t.Helper()
	w := &waitersBehind{redisSemaphore: s, pool: pool, reach: reach, held: 1}
	s.requestWakeable(t, pool, slots.Want{Batch: 1, Task: w.held})
	for n := range n {
		w.ask(t, n)
	}
	return w
}

// ask sends a request of waiter n, which is refused.
func (w *waitersBehind) ask(t *testing.T, n int) {
	t.Helper()
	task := int64(100 + n)
	r := newRequest(fmt.Sprint("waiter-", n), slots.Want{Batch: 1, Task: task, Lease: fmt.Sprint(task), TTL: time.Hour})
	r.Reach = w.reach
	got, _, err := w.Acquire(t.Context(), w.pool, offeringPace(), []slots.Request{r})
	if err != nil || got[0].Status != slots.StatusFull {
		t.Fatal(got, err)
	}
}

// grantOthers grants the slot to n other tasks of the batch, one after the other.
func (w *waitersBehind) grantOthers(t *testing.T, n int) {
	t.Helper()
	for range n {
		next := slots.Want{Batch: 1, Task: w.held + 1, Priority: 1}
		w.requestWakeable(t, w.pool, next)
		w.releaseTask(t, w.pool, w.held)
		expectEqual(t, "a device before the waiters", w.requestWakeable(t, w.pool, next).Status, slots.StatusAcquired)
		w.held++
	}
}

// refresh sends the report of a device to Refresh.
func (w *waitersBehind) refresh(t *testing.T, device string) time.Duration {
	t.Helper()
	pace := offeringPace()
	pace.MinWait = time.Second
	after, err := w.Refresh(t.Context(), w.pool, pace, []slots.WaiterRefresh{{Device: device, Reach: w.reach}})
	must.Succeed(t, err)
	return after[0]
}

// TestWaitersOfAShrunkPoolAreRefreshed checks a pool after a decrease of its capacity: more slots than the capacity are held, and some
// slots with low numbers are free. Waiters must be refreshed as in any other full pool.
func TestWaitersOfAShrunkPoolAreRefreshed(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 3)
		for task := range int64(3) {
			s.requestForTask(t, pool, offeringPace(), slots.Want{Batch: 1, Task: task + 1})
		}
		s.requestForTask(t, pool, offeringPace(), slots.Want{Batch: 1, Task: 9})
		_, err := s.Configure(t.Context(), pool, slots.Config{Capacity: 1, Version: 2})
		must.Succeed(t, err)
		s.releaseTask(t, pool, 1)
		w := waitersBehind{redisSemaphore: s, pool: pool}
		if w.refresh(t, "d9") == 0 {
			t.Error("not refreshed")
		}
	})
}

// TestOwedPollersOfAPoolWithoutSlotsAreRefreshed checks pollers that are owed a slot of a pool whose capacity became 0, while the mean hold
// time is unknown. They must be refreshed and report again after a period.
func TestOwedPollersOfAPoolWithoutSlotsAreRefreshed(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool, pace := s.restorePool(t, 1), offeringPace()
		const pollers = 4 // one more than the number of pollers that count as owed a slot
		w := newWaitersBehind(t, s, pool, slots.ReachNone, pollers)
		w.grantOthers(t, pollers+1)
		for n := range pollers {
			w.ask(t, n)
		}
		s.configure(t, pool, 0, 2)
		s.offerSlots(t, pool)
		pace.MeanHold = 0
		for n := range pollers {
			after, err := s.Refresh(t.Context(), pool, pace, []slots.WaiterRefresh{{Device: fmt.Sprint("waiter-", n)}})
			must.Succeed(t, err)
			expectEqual(t, fmt.Sprint("rank ", n), after[0], pace.ReportPeriod)
		}
	})
}

// TestMostWaitersAreRefreshed checks a fleet whose devices report at the times that they got. Nearly all requests must be refreshed. The
// first request of each device and the requests that get a slot are not counted.
func TestMostWaitersAreRefreshed(t *testing.T) {
	t.Parallel()
	devices, horizon, least := 100_000, 10*time.Minute, 0.95
	if testing.Short() {
		devices, horizon, least = 8000, time.Minute, 0.9 // about ten requests a second are from pollers whose turn is next
	}
	for name, reach := range map[string]slots.Reach{"pollers": slots.ReachNone, "notified": slots.ReachPush} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 60, 30*time.Second)
			f.addDevices(devices, 1, reach, 0, 30*time.Second)
			f.runUntil(time.Minute, func() bool { return false })
			refused, refreshed := f.requestCount-f.grants, f.refreshCount
			f.runUntil(f.now+horizon, func() bool { return false })
			refused, refreshed = f.requestCount-f.grants-refused, f.refreshCount-refreshed
			t.Logf("%d of %d requests were refreshed (%.3f)", refreshed, refused, float64(refreshed)/float64(refused))
			if float64(refreshed) < least*float64(refused) {
				t.Errorf("%d of %d requests were refreshed, want %.2f", refreshed, refused, least)
			}
		})
	}
}
