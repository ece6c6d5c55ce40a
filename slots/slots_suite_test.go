package slots_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// TestContract runs its cases on every kind of Redis. The cases share a server, but each case has its own pool.
func TestContract(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		t.Run("the capacity holds", s.testCap)
		t.Run("the lowest free slot comes first", s.testLowestFirst)
		t.Run("an acquire is idempotent", s.testAcquireTwice)
		t.Run("a batch is answered in order", s.testBatch)
		t.Run("a large batch is answered in order", s.testLargeBatch)
		t.Run("only a whole lease id releases", s.testWholeLeaseID)
		t.Run("a release sent twice frees once", s.testDoubleRelease)
		t.Run("expired holders count", s.testExpiredHoldersCount)
		t.Run("an unknown pool grants nothing", s.testUnknownPool)
		t.Run("capacity 0 grants nothing", s.testCapacityZero)
		t.Run("a pool may have the full size", s.testMaxCapacity)
		t.Run("holders stay when it is lowered", s.testLowerWhileHeld)
		t.Run("raising adds what is missing", s.testRaise)
		t.Run("a stale version changes nothing", s.testStaleVersion)
		t.Run("only an unknown pool is restored", s.testRestoreUnknownOnly)
		t.Run("a restore clears what another left", s.testRestoreClearsRemains)
		t.Run("a restore may come in chunks", s.testChunkedRestore)
		t.Run("one of interleaved restores ends", s.testInterleavedRestores)
		t.Run("holders above the capacity are restored", s.testRestoreAboveCapacity)
		t.Run("adopting takes no holder's slot", s.testAdopt)
		t.Run("adopting goes above the capacity", s.testAdoptAboveCapacity)
		t.Run("a snapshot has all holders", s.testSnapshot)
		t.Run("a forgotten pool is unknown", s.testForget)
		t.Run("a lost key makes it unknown", s.testLostKey)
		t.Run("what is invalid is refused", s.testInvalid)
		t.Run("the capacity holds at once", s.testConcurrentCap)
	})
}

func (s *redisSemaphore) testCap(t *testing.T) {
	t.Parallel()
	const capacity = 60
	pool := s.restorePool(t, capacity)
	s.acquireAll(t, pool, numberedNames("l", 0, capacity-1)...)
	expectEqual(t, "the last slot", s.acquire(t, pool, "last"), acquiredSlot(capacity-1))
	if got := s.acquire(t, pool, "one too many"); got.Status != slots.StatusFull {
		t.Errorf("above capacity: %+v, want full", got)
	}
	s.release(t, pool, "l.17")
	expectEqual(t, "after a release", s.acquire(t, pool, "next"), acquiredSlot(17))
	if got := len(s.slotHolders(t, pool)); got != capacity {
		t.Errorf("%d held, want %d", got, capacity)
	}
}

func (s *redisSemaphore) testLowestFirst(t *testing.T) {
	t.Parallel()
	s.skipIfSlowInLua(t)
	pool := s.restorePool(t, 1200) // slot numbers of different length would be sorted wrongly without padding
	s.acquireAll(t, pool, numberedNames("l", 0, 1200)...)
	s.release(t, pool, "l.1100", "l.9", "l.101", "l.20")
	var got []int
	for _, a := range s.acquireAll(t, pool, "a", "b", "c", "d") {
		got = append(got, a.Slot)
	}
	expectEqual(t, "slots", got, []int{9, 20, 101, 1100})
	s.release(t, pool, "b")
	expectEqual(t, "as stored", s.freeSlots(t, pool), []string{"00020"})
}

func (s *redisSemaphore) testAcquireTwice(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 2)
	expectEqual(t, "first", s.acquire(t, pool, "a"), acquiredSlot(0))
	expectEqual(t, "again", s.acquire(t, pool, "a"), acquiredSlot(0))
	s.acquire(t, pool, "b")
	expectEqual(t, "again in a full pool", s.acquire(t, pool, "a"), acquiredSlot(0))
	expectEqual(t, "holders", s.slotHolders(t, pool), map[int]string{0: "a", 1: "b"})
}

func (s *redisSemaphore) testBatch(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 3)
	s.acquire(t, pool, "old")
	expectEqual(t, "outcomes in order", s.acquireAll(t, pool, "a", "old", "b", "a", "c", "b"), []slots.Acquisition{
		acquiredSlot(1), acquiredSlot(0), acquiredSlot(2), acquiredSlot(1), {Status: slots.StatusFull}, acquiredSlot(2),
	})
	expectEqual(t, "freed", s.release(t, pool, "b", "nobody", "old"), []bool{true, false, true})
	expectEqual(t, "holders", s.slotHolders(t, pool), map[int]string{1: "a"})
	if got, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, nil); len(got) != 0 || err != nil {
		t.Errorf("empty batch: %v, %v", got, err)
	}
	if got, _, err := s.Release(t.Context(), pool, slots.Pace{}, nil); len(got) != 0 || err != nil {
		t.Errorf("empty release: %v, %v", got, err)
	}
}

