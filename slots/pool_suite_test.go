package slots_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// This file has the cases of TestContract that concern whole pools: Configure, Restore, Adopt and Forget.

func (s *redisSemaphore) testMaxCapacity(t *testing.T) {
	t.Parallel()
	s.skipIfSlowInLua(t)
	pool := s.restorePool(t, slots.MaxCapacity, slots.LedgerGrant{Lease: "z", Device: "d", Slot: slots.MaxCapacity - 1, Remaining: time.Minute})
	s.configure(t, pool, 10, 2)
	s.configure(t, pool, slots.MaxCapacity, 3)
	if got := len(s.freeSlots(t, pool)); got != slots.MaxCapacity-1 {
		t.Errorf("%d free, want %d", got, slots.MaxCapacity-1)
	}
}

// testLowerWhileHeld lowers the capacity of a pool from 60 to 40 while the slots 20 to 59 are held.
func (s *redisSemaphore) testLowerWhileHeld(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 60)
	s.acquireAll(t, pool, numberedNames("l", 0, 60)...)
	s.release(t, pool, numberedNames("l", 0, 20)...)
	if !s.configure(t, pool, 40, 2) {
		t.Fatal("not lowered")
	}
	if got := len(s.slotHolders(t, pool)); got != 40 {
		t.Fatalf("%d held after lowering, want all 40", got)
	}
	if got := s.acquire(t, pool, "early"); got.Status != slots.StatusFull {
		t.Errorf("40 held of 40: %+v, want full", got)
	}
	s.release(t, pool, "l.50")
	expectEqual(t, "39 held of 40", s.acquire(t, pool, "a"), acquiredSlot(0))
	s.release(t, pool, numberedNames("l", 20, 60)...)
	if got := len(s.freeSlots(t, pool)); got != 39 {
		t.Errorf("%d free with one held of 40", got)
	}
	for i, a := range s.acquireAll(t, pool, numberedNames("m", 1, 40)...) {
		if a != acquiredSlot(i+1) {
			t.Fatalf("request %d after all left: %+v", i, a)
		}
	}
	if got := s.acquire(t, pool, "late"); got.Status != slots.StatusFull {
		t.Errorf("40 held again: %+v, want full", got)
	}
}

func (s *redisSemaphore) testRaise(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 2)
	s.acquireAll(t, pool, "a", "b")
	s.configure(t, pool, 4, 2)
	expectEqual(t, "raised", s.acquireAll(t, pool, "c", "d", "e"), []slots.Acquisition{acquiredSlot(2), acquiredSlot(3), {Status: slots.StatusFull}})
	// Next, the capacity is lowered and raised again while slots above the lowered capacity are held. Each such slot must count once.
	s.configure(t, pool, 1, 3)
	s.release(t, pool, "b")
	s.configure(t, pool, 5, 4)
	expectEqual(t, "lowered and raised", s.acquireAll(t, pool, "f", "g", "h"), []slots.Acquisition{acquiredSlot(1), acquiredSlot(4), {Status: slots.StatusFull}})
}

func (s *redisSemaphore) testStaleVersion(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 5)
	for _, step := range []struct {
		capacity int
		version  int64
		changed  bool
		want     int
	}{{6, 7, true, 6}, {9, 7, false, 6}, {9, 6, false, 6}, {4, 8, true, 4}, {5, 1 << 53, true, 5}} {
		if got := s.configure(t, pool, step.capacity, step.version); got != step.changed {
			t.Errorf("version %d: changed %v, want %v", step.version, got, step.changed)
		}
		if got := s.readSnapshot(t, pool).Capacity; got != step.want || len(s.freeSlots(t, pool)) != step.want {
			t.Errorf("after version %d: capacity %d, want %d", step.version, got, step.want)
		}
	}
	if got := s.readSnapshot(t, pool).Version; got != 1<<53 {
		t.Errorf("version %d", got)
	}
}

func (s *redisSemaphore) testRestoreUnknownOnly(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 5, newHoldings("a", 2)...)
	restored, err := s.Restore(t.Context(), pool, slots.Config{Capacity: 9, Version: 9}, newHoldings("b", 3))
	if restored || err != nil {
		t.Fatalf("into a known pool: %v, %v", restored, err)
	}
	expectEqual(t, "untouched", s.readSnapshot(t, pool), slots.Snapshot{PoolKnown: true, Capacity: 5, Version: 1, Leases: []slots.Lease{
		{ID: "a.0", Device: "dev:a.0", Slot: 0}, {ID: "a.1", Device: "dev:a.1", Slot: 1},
	}})
	expectEqual(t, "next", s.acquire(t, pool, "n"), acquiredSlot(2))
}

