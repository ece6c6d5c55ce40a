package slots_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// urgentWant returns a task of an urgent batch that asks for a slot. The share of the urgent batches is 10 % of the pool.
func urgentWant(batch, task int64) slots.Want {
	return slots.Want{Batch: batch, Task: task, LanePercent: 10}
}

func (s *redisSemaphore) readLane(t *testing.T, pool string) slots.UrgentLane {
	t.Helper()
	places, err := s.ReadQueuePlaces(t.Context(), pool, "nobody", []slots.Want{{Batch: 99, Task: 99}})
	must.Succeed(t, err)
	return places.Lane
}

// TestTheLaneGoesFirstWithinItsShare checks that free slots are offered to devices with urgent tasks first, before a batch of any weight,
// until the urgent batches hold their share of the pool. After that, these devices must wait by weight until an urgent task ends.
func TestTheLaneGoesFirstWithinItsShare(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 20)
		for task := int64(1); task <= 60; task++ {
			s.requestWakeable(t, pool, slots.Want{Batch: 1, Weight: 1000, Task: task})
		}
		for task := int64(101); task <= 105; task++ {
			s.requestWakeable(t, pool, urgentWant(2+task%2, task))
		}
		expectEqual(t, "the lane of a full pool", s.readLane(t, pool), slots.UrgentLane{Room: 2, Waiting: 5})
		var got []int64
		for task := int64(1); task <= 4; task++ {
			got = append(got, offeredTasks(s.releaseTask(t, pool, task))...)
		}
		expectEqual(t, "offered", got, []int64{102, 101, 21, 22})
		expectEqual(t, "the lane that is offered its share", s.readLane(t, pool), slots.UrgentLane{Held: 2, Waiting: 5})
		for _, task := range []int64{101, 102} {
			expectEqual(t, "an urgent one asks", s.requestWakeable(t, pool, urgentWant(2+task%2, task)).Status, slots.StatusAcquired)
		}
		expectEqual(t, "the lane that holds its share", s.readLane(t, pool), slots.UrgentLane{Held: 2, Waiting: 3})
		expectEqual(t, "a slot of another batch", offeredTasks(s.releaseTask(t, pool, 5)), []int64{23})
		expectEqual(t, "a slot of the lane", offeredTasks(s.releaseTask(t, pool, 102)), []int64{104})
	})
}

// TestTheLaneTakesNothingAway checks that an urgent task takes no slot away from its holder, nor from the device that has an offer for the
// slot.
func TestTheLaneTakesNothingAway(t *testing.T) {
	t.Parallel()
	s := newRedisSemaphore(t)
	pool := s.restorePool(t, 1)
	s.requestAllWakeable(t, pool, 1)
	expectEqual(t, "urgent, full", s.requestWakeable(t, pool, urgentWant(2, 2)).Status, slots.StatusFull)
	offers := s.releaseTask(t, pool, 1)
	expectEqual(t, "offered", offeredTasks(offers), []int64{2})
	expectEqual(t, "more urgent still", s.requestWakeable(t, pool, urgentWant(3, 3)).Status, slots.StatusFull)
	s.confirmOffer(t, pool, offers[0])
	expectEqual(t, "whose it is", s.requestWakeable(t, pool, urgentWant(2, 2)).Status, slots.StatusAcquired)
}

// TestAnOfferServesAnUrgentTask checks a device that has an offer for one task and then asks for a slot with an urgent task. It must get
// the offered slot for the urgent task.
func TestAnOfferServesAnUrgentTask(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 1)
		s.requestAllWakeable(t, pool, 1, 2)
		s.confirmOffer(t, pool, s.releaseTask(t, pool, 1)[0])
		both := []slots.Want{{Batch: 1, Task: 2, Lease: "2", TTL: time.Hour}, urgentWant(2, 7)}
		both[1].Lease, both[1].TTL = "7", time.Hour
		got, _, err := s.Acquire(t.Context(), pool, offeringPace(), []slots.Request{newRequest("d2", both...)})
		if err != nil || got[0].Status != slots.StatusAcquired || got[0].WantIndex != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// TestAWaiterJoinsWithItsUrgentTask checks a device that waits in the queue with a task and then joins with an urgent task. From then on it