func (s *redisSemaphore) testLargeBatch(t *testing.T) {
	t.Parallel()
	s.skipIfSlowInLua(t)
	const n = 1203 // more than fits into one call
	pool := s.restorePool(t, n-1)
	leases := numberedNames("l", 0, n)
	for i, a := range s.acquireAll(t, pool, leases...) {
		if want := i < n-1; (a.Status == slots.StatusAcquired) != want || want && a.Slot != i {
			t.Fatalf("request %d: %+v", i, a)
		}
	}
	freed := s.release(t, pool, leases...)
	if i := slices.Index(freed, false); len(freed) != n || i != n-1 {
		t.Errorf("%d of %d answers, the first false at %d", len(freed), n, i)
	}
}

func (s *redisSemaphore) testWholeLeaseID(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 2)
	s.acquireAll(t, pool, "812.1.beef", "812.2.cafe")
	expectEqual(t, "parts and strangers", s.release(t, pool, "812.1", "812", "812.1.beefbeef", "812.1.BEEF", "00000", "0", "dev:812.1.beef"),
		make([]bool, 7))
	expectEqual(t, "holders", s.slotHolders(t, pool), map[int]string{0: "812.1.beef", 1: "812.2.cafe"})
}

func (s *redisSemaphore) testDoubleRelease(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 1)
	s.acquire(t, pool, "a")
	expectEqual(t, "first", s.release(t, pool, "a"), []bool{true})
	expectEqual(t, "second", s.release(t, pool, "a"), []bool{false})
	s.acquire(t, pool, "b")
	expectEqual(t, "third, with a stranger in the slot", s.release(t, pool, "a"), []bool{false})
	expectEqual(t, "holders", s.slotHolders(t, pool), map[int]string{0: "b"})
}

func (s *redisSemaphore) testExpiredHoldersCount(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 1)
	_, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, newRequests(time.Millisecond, "a"))
	must.Succeed(t, err)
	await.True(t, "the lease to end", func() bool { return s.readSnapshot(t, pool).Leases[0].Remaining < 0 })
	if got := s.acquire(t, pool, "b"); got.Status != slots.StatusFull {
		t.Errorf("beside an expired holder: %+v, want full", got)
	}
	expectEqual(t, "release of an expired holder", s.release(t, pool, "a"), []bool{true})
	expectEqual(t, "after it", s.acquire(t, pool, "b"), acquiredSlot(0))
}

func (s *redisSemaphore) testUnknownPool(t *testing.T) {
	t.Parallel()
	pool, ctx := t.Name(), t.Context()
	expectEqual(t, "acquire", s.acquireAll(t, pool, "a", "b"), make([]slots.Acquisition, 2))
	expectEqual(t, "release", s.release(t, pool, "a", "b"), make([]bool, 2))
	expectEqual(t, "snapshot", s.readSnapshot(t, pool), slots.Snapshot{})
	if changed, err := s.Configure(ctx, pool, slots.Config{Capacity: 5, Version: 9}); changed || !errors.Is(err, slots.ErrUnknownPool) {
		t.Errorf("configure: %v, %v", changed, err)
	}
	if _, err := s.Adopt(ctx, pool, newHoldings("a", 1)); !errors.Is(err, slots.ErrUnknownPool) {
		t.Errorf("adopt: %v", err)
	}
	for _, key := range slots.Keys(pool) {
		if n, err := s.client.Exists(ctx, key).Result(); n != 0 || err != nil {
			t.Errorf("%s was written (%v)", key, err)
		}
	}
}

func (s *redisSemaphore) testCapacityZero(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 0)
	expectEqual(t, "acquire", s.acquire(t, pool, "a"), slots.Acquisition{Status: slots.StatusFull})
	expectEqual(t, "snapshot", s.readSnapshot(t, pool), slots.Snapshot{PoolKnown: true, Version: 1})
	s.configure(t, pool, 1, 2)
	expectEqual(t, "raised", s.acquire(t, pool, "a"), acquiredSlot(0))
	s.configure(t, pool, 0, 3)
	if got := s.acquire(t, pool, "b"); got.Status != slots.StatusFull {
		t.Errorf("lowered to 0: %+v", got)
	}
	expectEqual(t, "holder stays", s.slotHolders(t, pool), map[int]string{0: "a"})
	expectEqual(t, "and may go", s.release(t, pool, "a"), []bool{true})
	if got := s.acquire(t, pool, "b"); got.Status != slots.StatusFull {
		t.Errorf("capacity 0, empty: %+v", got)
	}
}

func (s *redisSemaphore) testSnapshot(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 12)
	s.acquireAll(t, pool, numberedNames("l", 0, 12)...)
	s.release(t, pool, "l.3")
	var want []slots.Lease
	for i, id := range numberedNames("l", 0, 12) {
		if i != 3 {
			want = append(want, slots.Lease{ID: id, Device: "dev:" + id, Slot: i})
		}
	}
	got := s.readSnapshot(t, pool)
	expectEqual(t, "snapshot", got, slots.Snapshot{PoolKnown: true, Capacity: 12, Version: 1, Leases: want})
	for _, l := range got.Leases {
		if l.Remaining > 300*time.Second || l.Remaining < 200*time.Second || l.Age < 0 || l.Age > 100*time.Second ||
			time.Since(l.Acquired).Abs() > 100*time.Second || l.Age+l.Remaining != 300*time.Second {
			t.Errorf("times of %s: acquired %s, age %s, %s left", l.ID, l.Acquired, l.Age, l.Remaining)
		}
	}
}

