package slots_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// offeringPace returns a pace (the times of a queue) with which offers and waiters last longer than any test.
func offeringPace() slots.Pace {
	return slots.Pace{MeanHold: 800 * time.Second, MinWait: time.Hour, ReportPeriod: time.Hour, OfferTTL: time.Hour}
}

// requestForTask asks for a slot for one task of a batch. The device polls. Its name and the name of the lease are derived from the task.
func (s *redisSemaphore) requestForTask(t *testing.T, pool string, pace slots.Pace, w slots.Want) slots.Acquisition {
	t.Helper()
	w.TTL, w.Lease = time.Hour, strconv.FormatInt(w.Task, 10)
	got, _, err := s.Acquire(t.Context(), pool, pace, []slots.Request{newRequest(fmt.Sprintf("d%d", w.Task), w)})
	must.Succeed(t, err)
	return got[0]
}

// setClock sets the time that the scripts of the pool read.
func (s *redisSemaphore) setClock(t *testing.T, pool string, now time.Time) {
	t.Helper()
	s.Semaphore = slots.NewOnClock(s.client)
	must.Succeed(t, s.client.Set(t.Context(), slots.ClockKey(pool), now.UnixMilli(), 0).Err())
}

// requestWakeable asks for a slot for one task, for a device that can be notified of a slot. Its name and the name of the lease are derived
// from the task.
func (s *redisSemaphore) requestWakeable(t *testing.T, pool string, w slots.Want) slots.Acquisition {
	t.Helper()
	w.TTL = time.Hour
	w.Lease = strconv.FormatInt(w.Task, 10)
	request := newRequest(fmt.Sprintf("d%d", w.Task), w)
	request.Reach = slots.ReachPush
	got, _, err := s.Acquire(t.Context(), pool, offeringPace(), []slots.Request{request})
	must.Succeed(t, err)
	return got[0]
}

// requestAllWakeable calls requestWakeable for each task in tasks, as a task of batch 1.
func (s *redisSemaphore) requestAllWakeable(t *testing.T, pool string, tasks ...int64) {
	t.Helper()
	for _, task := range tasks {
		s.requestWakeable(t, pool, slots.Want{Batch: 1, Task: task})
	}
}

// releaseTask frees the slot of a task. It returns the offers that the release caused.
func (s *redisSemaphore) releaseTask(t *testing.T, pool string, task int64) []slots.Offer {
	t.Helper()
	freed, offers, err := s.Release(t.Context(), pool, offeringPace(), []string{strconv.FormatInt(task, 10)})
	if err != nil || !freed[0] {
		t.Fatal(freed, err)
	}
	return offers
}

func (s *redisSemaphore) offerSlots(t *testing.T, pool string, updates ...slots.Update) slots.QueueState {
	t.Helper()
	line, err := s.OfferSlots(t.Context(), pool, offeringPace(), updates)
	must.Succeed(t, err)
	return line
}

// confirmOffer tells the queue that an offer was sent to its device. After that, the queue does not return the offer again.
func (s *redisSemaphore) confirmOffer(t *testing.T, pool string, o slots.Offer) {
	t.Helper()
	s.offerSlots(t, pool, slots.Update{Kind: slots.OfferSent, Device: o.Device, Offer: o.ID})
}

func offeredTasks(offers []slots.Offer) (tasks []int64) {
	for _, o := range offers {
		tasks = append(tasks, o.Task)
	}
	return tasks
}

// queueCounts returns four numbers of a queue: held slots, offered slots, waiters that can be notified, and all
// waiters.
func queueCounts(queue slots.QueueState) [4]int {
	return [4]int{queue.Held, queue.Reserved, queue.Notifiable, queue.Waiting}
}

// TestSlotThatFallsFreeIsOffered checks a slot that becomes free while devices wait. The script that frees the slot must also reserve it
// for the next waiter (an offer). No other device may get this slot. The device with the offer must get it for the offered task.
func TestSlotThatFallsFreeIsOffered(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 1)
		s.requestAllWakeable(t, pool, 1, 2, 3)
		offers := s.releaseTask(t, pool, 1)
		if len(offers) != 1 {
			t.Fatalf("offers %+v, want one", offers)
		}
		o := offers[0]
		if o.Device != "d2" || o.Task != 2 || o.Batch != 1 || o.Reach != slots.ReachPush || o.ID == 0 || o.Left > time.Hour || o.Left < 50*time.Minute || o.Age < 0 {
			t.Errorf("offer %+v", o)
		}
		snapshot := s.readSnapshot(t, pool)
		if r := snapshot.Reserved; len(snapshot.Leases) != 0 || len(r) != 1 || r[0].Device != "d2" || r[0].Batch != 1 || r[0].Task != 2 || r[0].Left < 50*time.Minute {
			t.Errorf("snapshot %+v", snapshot)
		}
		stranger := s.requestWakeable(t, pool, slots.Want{Batch: 1, Task: 0}) // even if its task would precede the task of the offer
		expectEqual(t, "a stranger", stranger.Status, slots.StatusFull)
		expectEqual(t, "one who polls", s.requestForTask(t, pool, offeringPace(), slots.Want{Batch: 2, Task: 9}).Status, slots.StatusFull)
		mine := s.requestWakeable(t, pool, slots.Want{Batch: 1, Task: 2})
		expectEqual(t, "whose it is", mine.Status, slots.StatusAcquired)
		expectEqual(t, "held, reserved, ready, waiting", queueCounts(s.offerSlots(t, pool)), [4]int{1, 0, 2, 3})
		expectEqual(t, "the next, in order", offeredTasks(s.releaseTask(t, pool, 2)), []int64{0})
	})
}

