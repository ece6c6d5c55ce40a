package slots_test

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// TestAPausedBatchLeavesNoSlotIdle checks two batches that share a pool when the batch with many waiters is paused. Its waiters stay in the
// queue until they report, but they must not keep slots from the other batch. The other batch must hold as many slots as it holds when it
// is alone.
func TestAPausedBatchLeavesNoSlotIdle(t *testing.T) {
	t.Parallel()
	const capacity, hold = 10, 10 * time.Second
	each, horizon := 10_000, 10*time.Minute // devices of each batch
	if testing.Short() {
		each, horizon = 700, 3*time.Minute
	}
	for name, reach := range map[string]slots.Reach{"pollers": slots.ReachNone, "notified": slots.ReachPush} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(pool string, pausedDevices int) float64 {
				f := newFleet(t, capacity, hold)
				f.pool += pool
				f.restore(t, f.pool, slots.Config{Capacity: capacity, Version: 1})
				f.addDevices(each, 2, reach, 0, 30*time.Second)
				paused := f.addDevices(pausedDevices, 1, reach, 0, 30*time.Second)
				f.runUntil(time.Minute, func() bool { return false })
				for _, m := range paused {
					m.paused = !m.done
				}
				f.updateQueue(slots.Update{Kind: slots.BatchLeft, Batch: 1})
				began := f.now
				f.runUntil(began+horizon, func() bool { return false })
				return f.meanHeld(began, horizon)
			}
			alone, held := run("alone", 0), run("both", each)
			t.Logf("%.2f of %d slots held, without the paused batch %.2f", held, capacity, alone)
			if held < 0.99*alone {
				t.Errorf("%.2f slots held, want at least 0.99 of %.2f", held, alone)
			}
		})
	}
}

// updateQueue sends one update of the queue with OfferSlots.
func (f *simulatedFleet) updateQueue(u slots.Update) {
	f.t.Helper()
	queue, err := f.OfferSlots(f.t.Context(), f.pool, f.pace, []slots.Update{u})
	must.Succeed(f.t, err)
	f.wakeOffered(queue.Offers)
}

// TestAPausedBatchIsOpenedByItsDevices checks a paused batch whose waiters are still in the queue. No offer may be made to these waiters,
// and their batch must not count. This must end when a device of the batch asks again, joins again or gets a slot, or when the batch is
// resumed.
func TestAPausedBatchIsOpenedByItsDevices(t *testing.T) {
	t.Parallel()
	for what, open := range map[string]func(t *testing.T, s *redisSemaphore, pool string) (held int64){
		"asks": func(t *testing.T, s *redisSemaphore, pool string) int64 {
			t.Helper()
			s.requestWakeable(t, pool, slots.Want{Batch: 2, Task: 400})
			return 2
		},
		"joins": func(t *testing.T, s *redisSemaphore, pool string) int64 {
			t.Helper()
			joiner := slots.Joiner{Device: "d300", Want: slots.Want{Batch: 2, Task: 300}, Reach: slots.ReachPush}
			_, err := s.Join(t.Context(), pool, offeringPace(), []slots.Joiner{joiner})
			must.Succeed(t, err)
			return 2
		},
		"may start again": func(t *testing.T, s *redisSemaphore, pool string) int64 {
			t.Helper()
			s.offerSlots(t, pool, slots.Update{Kind: slots.BatchOpened, Batch: 2})
			return 2
		},
		"gets a slot": func(t *testing.T, s *redisSemaphore, pool string) int64 {
			t.Helper()
			expectEqual(t, "offers to the paused batch", offeredTasks(s.releaseTask(t, pool, 2)), []int64(nil))
			s.requestWakeable(t, pool, slots.Want{Batch: 2, Task: 400})
			return 400
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
				t.Helper()
				pool, other := s.restorePool(t, 1), slots.Want{Batch: 1, Task: 2}
				s.requestWakeable(t, pool, slots.Want{Batch: 1, Task: 1})
				for task := range int64(201) {
					s.requestWakeable(t, pool, slots.Want{Batch: 2, Task: 100 + task})
				}
				s.offerSlots(t, pool, slots.Update{Kind: slots.BatchLeft, Batch: 2})
				expectEqual(t, "waiters of the paused batch", queueCounts(s.offerSlots(t, pool)), [4]int{1, 0, 1, 1})
				expectEqual(t, "position in the other batch", s.requestWakeable(t, pool, other).Position, 1)
				expectEqual(t, "offers beside the paused batch", offeredTasks(s.releaseTask(t, pool, 1)), []int64{2})
				s.requestWakeable(t, pool, other)
				expectEqual(t, "offers after a device "+what, offeredTasks(s.releaseTask(t, pool, open(t, s, pool))), []int64{300})
			})
		})
	}
}
