package slots_test

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/slots"
)

// A report is not refreshed if Redis lost the waiter or a key of the queue, or if its clock was set back. The device is
// then served, which repairs the queue.
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
				if err := damage(t, s, pool, now); err != nil {
					t.Fatal(err)
				}
				expectRefreshed(t, s, pool, false)
			})
		})
	}
}

// expectRefreshed sends the report of the waiting device "d2" to Refresh.
func expectRefreshed(t *testing.T, s *redisSemaphore, pool string, want bool) {
	t.Helper()
	after, err := s.Refresh(t.Context(), pool, offeringPace(), []slots.WaiterRefresh{{Device: "d2"}})
	if err != nil || (after[0] > 0) != want {
		t.Errorf("refreshed for %s, %v, want %v", after, err, want)
	}
}

// A waiter is refreshed until the grant that was foreseen for it was made. A poller is refreshed until it is owed a slot,
// after as many more grants as the pool has slots.
func TestWaitersAreRefreshedUntilTheirGrant(t *testing.T) {
	t.Parallel()
	for reach, want := range map[slots.Reach][]bool{
		slots.ReachPush: {true, false},
		slots.ReachNone: {true, true, false},
	} {
		runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
			t.Helper()
			pool := s.restorePool(t, 1)
			s.requestWakeable(t, pool, slots.Want{Batch: 1, Task: 1})
			waiter := newRequest("waiter", slots.Want{Batch: 1, Task: 2, Lease: "2", TTL: time.Hour})
			waiter.Reach = reach
			if _, _, err := s.Acquire(t.Context(), pool, offeringPace(), []slots.Request{waiter}); err != nil {
				t.Fatal(err)
			}
			for n, refreshed := range want {
				after, err := s.Refresh(t.Context(), pool, offeringPace(), []slots.WaiterRefresh{{Device: "waiter", Reach: reach}})
				if err != nil || (after[0] > 0) != refreshed {
					t.Errorf("reach %d, %d grants later: refreshed for %s, %v, want %v", reach, n, after, err, refreshed)
				}
				before := slots.Want{Batch: 1, Task: int64(10 + n), Priority: 1}
				s.requestWakeable(t, pool, before)
				s.releaseTask(t, pool, []int64{1, 10, 11}[n])
				expectEqual(t, "a device before the waiter", s.requestWakeable(t, pool, before).Status, slots.StatusAcquired)
			}
		})
	}
}

// Of the requests of a fleet whose devices come when they were asked to, nearly all are refreshed. The first request of each
// device is not counted.
func TestMostWaitersAreRefreshed(t *testing.T) {
	t.Parallel()
	devices, horizon := 100_000, 20*time.Minute
	if testing.Short() {
		devices, horizon = 3000, 5*time.Minute
	}
	for name, reach := range map[string]slots.Reach{"pollers": slots.ReachNone, "notified": slots.ReachPush} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 60, 30*time.Second)
			f.addDevices(devices, 1, reach, 0, 30*time.Second)
			f.runUntil(time.Minute, func() bool { return false })
			requests, refreshed := f.requestCount, f.refreshCount
			f.runUntil(f.now+horizon, func() bool { return false })
			requests, refreshed = f.requestCount-requests, f.refreshCount-refreshed
			t.Logf("%d of %d requests were refreshed (%.3f); %.1f slots held", refreshed, requests, float64(refreshed)/float64(requests), f.meanHeld(2*time.Minute, horizon-time.Minute))
			if float64(refreshed) < 0.95*float64(requests) {
				t.Errorf("%d of %d requests were refreshed", refreshed, requests)
			}
		})
	}
}