// TestOfferIsReturnedUntilItWasSent checks that an offer that was not yet reported as sent is returned again, but not before 500 ms have
// passed.
func TestOfferIsReturnedUntilItWasSent(t *testing.T) {
	t.Parallel()
	s := newRedisSemaphore(t)
	pool := s.restorePool(t, 1)
	s.requestAllWakeable(t, pool, 1, 2)
	began := time.Now()
	first := s.releaseTask(t, pool, 1)
	if again := s.offerSlots(t, pool).Offers; len(again) > 0 && time.Since(began) < 500*time.Millisecond {
		t.Errorf("at once: %+v", again)
	}
	await.True(t, "the offer again", func() bool {
		again := s.offerSlots(t, pool).Offers
		return len(again) == 1 && again[0].ID == first[0].ID
	})
	s.offerSlots(t, pool, slots.Update{Kind: slots.OfferSent, Device: "d2", Offer: first[0].ID - 1}) // the update of an older offer, which must change nothing
	await.True(t, "the offer again after an update of another", func() bool { return len(s.offerSlots(t, pool).Offers) == 1 })
	s.confirmOffer(t, pool, first[0])
	s.setClock(t, pool, time.Now().Add(offeringPace().OfferTTL/2))
	expectEqual(t, "offers to send once it was", len(s.offerSlots(t, pool).Offers), 0)
}

// TestOfferThatAReplicaMissedGoesToAnother checks an offer to a parked report that one replica received and did not send. If another
// replica asks with ResendParkedOffers, the offer must be returned to it at once.
func TestOfferThatAReplicaMissedGoesToAnother(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 1)
		s.requestAllWakeable(t, pool, 1)
		parked := newRequest("d2", slots.Want{Batch: 1, Task: 2, Lease: "2", TTL: time.Hour})
		parked.Reach = slots.ReachPark
		_, _, err := s.Acquire(t.Context(), pool, offeringPace(), []slots.Request{parked})
		must.Succeed(t, err)
		first := s.releaseTask(t, pool, 1)
		await.True(t, "the offer again", func() bool { return len(s.offerSlots(t, pool).Offers) == 1 })
		for range 2 {
			missed := s.offerSlots(t, pool, slots.Update{Kind: slots.ResendParkedOffers}).Offers
			if len(missed) != 1 || missed[0].ID != first[0].ID || missed[0].Reach != slots.ReachPark {
				t.Errorf("missed offers %+v, want %+v", missed, first)
			}
		}
		s.confirmOffer(t, pool, first[0])
		expectEqual(t, "once it was sent", len(s.offerSlots(t, pool, slots.Update{Kind: slots.ResendParkedOffers}).Offers), 0)
	})
}