// restoreChunk sends one chunk of a restore of the pool by running lua/restore.lua.
func (s *redisSemaphore) restoreChunk(t *testing.T, pool, id string, capacity, offset int, last bool, holders []slots.LedgerGrant) int {
	t.Helper()
	got, err := slots.RestoreChunk(t.Context(), s.client, pool, id, slots.Config{Capacity: capacity, Version: 1}, offset, last, holders)
	must.Succeed(t, err)
	return got
}

func (s *redisSemaphore) testRestoreClearsRemains(t *testing.T) {
	t.Parallel()
	pool := t.Name()
	s.restoreChunk(t, pool, "crashed", 5, 0, false, newHoldings("stale", 3))
	expectEqual(t, "half restored", s.acquire(t, pool, "x"), slots.Acquisition{})
	expectEqual(t, "half restored", s.readSnapshot(t, pool), slots.Snapshot{})
	s.restore(t, pool, slots.Config{Capacity: 5, Version: 1}, newHoldings("a", 1)...)
	expectEqual(t, "holders", s.slotHolders(t, pool), map[int]string{0: "a.0"})
	expectEqual(t, "next", s.acquire(t, pool, "n"), acquiredSlot(1))
	fields, err := s.client.HKeys(t.Context(), "slots:{"+pool+"}:config").Result()
	slices.Sort(fields)
	if want := []string{"call", "capacity", "version"}; err != nil || !slices.Equal(fields, want) {
		t.Errorf("config has %v (%v), want %v", fields, err, want)
	}
}

func (s *redisSemaphore) testChunkedRestore(t *testing.T) {
	t.Parallel()
	s.skipIfSlowInLua(t)
	const n = 1203
	holders := newHoldings("r", n)
	pool := s.restorePool(t, n+1, holders...)
	check := func(what string) {
		t.Helper()
		got := s.slotHolders(t, pool)
		for _, h := range holders {
			if got[h.Slot] != h.Lease {
				t.Fatalf("%s: slot %d is held by %q, want %q", what, h.Slot, got[h.Slot], h.Lease)
			}
		}
	}
	check("restored")
	expectEqual(t, "next", s.acquireAll(t, pool, "n", "m"), []slots.Acquisition{acquiredSlot(n), {Status: slots.StatusFull}})
	s.release(t, pool, numberedNames("r", 100, n)...)
	adopted, err := s.Adopt(t.Context(), pool, holders)
	if err != nil || len(adopted) != n || slices.Contains(adopted, false) {
		t.Fatalf("adopt: %d answers, %v", len(adopted), err)
	}
	check("adopted")
}

func (s *redisSemaphore) testInterleavedRestores(t *testing.T) {
	t.Parallel()
	pool := t.Name()
	a, b := newHoldings("a", 4), newHoldings("b", 4)
	step := func(what, id string, offset int, last bool, h []slots.LedgerGrant, want int) {
		t.Helper()
		if got := s.restoreChunk(t, pool, id, 5, offset, last, h); got != want {
			t.Fatalf("%s: %d, want %d", what, got, want)
		}
	}
	step("a begins", "a", 0, false, a[:2], 1)
	step("b takes over", "b", 0, false, b[:2], 1)
	step("a goes on", "a", 2, true, a[2:], 0)
	expectEqual(t, "in between", s.readSnapshot(t, pool), slots.Snapshot{})
	step("b's first chunk arrives late again", "b", 0, false, b[:2], 1)
	step("b skips a chunk", "b", 3, true, b[3:], 0)
	step("b ends", "b", 2, true, b[2:], 1)
	step("b's last chunk arrives late again", "b", 2, true, b[2:], 1)
	step("a's first chunk arrives late", "a", 0, false, a[:2], 0)
	expectEqual(t, "holders", s.slotHolders(t, pool), map[int]string{0: "b.0", 1: "b.1", 2: "b.2", 3: "b.3"})
	expectEqual(t, "next", s.acquire(t, pool, "n"), acquiredSlot(4))
}

func (s *redisSemaphore) testRestoreAboveCapacity(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 3, slots.LedgerGrant{Lease: "high", Device: "d", Slot: 7, Remaining: time.Minute},
		slots.LedgerGrant{Lease: "low", Device: "d", Slot: 1, Remaining: -time.Minute})
	expectEqual(t, "room for one", s.acquireAll(t, pool, "a", "b"), []slots.Acquisition{acquiredSlot(0), {Status: slots.StatusFull}})
	s.release(t, pool, "high")
	expectEqual(t, "room again", s.acquireAll(t, pool, "b", "c"), []slots.Acquisition{acquiredSlot(2), {Status: slots.StatusFull}})
}

