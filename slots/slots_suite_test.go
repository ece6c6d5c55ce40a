package slots_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/slots"
)

// TestContract runs its cases on every kind of Redis. The cases share a server, and each case uses
// its own pool.
func TestContract(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *server) {
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

func (s *server) testCap(t *testing.T) {
	t.Parallel()
	const capacity = 60
	pool := s.poolOf(t, capacity)
	s.acquireAll(t, pool, names("l", 0, capacity-1)...)
	diff(t, "the last slot", s.acquire(t, pool, "last"), acquired(capacity-1))
	if got := s.acquire(t, pool, "one too many"); got.Status != slots.StatusFull {
		t.Errorf("above capacity: %+v, want full", got)
	}
	s.release(t, pool, "l.17")
	diff(t, "after a release", s.acquire(t, pool, "next"), acquired(17))
	if got := len(s.holders(t, pool)); got != capacity {
		t.Errorf("%d held, want %d", got, capacity)
	}
}

func (s *server) testLowestFirst(t *testing.T) {
	t.Parallel()
	s.slowInLua(t)
	pool := s.poolOf(t, 1200) // slot numbers of different length would be sorted wrongly without padding
	s.acquireAll(t, pool, names("l", 0, 1200)...)
	s.release(t, pool, "l.1100", "l.9", "l.101", "l.20")
	var got []int
	for _, a := range s.acquireAll(t, pool, "a", "b", "c", "d") {
		got = append(got, a.Slot)
	}
	diff(t, "slots", got, []int{9, 20, 101, 1100})
	s.release(t, pool, "b")
	diff(t, "as stored", s.freeMembers(t, pool), []string{"00020"})
}

func (s *server) testAcquireTwice(t *testing.T) {
	t.Parallel()
	pool := s.poolOf(t, 2)
	diff(t, "first", s.acquire(t, pool, "a"), acquired(0))
	diff(t, "again", s.acquire(t, pool, "a"), acquired(0))
	s.acquire(t, pool, "b")
	diff(t, "again in a full pool", s.acquire(t, pool, "a"), acquired(0))
	diff(t, "holders", s.holders(t, pool), map[int]string{0: "a", 1: "b"})
}

func (s *server) testBatch(t *testing.T) {
	t.Parallel()
	pool := s.poolOf(t, 3)
	s.acquire(t, pool, "old")
	diff(t, "outcomes in order", s.acquireAll(t, pool, "a", "old", "b", "a", "c", "b"), []slots.Acquisition{
		acquired(1), acquired(0), acquired(2), acquired(1), {Status: slots.StatusFull}, acquired(2),
	})
	diff(t, "freed", s.release(t, pool, "b", "nobody", "old"), []bool{true, false, true})
	diff(t, "holders", s.holders(t, pool), map[int]string{1: "a"})
	if got, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, nil); len(got) != 0 || err != nil {
		t.Errorf("empty batch: %v, %v", got, err)
	}
	if got, _, err := s.Release(t.Context(), pool, slots.Pace{}, nil); len(got) != 0 || err != nil {
		t.Errorf("empty release: %v, %v", got, err)
	}
}