// TestWaitersAreKeptByWhatBecameOfThem checks waiters after their offers. A waiter whose offer lapsed, or that is away, must keep its
// position and get no offer until it asks again. A waiter that left, or whose batch was closed, must be removed from the queue.
func TestWaitersAreKeptByWhatBecameOfThem(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 1)
		s.requestAllWakeable(t, pool, 1, 2, 3, 4, 5, 6)
		for task := int64(7); task <= 8; task++ {
			s.requestForTask(t, pool, offeringPace(), slots.Want{Batch: 2, Task: task})
		}
		offer := s.releaseTask(t, pool, 1)[0]
		s.setClock(t, pool, time.Now().Add(offeringPace().OfferTTL))
		line := s.offerSlots(t, pool)
		expectEqual(t, "after a lapse", offeredTasks(line.Offers), []int64{3})
		expectEqual(t, "held, reserved, ready, waiting", queueCounts(line), [4]int{0, 1, 3, 7})
		current := line.Offers[0].ID
		line = s.offerSlots(t, pool, slots.Update{Kind: slots.WaiterPassedOver, Device: "d3", Offer: offer.ID})
		expectEqual(t, "an update of another offer", queueCounts(line), [4]int{0, 1, 3, 7})
		line = s.offerSlots(t, pool, slots.Update{Kind: slots.WaiterLeft, Device: "d3", Offer: current})
		expectEqual(t, "who left", queueCounts(line), [4]int{0, 1, 2, 6})
		expectEqual(t, "after who left", offeredTasks(line.Offers), []int64{4})
		line = s.offerSlots(t, pool, slots.Update{Kind: slots.BatchLeft, Batch: 2})
		expectEqual(t, "a batch that was closed", queueCounts(line), [4]int{0, 1, 2, 4})
		line = s.offerSlots(t, pool, slots.Update{Kind: slots.WaiterPassedOver, Device: "d4"}, slots.Update{Kind: slots.WaiterPassedOver, Device: "d5"})
		expectEqual(t, "who is away", queueCounts(line), [4]int{0, 1, 0, 4})
		expectEqual(t, "after who is away", offeredTasks(line.Offers), []int64{6})

		got := s.requestWakeable(t, pool, slots.Want{Batch: 1, Task: 2})
		expectEqual(t, "who lapsed, at its old position", got.Position, 1)
		s.requestAllWakeable(t, pool, 6)
		expectEqual(t, "and offered again", offeredTasks(s.releaseTask(t, pool, 6)), []int64{2})
	})
}

// TestOffersFollowTheOrder checks that slots are offered to waiters in the same order in which they would be granted.
func TestOffersFollowTheOrder(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 6)
		for task := int64(100); task < 108; task++ {
			s.requestWakeable(t, pool, slots.Want{Batch: 1, Weight: 1, Task: task})
		}
		for task := int64(200); task < 205; task++ {
			s.requestWakeable(t, pool, slots.Want{Batch: 2, Weight: 2, Task: task, Priority: map[int64]int{203: 5}[task]})
		}
		var got []int64
		for task := int64(100); task < 106; task++ {
			for _, o := range s.releaseTask(t, pool, task) {
				got = append(got, o.Task)
				if a := s.requestWakeable(t, pool, slots.Want{Batch: o.Batch, Weight: int(o.Batch), Task: o.Task, Priority: map[int64]int{203: 5}[o.Task]}); a.Status != slots.StatusAcquired {
					t.Fatalf("task %d was offered a slot: %+v", o.Task, a)
				}
			}
		}
		expectEqual(t, "one by one", got, []int64{203, 200, 201, 202, 106, 107})
	})
}

// TestOffersCountForTheirBatches checks slots that become free in one call. They must be offered as if one became free after the other:
// each offered slot already counts as held by its batch.
func TestOffersCountForTheirBatches(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 0)
		for i := range int64(6) {
			s.requestWakeable(t, pool, slots.Want{Batch: 1, Task: 10 + i})
			s.requestWakeable(t, pool, slots.Want{Batch: 2, Task: 20 + i, Weight: 2})
		}
		s.configure(t, pool, 6, 2)
		line := s.offerSlots(t, pool)
		batches := map[int64]int{}
		for _, o := range line.Offers {
			batches[o.Batch]++
		}
		expectEqual(t, "offers by batch", batches, map[int64]int{1: 2, 2: 4})
		expectEqual(t, "held, reserved, ready, waiting", queueCounts(line), [4]int{0, 6, 6, 12})
	})
}

// TestSeatedDevicesStandBehindThoseThatAsked checks devices that join the queue without a request. They must get places in the usual order
// among the devices that requested a slot. Each device must join only once.
func TestSeatedDevicesStandBehindThoseThatAsked(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 1)
		s.requestAllWakeable(t, pool, 5, 6)
		joiner := func(task int64) slots.Joiner {
			return slots.Joiner{Device: fmt.Sprintf("d%d", task), Want: slots.Want{Batch: 1, Task: task}, Reach: slots.ReachPark}
		}
		for range 2 {
			line, err := s.Join(t.Context(), pool, offeringPace(), []slots.Joiner{joiner(7), joiner(4), joiner(6)})
			must.Succeed(t, err)
			expectEqual(t, "held, reserved, ready, waiting", queueCounts(line), [4]int{1, 0, 3, 3})
		}
		offers := s.releaseTask(t, pool, 5)
		if len(offers) != 1 || offers[0].Device != "d4" || offers[0].Reach != slots.ReachPark {
			t.Errorf("offers %+v", offers)
		}
	})
}

