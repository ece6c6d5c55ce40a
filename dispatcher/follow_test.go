package dispatcher_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/upkeep"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// failingSemaphore is a semaphore that a test can make unavailable.
type failingSemaphore struct {
	dispatcher.Semaphore
	isDown        atomic.Bool
	hangingPool   atomic.Value // the pool whose calls do not return
	failingPool   atomic.Value // the pool whose calls fail
	outages       atomic.Int64
	snapshotCalls atomic.Int64
}

func (s *failingSemaphore) Snapshot(ctx context.Context, pool string) (slots.Snapshot, error) {
	s.snapshotCalls.Add(1)
	if s.hangingPool.Load() == pool {
		<-ctx.Done()
		return slots.Snapshot{}, slots.ErrUnavailable
	}
	if s.isDown.Load() || s.failingPool.Load() == pool {
		return slots.Snapshot{}, slots.ErrUnavailable
	}
	return s.Semaphore.Snapshot(ctx, pool)
}

func (s *failingSemaphore) Outages() int64 { return s.outages.Load() }

// forgetfulStore is a ledger that returns no changed pools while forgets is true.
type forgetfulStore struct {
	dispatcher.Store
	forgets   atomic.Bool
	onlyPool  atomic.Value // if set, only changes of this pool are returned
	poolReads atomic.Int64 // number of calls of Pool
}

func (f *forgetfulStore) Pool(ctx context.Context, name string) (store.Pool, error) {
	f.poolReads.Add(1)
	return f.Store.Pool(ctx, name)
}

func (f *forgetfulStore) ChangedPools(ctx context.Context, within time.Duration) ([]store.Pool, error) {
	if f.forgets.Load() {
		return nil, nil
	}
	all, err := f.Store.ChangedPools(ctx, within)
	only, some := f.onlyPool.Load().(string)
	return slices.DeleteFunc(all, func(p store.Pool) bool { return some && p.Name != only }), err
}

func newFollowBench(t *testing.T) (*testBench, *forgetfulStore, *failingSemaphore) {
	t.Helper()
	ledger, semaphore := &forgetfulStore{}, &failingSemaphore{}
	b := newServerBench(t, func(c *dispatcher.Config) {
		ledger.Store, semaphore.Semaphore = c.Store, c.Semaphore
		c.Store, c.Semaphore = ledger, semaphore
	})
	return b, ledger, semaphore
}

func (b *testBench) followPools() upkeep.ReconcileResult {
	b.t.Helper()
	r, err := b.Upkeep.FollowChanges(b.ctx)
	b.must(err)
	return r
}

func (b *testBench) expectCapacity(pool string, want int) {
	b.t.Helper()
	snapshot, err := b.semaphore.Snapshot(b.ctx, pool)
	if err != nil || !snapshot.PoolKnown || snapshot.Capacity != want {
		b.t.Errorf("pool %s: %+v, %v; want a capacity of %d", pool, snapshot, err, want)
	}
}

// TestFollowTellsOfChanges checks a change of a pool that is stored in the ledger but not yet in Redis. One pass of FollowChanges must
// write the change to Redis, whichever replica made it.
func TestFollowTellsOfChanges(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		b.createBatch("a", nil, "d1", "d2", "d3")
		if r := b.followPools(); r.Restored != 1 {
			b.t.Errorf("followed %+v, want the new pool restored", r)
		}
		b.expectGrant("d1")
		b.expectReason("d2", `{"id":"1"}`, devices.ReasonFull)
		b.createPool("a", 2, minute) // the change is only in the ledger
		b.expectReason("d2", `{"id":"2"}`, devices.ReasonFull)
		if r := b.followPools(); r.Resized != 1 {
			b.t.Errorf("followed %+v, want one resized", r)
		}
		b.expectGrant("d2")
		b.createPool("a", 0, minute)
		b.followPools()
		b.expectCapacity("a", 0)
		b.createPool("a", 3, 2*minute)
		b.followPools()
		if g := b.expectGrant("d3"); g.LeaseMS <= minute.Milliseconds() {
			b.t.Errorf("lease of %d ms, want the new one", g.LeaseMS)
		}
	})
}

// TestFollowAsksNothingOfAKnownChange checks a change of a pool that the semaphore already has: FollowChanges must make no further calls
// for it.
func TestFollowAsksNothingOfAKnownChange(t *testing.T) {
	t.Parallel()
	b, _, semaphore := newFollowBench(t)
	b.createPool("a", 1, minute)
	b.followPools()
	semaphore.snapshotCalls.Store(0)
	for range 5 {
		b.followPools()
	}
	if asked := semaphore.snapshotCalls.Load(); asked != 0 {
		t.Errorf("asked the semaphore %d times about a change it knows", asked)
	}
}

// TestFollowTellsLaterWhatItCouldNotTell checks a change of a pool that could not be written to Redis. A later pass of FollowChanges must
// write it, even if the change is no longer among the recent changes.
func TestFollowTellsLaterWhatItCouldNotTell(t *testing.T) {
	t.Parallel()
	b, ledger, semaphore := newFollowBench(t)
	b.createPool("a", 1, minute)
	b.followPools()
	b.createPool("a", 2, minute)
	semaphore.isDown.Store(true)
	if _, err := b.Upkeep.FollowChanges(b.ctx); err == nil {
		t.Error("followed without a semaphore")
	}
	ledger.forgets.Store(true)
	semaphore.isDown.Store(false)
	b.followPools()
	b.expectCapacity("a", 2)
}