// must wait with the urgent task, unless it has an offer.
func TestAWaiterJoinsWithItsUrgentTask(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 1)
		s.requestAllWakeable(t, pool, 1, 2, 3, 4)
		join := func(device string, batch int64, lane int) {
			joiner := slots.Joiner{Device: device, Want: slots.Want{Batch: batch, Task: 70, LanePercent: lane}, Reach: slots.ReachPush}
			_, err := s.Join(t.Context(), pool, offeringPace(), []slots.Joiner{joiner})
			must.Succeed(t, err)
		}
		join("d3", 5, 0)
		join("d4", 6, 10)
		expectEqual(t, "the lane", s.readLane(t, pool), slots.UrgentLane{Room: 1, Waiting: 1})
		offers := s.releaseTask(t, pool, 1)
		if len(offers) != 1 || offers[0].Device != "d4" || offers[0].Task != 70 {
			t.Fatalf("offers %+v", offers)
		}
		join("d4", 7, 10)
		if again := s.readSnapshot(t, pool).Reserved; len(again) != 1 || again[0].ID != offers[0].ID {
			t.Errorf("an offer that another joining ended: %+v", again)
		}
	})
}

// TestAnUrgentPollerComesSoon checks a polling device with an urgent task. It must be asked to ask again soon, however many devices wait. A
// slot that becomes free just before its next request must be kept for it.
func TestAnUrgentPollerComesSoon(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool, now := s.restorePool(t, 20), time.UnixMilli(1_800_000_000_000)
		s.setClock(t, pool, now)
		pace := slots.Pace{MeanHold: 100 * time.Second, MinWait: time.Second, ReportPeriod: time.Minute, OfferTTL: 3 * time.Second}
		for task := int64(1); task <= 300; task++ {
			s.requestForTask(t, pool, pace, slots.Want{Batch: 1, Weight: 1000, Task: task})
		}
		for try := range 30 { // the poller is asked back soon each time
			got := s.requestForTask(t, pool, pace, urgentWant(2, 999))
			if got.Status != slots.StatusFull || got.Position != 1 || got.AskAfter > 2*time.Second {
				t.Fatalf("ask %d: %+v", try, got)
			}
			now = now.Add(got.AskAfter - time.Second/2)
			s.setClock(t, pool, now)
		}
		if freed, _, err := s.Release(t.Context(), pool, pace, []string{"1"}); err != nil || !freed[0] {
			t.Fatal(freed, err)
		}
		expectEqual(t, "another one meanwhile", s.requestForTask(t, pool, pace, slots.Want{Batch: 3, Weight: 1000, Task: 998}).Status, slots.StatusFull)
		expectEqual(t, "the urgent one", s.requestForTask(t, pool, pace, urgentWant(2, 999)).Status, slots.StatusAcquired)
	})
}

// TestPositionsCountTheLane checks the position of a task that waits by weight. The position must also count the urgent tasks that come
// before this task.
func TestPositionsCountTheLane(t *testing.T) {
	t.Parallel()
	s := newRedisSemaphore(t)
	pool := s.restorePool(t, 20)
	for task := int64(1); task <= 30; task++ {
		s.requestWakeable(t, pool, slots.Want{Batch: 1, Task: task})
	}
	expectEqual(t, "before", s.requestForTask(t, pool, offeringPace(), slots.Want{Batch: 1, Task: 25}).Position, 5)
	for task := int64(101); task <= 105; task++ {
		s.requestWakeable(t, pool, urgentWant(2, task))
	}
	expectEqual(t, "the second by weight, behind two that go first", s.readPosition(t, pool, slots.Want{Batch: 1, Task: 21}), 2+2)
	expectEqual(t, "the first of the lane", s.readPosition(t, pool, slots.Want{Batch: 2, Task: 101, LanePercent: 10}), 1)
	expectEqual(t, "the second", s.readPosition(t, pool, slots.Want{Batch: 2, Task: 102, LanePercent: 10}), 2)
}

