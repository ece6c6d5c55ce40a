package slots_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/slots"
)

// urgent returns a task of an urgent batch. The lane is a tenth of the pool.
func urgent(batch, task int64) slots.Want { return slots.Want{Batch: batch, Task: task, Lane: 10} }

func (s *server) laneOf(t *testing.T, pool string) slots.Lane {
	t.Helper()
	standing, err := s.Standing(t.Context(), pool, "nobody", []slots.Waiter{{Batch: 99, Task: 99}})
	if err != nil {
		t.Fatal(err)
	}
	return standing.Lane
}

// Free slots are offered to urgent waiters before a batch of any weight, until the urgent batches
// hold their share. After that, urgent waiters wait by weight until an urgent task ends.
func TestTheLaneGoesFirstWithinItsShare(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *server) {
		t.Helper()
		pool := s.poolOf(t, 20)
		for task := int64(1); task <= 60; task++ {
			s.wakeable(t, pool, slots.Want{Batch: 1, Weight: 1000, Task: task})
		}
		for task := int64(101); task <= 105; task++ {
			s.wakeable(t, pool, urgent(2+task%2, task))
		}
		diff(t, "the lane of a full pool", s.laneOf(t, pool), slots.Lane{Room: 2, Waiting: 5})
		var got []int64
		for task := int64(1); task <= 4; task++ {
			got = append(got, offeredTasks(s.leave(t, pool, task))...)
		}
		diff(t, "offered", got, []int64{102, 101, 21, 22})
		diff(t, "the lane that is offered its share", s.laneOf(t, pool), slots.Lane{Held: 2, Waiting: 5})
		for _, task := range []int64{101, 102} {
			diff(t, "an urgent one asks", s.wakeable(t, pool, urgent(2+task%2, task)).Status, slots.StatusAcquired)
		}
		diff(t, "the lane that holds its share", s.laneOf(t, pool), slots.Lane{Held: 2, Waiting: 3})
		diff(t, "a slot of another batch", offeredTasks(s.leave(t, pool, 5)), []int64{23})
		diff(t, "a slot of the lane", offeredTasks(s.leave(t, pool, 102)), []int64{104})
	})
}

// No slot is taken from its holder or from the device that it is offered to, however urgent another
// device is.
func TestTheLaneTakesNothingAway(t *testing.T) {
	t.Parallel()
	s := onRedis(t)
	pool := s.poolOf(t, 1)
	s.wakeables(t, pool, 1)
	diff(t, "urgent, full", s.wakeable(t, pool, urgent(2, 2)).Status, slots.StatusFull)
	offers := s.leave(t, pool, 1)
	diff(t, "offered", offeredTasks(offers), []int64{2})
	diff(t, "more urgent still", s.wakeable(t, pool, urgent(3, 3)).Status, slots.StatusFull)
	s.sent(t, pool, offers[0])
	diff(t, "whose it is", s.wakeable(t, pool, urgent(2, 2)).Status, slots.StatusAcquired)
}

// If a device has an offer for one task and asks with an urgent task, it gets the slot for the
// urgent task.
func TestAnOfferServesAnUrgentTask(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *server) {
		t.Helper()
		pool := s.poolOf(t, 1)
		s.wakeables(t, pool, 1, 2)
		s.sent(t, pool, s.leave(t, pool, 1)[0])
		both := []slots.Want{{Batch: 1, Task: 2, Lease: "2", TTL: time.Hour}, urgent(2, 7)}
		both[1].Lease, both[1].TTL = "7", time.Hour
		got, _, err := s.Acquire(t.Context(), pool, offeringPace(), []slots.Request{asking("d2", both...)})
		if err != nil || got[0].Status != slots.StatusAcquired || got[0].Want != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// If a device waits with another task and joins with an urgent task, it waits with the urgent task,
// unless it has an offer.
func TestAWaiterJoinsWithItsUrgentTask(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *server) {
		t.Helper()
		pool := s.poolOf(t, 1)
		s.wakeables(t, pool, 1, 2, 3, 4)
		join := func(device string, batch int64, lane int) {
			joiner := slots.Joiner{Waiter: slots.Waiter{Device: device, Batch: batch, Task: 70, Lane: lane}, Reach: slots.ReachPush}
			if _, err := s.Join(t.Context(), pool, offeringPace(), []slots.Joiner{joiner}); err != nil {
				t.Fatal(err)
			}
		}
		join("d3", 5, 0)
		join("d4", 6, 10)
		diff(t, "the lane", s.laneOf(t, pool), slots.Lane{Room: 1, Waiting: 1})
		offers := s.leave(t, pool, 1)
		if len(offers) != 1 || offers[0].Device != "d4" || offers[0].Task != 70 {
			t.Fatalf("offers %+v", offers)
		}
		join("d4", 7, 10)
		if again := s.snapshot(t, pool).Reserved; len(again) != 1 || again[0].ID != offers[0].ID {
			t.Errorf("an offer that another joining ended: %+v", again)
		}
	})
}

