package slots_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// callHistory is a random sequence of calls of the semaphore for a pool that no other test uses.
type callHistory struct {
	*redisSemaphore

	ctx  context.Context //nolint:containedctx // rapid's actions take none
	pool string
}

// runHistories runs check with random histories of calls. The short suite makes a few histories on one Redis. The long suite makes many on
// every kind of Redis.
func runHistories(t *testing.T, check func(t *rapid.T, h callHistory)) {
	t.Helper()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		s.skipIfSlowInLua(t)
		if testing.Short() && s.Cluster {
			t.Skip("long: a Cluster node runs the scripts as the Redis does; make test-long runs it")
		}
		var pools atomic.Int64
		rapid.Check(t, func(rt *rapid.T) {
			check(rt, callHistory{s, t.Context(), fmt.Sprintf("%s.%d", t.Name(), pools.Add(1))})
		})
	})
}

func (h callHistory) key(name string) string { return "slots:{" + h.pool + "}:" + name }

// knownSnapshot returns the snapshot of the pool. The test fails if Redis does not know the pool.
func (h callHistory) knownSnapshot(t *rapid.T) slots.Snapshot {
	snapshot, err := h.Snapshot(h.ctx, h.pool)
	if err != nil || !snapshot.PoolKnown {
		t.Fatal(snapshot, err)
	}
	return snapshot
}

// TestHistoriesAgreeWithAPlainModel makes random calls to pools without a queue. After each call, the semaphore must agree with a simple
// model.
func TestHistoriesAgreeWithAPlainModel(t *testing.T) {
	t.Parallel()
	runHistories(t, func(t *rapid.T, h callHistory) {
		m := &semaphoreMachine{callHistory: h}
		t.Repeat(map[string]func(*rapid.T){
			"":          m.check,
			"acquire":   m.acquire,
			"release":   m.release,
			"configure": m.configure,
			"adopt":     m.adopt,
			"wipe":      m.wipe,
			"restore":   m.restore,
		})
	})
}

// semaphoreMachine makes the calls to the semaphore. It also contains the plain model, which records the lease of each slot.
type semaphoreMachine struct {
	callHistory

	isKnown  bool
	capacity int
	version  int64
	holder   map[int]string
}

// leaseSlot returns the slot that the lease holds in the model. If the lease holds no slot, it returns -1.
func (m *semaphoreMachine) leaseSlot(lease string) int {
	for slot, l := range m.holder {
		if l == lease {
			return slot
		}
	}
	return -1
}

func (m *semaphoreMachine) modelAcquire(lease string) slots.Acquisition {
	switch slot := m.leaseSlot(lease); {
	case !m.isKnown:
		return slots.Acquisition{Status: slots.StatusUnknown}
	case slot >= 0:
		return slots.Acquisition{Status: slots.StatusAcquired, Slot: slot}
	case len(m.holder) >= m.capacity:
		return slots.Acquisition{Status: slots.StatusFull}
	}
	for slot := 0; ; slot++ {
		if m.holder[slot] == "" {
			m.holder[slot] = lease
			return slots.Acquisition{Status: slots.StatusAcquired, Slot: slot}
		}
	}
}

func (m *semaphoreMachine) acquire(t *rapid.T) {
	leases := rapid.SliceOfN(leaseGenerator(), 1, 4).Draw(t, "leases")
	got, _, err := m.Acquire(m.ctx, m.pool, slots.Pace{}, newRequests(time.Minute, leases...))
	must.Succeed(t, err)
	for i, lease := range leases {
		got[i].Position = 0
		if want := m.modelAcquire(lease); got[i] != want {
			t.Fatalf("acquire %s: %+v, want %+v", lease, got[i], want)
		}
	}
}

func (m *semaphoreMachine) release(t *rapid.T) {
	leases := rapid.SliceOfN(leaseGenerator(), 1, 4).Draw(t, "leases")
	got, _, err := m.Release(m.ctx, m.pool, slots.Pace{}, leases)
	must.Succeed(t, err)
	for i, lease := range leases {
		slot := m.leaseSlot(lease)
		if got[i] != (slot >= 0) {
			t.Fatalf("release %s: %v, but its slot is %d", lease, got[i], slot)
		}
		delete(m.holder, slot)
	}
}