func (s *server) testLargeBatch(t *testing.T) {
	t.Parallel()
	s.slowInLua(t)
	const n = 1203 // more than fits into one call
	pool := s.poolOf(t, n-1)
	leases := names("l", 0, n)
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

func (s *server) testWholeLeaseID(t *testing.T) {
	t.Parallel()
	pool := s.poolOf(t, 2)
	s.acquireAll(t, pool, "812.1.beef", "812.2.cafe")
	diff(t, "parts and strangers", s.release(t, pool, "812.1", "812", "812.1.beefbeef", "812.1.BEEF", "00000", "0", "dev:812.1.beef"),
		make([]bool, 7))
	diff(t, "holders", s.holders(t, pool), map[int]string{0: "812.1.beef", 1: "812.2.cafe"})
}

func (s *server) testDoubleRelease(t *testing.T) {
	t.Parallel()
	pool := s.poolOf(t, 1)
	s.acquire(t, pool, "a")
	diff(t, "first", s.release(t, pool, "a"), []bool{true})
	diff(t, "second", s.release(t, pool, "a"), []bool{false})
	s.acquire(t, pool, "b")
	diff(t, "third, with a stranger in the slot", s.release(t, pool, "a"), []bool{false})
	diff(t, "holders", s.holders(t, pool), map[int]string{0: "b"})
}

func (s *server) testExpiredHoldersCount(t *testing.T) {
	t.Parallel()
	pool := s.poolOf(t, 1)
	if _, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, requests(time.Millisecond, "a")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease to end", func() bool { return s.snapshot(t, pool).Leases[0].Remaining < 0 })
	if got := s.acquire(t, pool, "b"); got.Status != slots.StatusFull {
		t.Errorf("beside an expired holder: %+v, want full", got)
	}
	diff(t, "release of an expired holder", s.release(t, pool, "a"), []bool{true})
	diff(t, "after it", s.acquire(t, pool, "b"), acquired(0))
}

func (s *server) testUnknownPool(t *testing.T) {
	t.Parallel()
	pool, ctx := t.Name(), t.Context()
	diff(t, "acquire", s.acquireAll(t, pool, "a", "b"), make([]slots.Acquisition, 2))
	diff(t, "release", s.release(t, pool, "a", "b"), make([]bool, 2))
	diff(t, "snapshot", s.snapshot(t, pool), slots.Snapshot{})
	if changed, err := s.Configure(ctx, pool, slots.Config{Capacity: 5, Version: 9}); changed || !errors.Is(err, slots.ErrUnknownPool) {
		t.Errorf("configure: %v, %v", changed, err)
	}
	if _, err := s.Adopt(ctx, pool, holdings("a", 1)); !errors.Is(err, slots.ErrUnknownPool) {
		t.Errorf("adopt: %v", err)
	}
	for _, key := range slots.Keys(pool) {
		if n, err := s.client.Exists(ctx, key).Result(); n != 0 || err != nil {
			t.Errorf("%s was written (%v)", key, err)
		}
	}
}

func (s *server) testCapacityZero(t *testing.T) {
	t.Parallel()
	pool := s.poolOf(t, 0)
	diff(t, "acquire", s.acquire(t, pool, "a"), slots.Acquisition{Status: slots.StatusFull})
	diff(t, "snapshot", s.snapshot(t, pool), slots.Snapshot{Known: true, Version: 1})
	s.configure(t, pool, 1, 2)
	diff(t, "raised", s.acquire(t, pool, "a"), acquired(0))
	s.configure(t, pool, 0, 3)
	if got := s.acquire(t, pool, "b"); got.Status != slots.StatusFull {
		t.Errorf("lowered to 0: %+v", got)
	}
	diff(t, "holder stays", s.holders(t, pool), map[int]string{0: "a"})
	diff(t, "and may go", s.release(t, pool, "a"), []bool{true})
	if got := s.acquire(t, pool, "b"); got.Status != slots.StatusFull {
		t.Errorf("capacity 0, empty: %+v", got)
	}
}

func (s *server) testSnapshot(t *testing.T) {
	t.Parallel()
	pool := s.poolOf(t, 12)
	s.acquireAll(t, pool, names("l", 0, 12)...)
	s.release(t, pool, "l.3")
	var want []slots.Lease
	for i, id := range names("l", 0, 12) {
		if i != 3 {
			want = append(want, slots.Lease{ID: id, Device: "dev:" + id, Slot: i})
		}
	}
	got := s.snapshot(t, pool)
	diff(t, "snapshot", got, slots.Snapshot{Known: true, Capacity: 12, Version: 1, Leases: want})
	for _, l := range got.Leases {
		if l.Remaining > 300*time.Second || l.Remaining < 200*time.Second || l.Age < 0 || l.Age > 100*time.Second ||
			time.Since(l.Acquired).Abs() > 100*time.Second || l.Age+l.Remaining != 300*time.Second {
			t.Errorf("times of %s: acquired %s, age %s, %s left", l.ID, l.Acquired, l.Age, l.Remaining)
		}
	}
}

func (s *server) testInvalid(t *testing.T) {
	t.Parallel()
	pool, ctx := s.poolOf(t, 3), t.Context()
	acquire := func(pool string, r slots.Request) func() error {
		return func() error { _, _, err := s.Acquire(ctx, pool, slots.Pace{}, []slots.Request{r}); return err }
	}
	configure := func(capacity int, version int64) func() error {
		return func() error {
			_, err := s.Configure(ctx, pool, slots.Config{Capacity: capacity, Version: version})
			return err
		}
	}
	restore := func(h ...slots.Holding) func() error {
		return func() error { _, err := s.Restore(ctx, pool, slots.Config{}, h); return err }
	}
	for name, call := range map[string]func() error{
		"no pool":          acquire("", asking("d", slots.Want{Lease: "a", TTL: time.Second})),
		"hash tag":         acquire("a}b", asking("d", slots.Want{Lease: "a", TTL: time.Second})),
		"no lease":         acquire(pool, asking("d", slots.Want{TTL: time.Second})),
		"no device":        acquire(pool, asking("", slots.Want{Lease: "a", TTL: time.Second})),
		"separator":        acquire(pool, asking("d|e", slots.Want{Lease: "a", TTL: time.Second})),
		"no ttl":           acquire(pool, asking("d", slots.Want{Lease: "a"})),
		"no task":          acquire(pool, asking("d")),
		"too many tasks":   acquire(pool, asking("d", make([]slots.Want, slots.MaxWants+1)...)),
		"batch":            acquire(pool, asking("d", slots.Want{Lease: "a", TTL: time.Second, Batch: -1})),
		"task":             acquire(pool, asking("d", slots.Want{Lease: "a", TTL: time.Second, Task: 1<<53 + 1})),
		"weight":           acquire(pool, asking("d", slots.Want{Lease: "a", TTL: time.Second, Weight: -1})),
		"priority":         acquire(pool, asking("d", slots.Want{Lease: "a", TTL: time.Second, Priority: 1 << 31})),
		"holder's batch":   restore(slots.Holding{Lease: "a", Device: "d", Batch: -1}),
		"capacity":         configure(slots.MaxCapacity+1, 5),
		"negative":         configure(-1, 5),
		"version":          configure(1, 1<<53+1),
		"slot":             restore(slots.Holding{Lease: "a", Device: "d", Slot: slots.MaxCapacity}),
		"slot twice":       restore(slots.Holding{Lease: "a", Device: "d"}, slots.Holding{Lease: "b", Device: "d"}),
		"lease twice":      restore(slots.Holding{Lease: "a", Device: "d"}, slots.Holding{Lease: "a", Device: "d", Slot: 1}),
		"holder separator": restore(slots.Holding{Lease: "a|", Device: "d"}),
	} {
		if err := call(); !errors.Is(err, slots.ErrInvalid) || errors.Is(err, slots.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	diff(t, "untouched", s.snapshot(t, pool), slots.Snapshot{Known: true, Capacity: 3, Version: 1})
}

// testConcurrentCap lets many clients compete for few slots. The test itself counts the holders.
func (s *server) testConcurrentCap(t *testing.T) {
	t.Parallel()
	const capacity, clients, rounds = 5, 12, 10
	pool := s.poolOf(t, capacity)
	var mu sync.Mutex
	inside := map[int]string{}
	granted := 0
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for _, lease := range names(fmt.Sprint(c), 0, rounds) {
				out, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, requests(time.Minute, lease))
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
	if got := len(s.freeMembers(t, pool)); got != capacity {
		t.Errorf("%d free at the end, want %d", got, capacity)
	}
}