func (s *redisSemaphore) testInvalid(t *testing.T) {
	t.Parallel()
	pool, ctx := s.restorePool(t, 3), t.Context()
	acquire := func(pool string, r slots.Request) func() error {
		return func() error { _, _, err := s.Acquire(ctx, pool, slots.Pace{}, []slots.Request{r}); return err }
	}
	configure := func(capacity int, version int64) func() error {
		return func() error {
			_, err := s.Configure(ctx, pool, slots.Config{Capacity: capacity, Version: version})
			return err
		}
	}
	restore := func(h ...slots.LedgerGrant) func() error {
		return func() error { _, err := s.Restore(ctx, pool, slots.Config{}, h); return err }
	}
	for name, call := range map[string]func() error{
		"no pool":          acquire("", newRequest("d", slots.Want{Lease: "a", TTL: time.Second})),
		"hash tag":         acquire("a}b", newRequest("d", slots.Want{Lease: "a", TTL: time.Second})),
		"no lease":         acquire(pool, newRequest("d", slots.Want{TTL: time.Second})),
		"no device":        acquire(pool, newRequest("", slots.Want{Lease: "a", TTL: time.Second})),
		"separator":        acquire(pool, newRequest("d|e", slots.Want{Lease: "a", TTL: time.Second})),
		"no ttl":           acquire(pool, newRequest("d", slots.Want{Lease: "a"})),
		"no task":          acquire(pool, newRequest("d")),
		"too many tasks":   acquire(pool, newRequest("d", make([]slots.Want, slots.MaxWants+1)...)),
		"batch":            acquire(pool, newRequest("d", slots.Want{Lease: "a", TTL: time.Second, Batch: -1})),
		"task":             acquire(pool, newRequest("d", slots.Want{Lease: "a", TTL: time.Second, Task: 1<<53 + 1})),
		"weight":           acquire(pool, newRequest("d", slots.Want{Lease: "a", TTL: time.Second, Weight: -1})),
		"priority":         acquire(pool, newRequest("d", slots.Want{Lease: "a", TTL: time.Second, Priority: 1 << 31})),
		"holder's batch":   restore(slots.LedgerGrant{Lease: "a", Device: "d", Batch: -1}),
		"capacity":         configure(slots.MaxCapacity+1, 5),
		"negative":         configure(-1, 5),
		"version":          configure(1, 1<<53+1),
		"slot":             restore(slots.LedgerGrant{Lease: "a", Device: "d", Slot: slots.MaxCapacity}),
		"slot twice":       restore(slots.LedgerGrant{Lease: "a", Device: "d"}, slots.LedgerGrant{Lease: "b", Device: "d"}),
		"lease twice":      restore(slots.LedgerGrant{Lease: "a", Device: "d"}, slots.LedgerGrant{Lease: "a", Device: "d", Slot: 1}),
		"holder separator": restore(slots.LedgerGrant{Lease: "a|", Device: "d"}),
	} {
		if err := call(); !errors.Is(err, slots.ErrInvalid) || errors.Is(err, slots.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	expectEqual(t, "untouched", s.readSnapshot(t, pool), slots.Snapshot{PoolKnown: true, Capacity: 3, Version: 1})
}

// testConcurrentCap lets many clients compete for the few slots of a pool. The test itself counts the holders. Their number must never
// exceed the capacity.
func (s *redisSemaphore) testConcurrentCap(t *testing.T) {
	t.Parallel()
	const capacity, clients, rounds = 5, 12, 10
	pool := s.restorePool(t, capacity)
	var mu sync.Mutex
	inside := map[int]string{}
	granted := 0
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for _, lease := range numberedNames(fmt.Sprint(c), 0, rounds) {
				out, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, newRequests(time.Minute, lease))
				if err != nil {
					t.Error(err)
					return
				}
				if out[0].Status != slots.StatusAcquired {
					continue
				}
				mu.Lock()
				if other, taken := inside[out[0].Slot]; taken || len(inside) >= capacity {
					t.Errorf("slot %d given to %s beside %s, %d inside", out[0].Slot, lease, other, len(inside))
				}
				inside[out[0].Slot] = lease
				granted++
				mu.Unlock()
				mu.Lock()
				delete(inside, out[0].Slot)
				mu.Unlock()
				if freed, _, err := s.Release(t.Context(), pool, slots.Pace{}, []string{lease}); err != nil || !freed[0] {
					t.Errorf("release %s: %v, %v", lease, freed, err)
				}
			}
		})
	}
	wg.Wait()
	if granted == 0 {
		t.Error("nothing was granted")
	}
	if got := len(s.freeSlots(t, pool)); got != capacity {
		t.Errorf("%d free at the end, want %d", got, capacity)
	}
}
