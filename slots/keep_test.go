package slots_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// TestAnOfferGivesNoSlotBeyondTheCapacity lowers the capacity from 3 to 2 while the device d3 has an offer. An offer is no grant, so d3
// must be refused. One of the held slots has a number above the capacity, but it counts: 2 slots are held, even though a slot with a number
// below the capacity is free.
func TestAnOfferGivesNoSlotBeyondTheCapacity(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 3, slots.LedgerGrant{Lease: "above", Device: "above", Slot: 7, Batch: 1, Remaining: time.Hour})
		s.requestAllWakeable(t, pool, 1, 2, 3)
		expectEqual(t, "offered", offeredTasks(s.releaseTask(t, pool, 2)), []int64{3})
		s.configure(t, pool, 2, 2)
		expectEqual(t, "2 held of 2", s.requestWakeable(t, pool, slots.Want{Batch: 1, Task: 3}).Status, slots.StatusFull)
		expectEqual(t, "holders", s.slotHolders(t, pool), map[int]string{0: "1", 7: "above"})
	})
}

// TestOwedPollersDoNotGoBeforeABatchThatHoldsLess checks a polling device of batch 2 that is owed a slot, because other devices were
// preferred to it. A freed slot must be kept for this device, but only after batch 1, which holds fewer slots, got one.
func TestOwedPollersDoNotGoBeforeABatchThatHoldsLess(t *testing.T) {
	t.Parallel()
	s := newRedisSemaphore(t)
	pool, now := s.restorePool(t, 3), time.UnixMilli(fleetStartMS)
	s.setClock(t, pool, now)
	ask := func(task, batch int64, reach slots.Reach) slots.Acquisition {
		t.Helper()
		r := newRequest("d"+strconv.FormatInt(task, 10), slots.Want{Lease: strconv.FormatInt(task, 10), TTL: time.Hour, Batch: batch, Task: task})
		r.Reach = reach
		got, _, err := s.Acquire(t.Context(), pool, queuePace, []slots.Request{r})
		must.Succeed(t, err)
		return got[0]
	}
	leave := func(task int64) []int64 {
		t.Helper()
		_, offers, err := s.Release(t.Context(), pool, queuePace, []string{strconv.FormatInt(task, 10)})
		must.Succeed(t, err)
		return offeredTasks(offers)
	}
	ask(1, 2, slots.ReachNone)
	ask(2, 2, slots.ReachNone)
	ask(10, 1, slots.ReachPush)
	told := ask(3, 2, slots.ReachNone)
	for task := int64(10); task < 20; task++ {
		ask(task+1, 1, slots.ReachPush)
		expectEqual(t, "passed over for", leave(task), []int64{task + 1})
		ask(task+1, 1, slots.ReachPush)
	}
	s.setClock(t, pool, now.Add(told.AskAfter))
	ask(3, 2, slots.ReachNone) // this device is owed a slot now, and is expected soon
	ask(21, 1, slots.ReachPush)
	expectEqual(t, "batch 2 holds 2, batch 1 none", leave(20), []int64{21})
	ask(21, 1, slots.ReachPush)
	ask(22, 1, slots.ReachPush)
	leave(1)
	expectEqual(t, "1 and 1: kept for the poller", len(leave(2)), 1)
	expectEqual(t, "when it comes", ask(3, 2, slots.ReachNone).Status, slots.StatusAcquired)
}