// A poller with an urgent task is asked back soon, however many devices wait. A slot that falls
// free just before it asks is kept for it.
func TestAnUrgentPollerComesSoon(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *server) {
		t.Helper()
		pool, now := s.poolOf(t, 20), time.UnixMilli(1_800_000_000_000)
		s.clock(t, pool, now)
		pace := slots.Pace{Hold: 100 * time.Second, Soonest: time.Second, Period: time.Minute, Offer: 3 * time.Second}
		for task := int64(1); task <= 300; task++ {
			s.ask(t, pool, pace, slots.Want{Batch: 1, Weight: 1000, Task: task})
		}
		for try := range 30 { // the poller is asked back soon each time
			got := s.ask(t, pool, pace, urgent(2, 999))
			if got.Status != slots.StatusFull || got.Position != 1 || got.After > 2*time.Second {
				t.Fatalf("ask %d: %+v", try, got)
			}
			now = now.Add(got.After - time.Second/2)
			s.clock(t, pool, now)
		}
		if freed, _, err := s.Release(t.Context(), pool, pace, []string{"1"}); err != nil || !freed[0] {
			t.Fatal(freed, err)
		}
		diff(t, "another one meanwhile", s.ask(t, pool, pace, slots.Want{Batch: 3, Weight: 1000, Task: 998}).Status, slots.StatusFull)
		diff(t, "the urgent one", s.ask(t, pool, pace, urgent(2, 999)).Status, slots.StatusAcquired)
	})
}

// The position of a task that waits by weight is higher by the number of urgent tasks that precede
// it.
func TestPositionsCountTheLane(t *testing.T) {
	t.Parallel()
	s := onRedis(t)
	pool := s.poolOf(t, 20)
	for task := int64(1); task <= 30; task++ {
		s.wakeable(t, pool, slots.Want{Batch: 1, Task: task})
	}
	diff(t, "before", s.ask(t, pool, offeringPace(), slots.Want{Batch: 1, Task: 25}).Position, 5)
	for task := int64(101); task <= 105; task++ {
		s.wakeable(t, pool, urgent(2, task))
	}
	diff(t, "the second by weight, behind two that go first", s.positionOf(t, pool, slots.Waiter{Batch: 1, Task: 21}), 2+2)
	diff(t, "the first of the lane", s.positionOf(t, pool, slots.Waiter{Batch: 2, Task: 101, Lane: 10}), 1)
	diff(t, "the second", s.positionOf(t, pool, slots.Waiter{Batch: 2, Task: 102, Lane: 10}), 2)
}

func (s *server) positionOf(t *testing.T, pool string, w slots.Waiter) int {
	t.Helper()
	standing, err := s.Standing(t.Context(), pool, fmt.Sprintf("d%d", w.Task), []slots.Waiter{w})
	if err != nil {
		t.Fatal(err)
	}
	return standing.Positions[0]
}

// A batch can become urgent, and normal again. Its held slots and its waiters are counted
// correctly, also after the queue was lost.
func TestALaneThatChangesIsCounted(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *server) {
		t.Helper()
		pool := s.poolOf(t, 20)
		tasks := func(lane int, from, to int64) {
			for task := from; task <= to; task++ {
				s.wakeable(t, pool, slots.Want{Batch: 1, Task: task, Lane: lane})
			}
		}
		tasks(0, 1, 20)
		tasks(0, 31, 33)
		diff(t, "normal", s.laneOf(t, pool), slots.Lane{})
		tasks(10, 34, 34)
		diff(t, "urgent", s.laneOf(t, pool), slots.Lane{Held: 20, Room: -18, Waiting: 4})
		s.leave(t, pool, 1)
		diff(t, "one left, and was handed on", s.laneOf(t, pool), slots.Lane{Held: 20, Room: -18, Waiting: 4})
		if err := s.client.Del(t.Context(), "slots:{"+pool+"}:timer").Err(); err != nil {
			t.Fatal(err)
		}
		s.offerSlots(t, pool)
		diff(t, "a queue that was lost", s.laneOf(t, pool).Held, 0)
		tasks(10, 41, 42) // the first task gets the free slot
		diff(t, "known again", s.laneOf(t, pool), slots.Lane{Held: 20, Room: -18, Waiting: 1})
		if _, err := s.Adopt(t.Context(), pool, []slots.Holding{{Lease: "old", Device: "x", Slot: 30, Batch: 1}}); err != nil {
			t.Fatal(err)
		}
		s.offerSlots(t, pool)
		diff(t, "holders that came beside the queue", s.laneOf(t, pool), slots.Lane{Held: 21, Room: -19, Waiting: 1})
		tasks(0, 43, 43)
		diff(t, "normal again", s.laneOf(t, pool), slots.Lane{Room: 2})
	})
}

// When ended batches are forgotten, the lane is counted again. A wrong count is correct afterwards.
func TestForgettingEndedBatchesCountsTheLane(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *server) {
		t.Helper()
		pool := s.poolOf(t, 20)
		s.wakeable(t, pool, urgent(1, 1))
		key := "slots:{" + pool + "}:batch"
		state := s.client.HGet(t.Context(), key, "pool").Val()
		wrong := strings.Replace(state, `"lane":1`, `"lane":9`, 1)
		if err := s.client.HSet(t.Context(), key, "pool", wrong).Err(); err != nil || wrong == state {
			t.Fatal(state, err)
		}
		diff(t, "a wrong count", s.laneOf(t, pool), slots.Lane{Held: 9, Room: -7})
		const ended = 150 // more batches than the queue keeps
		for batch := int64(2); batch < 2+ended; batch++ {
			s.wakeable(t, pool, slots.Want{Batch: batch, Task: batch})
			s.leave(t, pool, batch)
		}
		if n := s.client.HLen(t.Context(), key).Val(); n > ended {
			t.Fatalf("%d batches are known: none was forgotten", n)
		}
		diff(t, "counted anew", s.laneOf(t, pool), slots.Lane{Held: 1, Room: 1})
	})
}

func TestLanesAreChecked(t *testing.T) {
	t.Parallel()
	s := onRedis(t)
	pool := s.poolOf(t, 1)
	for _, lane := range []int{-1, 101} {
		if _, err := s.Standing(t.Context(), pool, "d", []slots.Waiter{{Batch: 1, Task: 1, Lane: lane}}); err == nil {
			t.Errorf("lane %d is taken", lane)
		}
	}
}