func (m *semaphoreMachine) configure(t *rapid.T) {
	c := drawConfig(t)
	changed, err := m.Configure(m.ctx, m.pool, c)
	if (err != nil) == m.isKnown {
		t.Fatalf("configure %+v: %v with known %v", c, err, m.isKnown)
	}
	if want := m.isKnown && c.Version > m.version; changed != want {
		t.Fatalf("configure %+v over version %d: changed %v", c, m.version, changed)
	}
	if changed {
		m.capacity, m.version = c.Capacity, c.Version
	}
}

func (m *semaphoreMachine) adopt(t *rapid.T) {
	holders := drawHolders(t)
	got, err := m.Adopt(m.ctx, m.pool, holders)
	if (err != nil) == (m.isKnown || len(holders) == 0) {
		t.Fatalf("adopt: %v with known %v", err, m.isKnown)
	}
	if err != nil {
		return
	}
	for i, h := range holders {
		want := m.holder[h.Slot] == "" || m.holder[h.Slot] == h.Lease
		if got[i] != want {
			t.Fatalf("adopt %+v: %v with %q there", h, got[i], m.holder[h.Slot])
		}
		if want {
			delete(m.holder, m.leaseSlot(h.Lease))
			m.holder[h.Slot] = h.Lease
		}
	}
}

func (m *semaphoreMachine) wipe(t *rapid.T) {
	must.Succeed(t, m.Forget(m.ctx, m.pool))
	m.isKnown, m.capacity, m.version, m.holder = false, 0, 0, nil
}

func (m *semaphoreMachine) restore(t *rapid.T) {
	c, holders := drawConfig(t), drawHolders(t)
	restored, err := m.Restore(m.ctx, m.pool, c, holders)
	if err != nil || restored == m.isKnown {
		t.Fatalf("restore: %v, %v with known %v", restored, err, m.isKnown)
	}
	if !restored {
		return
	}
	m.isKnown, m.capacity, m.version, m.holder = true, c.Capacity, c.Version, map[int]string{}
	for _, h := range holders {
		m.holder[h.Slot] = h.Lease
	}
}

// check compares the snapshot of the semaphore with the model. It runs after every call.
func (m *semaphoreMachine) check(t *rapid.T) {
	got, err := m.Snapshot(m.ctx, m.pool)
	must.Succeed(t, err)
	if got.PoolKnown != m.isKnown || got.Capacity != m.capacity || got.Version != m.version {
		t.Fatalf("snapshot %+v, want known %v, capacity %d, version %d", got, m.isKnown, m.capacity, m.version)
	}
	holder := map[int]string{}
	for _, l := range got.Leases {
		holder[l.Slot] = l.ID
	}
	if !maps.Equal(holder, m.holder) || len(got.Leases) != len(m.holder) {
		t.Fatalf("holders %v, want %v", got.Leases, m.holder)
	}
	if !slices.IsSortedFunc(got.Leases, func(a, b slots.Lease) int { return a.Slot - b.Slot }) {
		t.Fatalf("not sorted: %v", got.Leases)
	}
}

// leaseGenerator draws the id of a lease from only a few ids, so that several calls often concern the same lease.
func leaseGenerator() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string { return fmt.Sprintf("%d.1.a", rapid.IntRange(0, 9).Draw(t, "lease")) })
}

func drawConfig(t *rapid.T) slots.Config {
	return slots.Config{
		Capacity: rapid.IntRange(0, 7).Draw(t, "capacity"),
		Version:  rapid.Int64Range(0, 12).Draw(t, "version"),
	}
}

func drawHolders(t *rapid.T) []slots.LedgerGrant {
	leases := rapid.SliceOfNDistinct(leaseGenerator(), 0, 5, rapid.ID).Draw(t, "leases")
	numbers := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8}).Draw(t, "slots")
	holders := make([]slots.LedgerGrant, len(leases))
	for i, lease := range leases {
		holders[i] = slots.LedgerGrant{Lease: lease, Device: "d", Slot: numbers[i], Remaining: time.Minute}
	}
	return holders
}