// TestFollowReconcilesOnceAfterAnOutage checks a semaphore (Redis) that failed and answers again: FollowChanges must reconcile each pool
// exactly once.
func TestFollowReconcilesOnceAfterAnOutage(t *testing.T) {
	t.Parallel()
	b, ledger, semaphore := newFollowBench(t)
	b.createPool("a", 3, minute)
	b.createPool("b", 3, minute)
	b.createBatch("a", nil, "d1")
	b.followPools()
	g := b.expectGrant("d1")
	ledger.forgets.Store(true)
	semaphore.outages.Add(1)
	semaphore.isDown.Store(true)
	if _, err := b.Upkeep.FollowChanges(b.ctx); err == nil {
		t.Error("reconciled without a semaphore")
	}
	b.redis.FlushDB(b.ctx)
	semaphore.isDown.Store(false)
	if r := b.followPools(); r.Restored != 2 {
		t.Errorf("followed %+v, want both pools restored", r)
	}
	b.expectHeld(1)
	semaphore.snapshotCalls.Store(0)
	b.followPools()
	if asked := semaphore.snapshotCalls.Load(); asked != 0 {
		t.Errorf("reconciled again without another outage, for task %d", g.ID)
	}
}

// After an outage of some Redis nodes, FollowChanges must reconcile each pool once, as soon as the semaphore answers for this pool. While
// one node still does not answer, the pools of the other nodes must not be reconciled again, and the ledger must not be read.
func TestFollowReconcilesWhatAnswers(t *testing.T) {
	t.Parallel()
	b, ledger, semaphore := newFollowBench(t)
	for _, pool := range []string{"a", "b", "c"} {
		b.createPool(pool, 3, minute)
	}
	b.followPools()
	ledger.forgets.Store(true)
	b.redis.FlushDB(b.ctx)
	semaphore.failingPool.Store("b")
	semaphore.outages.Add(1)
	if r, err := b.Upkeep.FollowChanges(b.ctx); err == nil || r.Restored != 2 {
		t.Errorf("followed %+v, %v; want pools a and c restored", r, err)
	}
	semaphore.snapshotCalls.Store(0)
	ledger.poolReads.Store(0)
	if r, err := b.Upkeep.FollowChanges(b.ctx); err == nil || r.Restored != 0 || semaphore.snapshotCalls.Load() != 1 || ledger.poolReads.Load() != 0 {
		t.Errorf("followed %+v, %v, asked for %d pools, read %d; want one asked for", r, err, semaphore.snapshotCalls.Load(), ledger.poolReads.Load())
	}
	semaphore.failingPool.Store("")
	if r := b.followPools(); r.Restored != 1 {
		t.Errorf("followed %+v, want pool b restored", r)
	}
}

// TestFollowTellsWhileAPoolHangs checks a change of pool a while the Redis node of another pool does not answer. The change must be
// written, although calls for the other pool use up the time of the pass.
func TestFollowTellsWhileAPoolHangs(t *testing.T) {
	t.Parallel()
	b, ledger, semaphore := newFollowBench(t)
	b.createPool("a", 1, minute)
	b.createPool("b", 1, minute)
	b.followPools()
	ledger.forgets.Store(true) // pool a is no longer among the recent changes
	b.followPools()
	ledger.forgets.Store(false)
	ledger.onlyPool.Store("b")
	b.createPool("b", 2, minute)
	semaphore.hangingPool.Store("a")
	semaphore.outages.Add(1)
	ctx, cancel := context.WithTimeout(b.ctx, 3*time.Second)
	defer cancel()
	if r, err := b.Upkeep.FollowChanges(ctx); err == nil || r.Resized != 1 {
		t.Errorf("followed %+v, %v; want pool b resized, and no answer of pool a", r, err)
	}
}

// TestFollowForgetsDeletedPools checks a change of a pool that could not be written to Redis. If the pool is then deleted, FollowChanges
// must drop the change.
func TestFollowForgetsDeletedPools(t *testing.T) {
	t.Parallel()
	b, _, semaphore := newFollowBench(t)
	b.createPool("a", 1, minute)
	semaphore.isDown.Store(true)
	if _, err := b.Upkeep.FollowChanges(b.ctx); err == nil {
		t.Fatal("a semaphore that is silent was told of a change")
	}
	must.Succeed(t, b.store.DeletePool(b.ctx, "test", "a"))
	semaphore.isDown.Store(false)
	b.followPools()
}

// An operator deletes a pool at one replica. Every other replica must forget the pool and make no further calls for it.
func TestADeletedPoolLeavesEveryReplica(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	other := b.addParkingReplica()
	b.createPool("a", 1, minute)
	b.createPool("b", 1, minute)
	for _, d := range []*dispatcher.Dispatcher{b.Dispatcher, other} {
		_, err := d.Upkeep.Reconcile(b.ctx)
		must.Succeed(t, err)
		d.Waiters.Pools.RecordHoldTime("a", "", minute)
		d.Waiters.Pools.RecordWaitingDevice("a")
	}
	must.Succeed(t, b.store.DeletePool(b.ctx, "test", "a"))
	must.Succeed(t, b.Upkeep.ForgetPool(b.ctx, "a"))
	for _, d := range []*dispatcher.Dispatcher{b.Dispatcher, other} {
		b.awaitCondition("replica that knows pool b alone", func() bool { // a concurrent round may add pool a again
			_, err := d.Upkeep.Reconcile(b.ctx)
			must.Succeed(t, err)
			known := d.Waiters.Pools.NameSet()
			return len(known) == 1 && known["b"]
		})
	}
}