func (s *redisSemaphore) testAdopt(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 4)
	s.acquireAll(t, pool, "a", "b")
	adopt := func(h ...slots.LedgerGrant) []bool {
		t.Helper()
		out, err := s.Adopt(t.Context(), pool, h)
		must.Succeed(t, err)
		return out
	}
	expectEqual(t, "adopted", adopt(
		slots.LedgerGrant{Lease: "c", Device: "dc", Slot: 2, Remaining: time.Hour, Age: time.Minute}, // slot 2 is free, so this grant gets it
		slots.LedgerGrant{Lease: "x", Device: "dx", Slot: 1, Remaining: time.Hour},                   // this grant is refused, because lease b holds slot 1
		slots.LedgerGrant{Lease: "a", Device: "dev:a", Slot: 0, Remaining: 2 * time.Hour},            // lease a holds slot 0 already
	), []bool{true, false, true})
	got := s.readSnapshot(t, pool).Leases
	expectEqual(t, "leases", got, []slots.Lease{
		{ID: "a", Device: "dev:a", Slot: 0}, {ID: "b", Device: "dev:b", Slot: 1}, {ID: "c", Device: "dc", Slot: 2},
	})
	if r := got[0].Remaining; r < 119*time.Minute || r > 2*time.Hour {
		t.Errorf("refreshed: %s left, want 2 h", r)
	}
	if r := got[1].Remaining; r > 300*time.Second {
		t.Errorf("refused, but it changed b: %s left", r)
	}
	if c := got[2]; c.Remaining < 59*time.Minute || c.Age < time.Minute || c.Age > 2*time.Minute {
		t.Errorf("put: %s left, age %s", c.Remaining, c.Age)
	}
	expectEqual(t, "moved", adopt(slots.LedgerGrant{Lease: "c", Device: "dc", Slot: 3, Remaining: time.Hour}), []bool{true})
	expectEqual(t, "holders", s.slotHolders(t, pool), map[int]string{0: "a", 1: "b", 3: "c"})
	expectEqual(t, "the slot it left", s.acquire(t, pool, "d"), acquiredSlot(2))
	expectEqual(t, "adopted ones are released", s.release(t, pool, "c"), []bool{true})
}

func (s *redisSemaphore) testAdoptAboveCapacity(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 2)
	s.acquireAll(t, pool, "a", "b")
	got, err := s.Adopt(t.Context(), pool, []slots.LedgerGrant{{Lease: "high", Device: "d", Slot: 5, Remaining: time.Minute}})
	if err != nil || !got[0] {
		t.Fatal(got, err)
	}
	s.release(t, pool, "a")
	if a := s.acquire(t, pool, "c"); a.Status != slots.StatusFull {
		t.Errorf("2 held of 2: %+v", a)
	}
	s.release(t, pool, "high")
	expectEqual(t, "1 held of 2", s.acquire(t, pool, "c"), acquiredSlot(0))
	if free := s.freeSlots(t, pool); len(free) != 0 {
		t.Errorf("free: %v", free)
	}
}

func (s *redisSemaphore) testForget(t *testing.T) {
	t.Parallel()
	pool := s.restorePool(t, 3, newHoldings("a", 2)...)
	for range 2 {
		must.Succeed(t, s.Forget(t.Context(), pool))
		expectEqual(t, "forgotten", s.readSnapshot(t, pool), slots.Snapshot{})
	}
	expectEqual(t, "acquire", s.acquire(t, pool, "x"), slots.Acquisition{})
}

// testLostKey checks a pool of which Redis has lost some keys. It must never grant more slots than its capacity.
func (s *redisSemaphore) testLostKey(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"free", "holder", "lease", "config", "holder lease"} {
		pool := t.Name() + "." + key
		s.restore(t, pool, slots.Config{Capacity: 3, Version: 1}, newHoldings("a", 2)...)
		for name := range strings.FieldsSeq(key) {
			must.Succeed(t, s.client.Del(t.Context(), "slots:{"+pool+"}:"+name).Err())
		}
		expectEqual(t, key+" lost: acquire", s.acquireAll(t, pool, "x", "a.0"), make([]slots.Acquisition, 2))
		expectEqual(t, key+" lost: release", s.release(t, pool, "a.0"), []bool{false})
		expectEqual(t, key+" lost: snapshot", s.readSnapshot(t, pool), slots.Snapshot{})
		s.restore(t, pool, slots.Config{Capacity: 3, Version: 1}, newHoldings("b", 1)...)
		expectEqual(t, key+" restored", s.acquireAll(t, pool, "x", "y", "z"),
			[]slots.Acquisition{acquiredSlot(1), acquiredSlot(2), {Status: slots.StatusFull}})
	}
}