func (s *redisSemaphore) readPosition(t *testing.T, pool string, w slots.Want) int {
	t.Helper()
	places, err := s.ReadQueuePlaces(t.Context(), pool, fmt.Sprintf("d%d", w.Task), []slots.Want{w})
	must.Succeed(t, err)
	return places.Positions[0]
}

// TestALaneThatChangesIsCounted checks a batch that becomes urgent, and later normal again. The numbers of held slots and of waiters of
// urgent batches must always be right, also after Redis lost the queue.
func TestALaneThatChangesIsCounted(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 20)
		tasks := func(lane int, from, to int64) {
			for task := from; task <= to; task++ {
				s.requestWakeable(t, pool, slots.Want{Batch: 1, Task: task, LanePercent: lane})
			}
		}
		tasks(0, 1, 20)
		tasks(0, 31, 33)
		expectEqual(t, "normal", s.readLane(t, pool), slots.UrgentLane{})
		tasks(10, 34, 34)
		expectEqual(t, "urgent", s.readLane(t, pool), slots.UrgentLane{Held: 20, Room: -18, Waiting: 4})
		s.releaseTask(t, pool, 1)
		expectEqual(t, "one left, and was handed on", s.readLane(t, pool), slots.UrgentLane{Held: 20, Room: -18, Waiting: 4})
		must.Succeed(t, s.client.Del(t.Context(), "slots:{"+pool+"}:timer").Err())
		s.offerSlots(t, pool)
		expectEqual(t, "a queue that was lost", s.readLane(t, pool).Held, 0)
		tasks(10, 41, 42) // the first task gets the free slot
		expectEqual(t, "known again", s.readLane(t, pool), slots.UrgentLane{Held: 20, Room: -18, Waiting: 1})
		_, err := s.Adopt(t.Context(), pool, []slots.LedgerGrant{{Lease: "old", Device: "x", Slot: 30, Batch: 1}})
		must.Succeed(t, err)
		s.offerSlots(t, pool)
		expectEqual(t, "holders that came beside the queue", s.readLane(t, pool), slots.UrgentLane{Held: 21, Room: -19, Waiting: 1})
		tasks(0, 43, 43)
		expectEqual(t, "normal again", s.readLane(t, pool), slots.UrgentLane{Room: 2})
	})
}

// TestForgettingEndedBatchesCountsTheLane begins with a wrong stored count of the slots of urgent batches. When ended batches are removed
// from the queue, these slots must be counted again, so that the count is right.
func TestForgettingEndedBatchesCountsTheLane(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 20)
		s.requestWakeable(t, pool, urgentWant(1, 1))
		key := "slots:{" + pool + "}:batch"
		state := s.client.HGet(t.Context(), key, "pool").Val()
		wrong := strings.Replace(state, `"lane":1`, `"lane":9`, 1)
		if err := s.client.HSet(t.Context(), key, "pool", wrong).Err(); err != nil || wrong == state {
			t.Fatal(state, err)
		}
		expectEqual(t, "a wrong count", s.readLane(t, pool), slots.UrgentLane{Held: 9, Room: -7})
		const ended = 150 // more batches than the queue keeps
		for batch := int64(2); batch < 2+ended; batch++ {
			s.requestWakeable(t, pool, slots.Want{Batch: batch, Task: batch})
			s.releaseTask(t, pool, batch)
		}
		if n := s.client.HLen(t.Context(), key).Val(); n > ended {
			t.Fatalf("%d batches are known: none was forgotten", n)
		}
		expectEqual(t, "counted anew", s.readLane(t, pool), slots.UrgentLane{Held: 1, Room: 1})
	})
}

func TestLanesAreChecked(t *testing.T) {
	t.Parallel()
	s := newRedisSemaphore(t)
	pool := s.restorePool(t, 1)
	for _, lane := range []int{-1, 101} {
		if _, err := s.ReadQueuePlaces(t.Context(), pool, "d", []slots.Want{{Batch: 1, Task: 1, LanePercent: lane}}); err == nil {
			t.Errorf("lane %d is taken", lane)
		}
	}
}