// TestPoolIsDueOnlyWhileSomethingCanBeHandedOn checks when FindWaitingPools returns a pool as one that needs OfferSlots: only while it has
// an offer, or a free slot and a waiter that can be notified.
func TestPoolIsDueOnlyWhileSomethingCanBeHandedOn(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 1)
		expect := func(what string, wantWaiting, wantDue int) {
			t.Helper()
			waiting, due, err := s.FindWaitingPools(t.Context(), []string{t.Name() + ".other", pool, "nobody's"})
			if err != nil || len(waiting) != wantWaiting || len(due) != wantDue || !slices.Contains(waiting, pool) && wantWaiting > 0 {
				t.Errorf("%s: lines %v, due %v, %v; want %d and %d", what, waiting, due, err, wantWaiting, wantDue)
			}
		}
		expect("nobody waits", 0, 0)
		s.requestAllWakeable(t, pool, 5)
		expect("nobody waits, full", 0, 0)
		s.requestForTask(t, pool, offeringPace(), slots.Want{Batch: 1, Task: 6})
		expect("one who polls", 1, 0)
		s.requestAllWakeable(t, pool, 7)
		expect("nothing is free", 1, 0)
		s.releaseTask(t, pool, 5)
		expect("an offer", 1, 1)
		s.requestAllWakeable(t, pool, 7, 8)
		expect("held again", 1, 0)
		_, err := s.Configure(t.Context(), pool, slots.Config{Capacity: 2, Version: 9})
		must.Succeed(t, err)
		expect("grown, and nobody handed on yet", 1, 1)
	})
}

// TestNothingIsOfferedWithoutTimeOrPool checks that no slot is offered if Pace.OfferTTL is 0, or if Redis does not know the pool.
func TestNothingIsOfferedWithoutTimeOrPool(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 1)
		s.requestAllWakeable(t, pool, 1, 2)
		pace := offeringPace()
		pace.OfferTTL = 0
		if freed, offers, err := s.Release(t.Context(), pool, pace, []string{"1"}); err != nil || !freed[0] || len(offers) != 0 {
			t.Errorf("%v, %v, %v", freed, offers, err)
		}
		if line := s.offerSlots(t, t.Name()+".unknown", slots.Update{Kind: slots.BatchLeft, Batch: 1}); line.PoolKnown || len(line.Offers) > 0 {
			t.Errorf("of an unknown pool: %+v", line)
		}
		expectEqual(t, "later", len(s.offerSlots(t, pool).Offers), 1)
	})
}

// TestTheTasksOfOneDeviceTakeTurns checks a device that has tasks in an older and in a newer batch. The older batch must not delay the
// newer one: the tasks of the device must take turns by the weights of the batches.
func TestTheTasksOfOneDeviceTakeTurns(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool := s.restorePool(t, 60)
		next := []slots.Want{{Batch: 1, Weight: 1, Task: 1}, {Batch: 2, Weight: 100, Task: 100}}
		got := map[int64]int{}
		for n := range 20 {
			wants := slices.Clone(next)
			for i := range wants {
				wants[i].Lease, wants[i].TTL = fmt.Sprintf("%d.%d", wants[i].Task, n), time.Hour
			}
			a, _, err := s.Acquire(t.Context(), pool, offeringPace(), []slots.Request{newRequest("d", wants...)})
			if err != nil || a[0].Status != slots.StatusAcquired {
				t.Fatal(a, err)
			}
			s.release(t, pool, wants[a[0].WantIndex].Lease)
			got[wants[a[0].WantIndex].Batch]++
			next[a[0].WantIndex].Task++
		}
		expectEqual(t, "by batch, of 20", got, map[int64]int{1: 1, 2: 19})
	})
}

// TestAMissedOfferDoesNotHideANewerTask checks a device that missed its offer, because its task was done when the offer was made. The
// device must be offered a slot for a newer task. For the task of the missed offer, it must get no offer until it asks.
func TestAMissedOfferDoesNotHideANewerTask(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool, now := s.restorePool(t, 1), time.UnixMilli(1_800_000_000_000)
		s.setClock(t, pool, now)
		join := func(task int64) []slots.Offer {
			t.Helper()
			joiner := slots.Joiner{Device: "d", Want: slots.Want{Batch: task, Task: task}, Reach: slots.ReachPark}
			line, err := s.Join(t.Context(), pool, offeringPace(), []slots.Joiner{joiner})
			must.Succeed(t, err)
			return line.Offers
		}
		first := join(5)
		if len(first) != 1 {
			t.Fatalf("offers %+v, want one", first)
		}
		s.confirmOffer(t, pool, first[0])
		s.setClock(t, pool, now.Add(offeringPace().OfferTTL))
		if missed := join(5); len(missed) != 0 {
			t.Errorf("offered again for the same task: %+v", missed)
		}
		if older := join(4); len(older) != 0 {
			t.Errorf("offered for an older task: %+v", older)
		}
		if newer := join(6); len(newer) != 1 || newer[0].Task != 6 {
			t.Errorf("offers %+v, want one for task 6", newer)
		}
	})
}
