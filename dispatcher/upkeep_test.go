package dispatcher_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

func TestALapsedLeaseIsReaped(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 2, minute)
		b.createPool("long", 2, minute)
		b.createBatch("a", func(in *store.Batch) { in.MaxAttempts = 2; in.RetryBackoff = 0 }, "d1")
		b.createBatch("long", nil, "d2")
		b.expectGrant("d2")
		if r := b.reap(); r.Retried+r.Ended != 0 {
			b.t.Errorf("reaped %+v before the lease ended", r)
		}
		g := b.expectGrant("d1")
		b.endAllLeases()
		if r := b.reap(); r.Retried != 1 || r.Ended != 0 {
			b.t.Errorf("reaped %+v, want one retried", r)
		}
		b.expectHeld(0)
		if got := b.readTask(g.ID); got.State != store.Pending || got.Attempts != 1 {
			b.t.Errorf("task %+v, want pending after one attempt", got)
		}
		second := b.expectGrant("d1")
		if second.Attempt != 2 || second.Token <= g.Token || second.ID != g.ID {
			b.t.Errorf("second attempt %+v after %+v", second, g)
		}
		b.endAllLeases()
		if r := b.reap(); r.Ended != 1 {
			b.t.Errorf("reaped %+v, want one ended", r)
		}
		b.expectState(g.ID, store.TimedOut)
		if r := b.reap(); r.Retried+r.Ended != 0 {
			b.t.Errorf("reaped %+v twice", r)
		}
	})
}

// TestAReplicaThatStartsAfterAStepEndsNoLease checks a replica that starts and finds a lease that is over by the
// ledger's clock. If the stored times of this clock and the host's clock show that the ledger's clock stepped, the
// replica does not end the lease. Without a step, it ends the lease.
func TestAReplicaThatStartsAfterAStepEndsNoLease(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 2, minute)
		b.createBatch("a", func(in *store.Batch) { in.MaxAttempts = 2 }, "d1")
		b.expectGrant("d1")
		b.endAllLeases()
		clock, err := b.store.LeaseClock(b.ctx)
		b.must(err)
		if clock.StoredPair == nil {
			b.t.Fatal("the first replica kept no pair of clocks")
		}
		for _, test := range []struct {
			step time.Duration
			want int
		}{{100 * time.Hour, 0}, {0, 1}} {
			b.must(b.store.StoreClockPair(b.ctx, store.ClockPair{Ledger: clock.StoredPair.Ledger.Add(-test.step), Wall: clock.StoredPair.Wall}))
			other := dispatcher.New(dispatcher.Config{Store: b.store, Semaphore: b.semaphore})
			if r, err := other.Upkeep.Reap(b.ctx); err != nil || r.Retried != test.want {
				b.t.Errorf("after a step of %s: reaped %+v, %v; want %d", test.step, r, err, test.want)
			}
		}
	})
}

// TestReapManyAtOnce checks two reapers that run at the same time and together end more grants than one transaction
// does.
func TestReapManyAtOnce(t *testing.T) {
	t.Parallel()
	b := newServerBench(t)
	const fleet = 205
	b.createPool("a", fleet, minute)
	var names []string
	for i := range fleet {
		names = append(names, fmt.Sprintf("d%d", i))
	}
	b.createBatch("a", func(in *store.Batch) { in.OnLost = "fail" }, names...)
	for _, n := range names {
		b.expectGrant(n)
	}
	b.endAllLeases()
	ended := make(chan int, 2)
	for range 2 {
		go func() {
			r, err := b.Upkeep.Reap(b.ctx)
			if err != nil {
				t.Error(err)
			}
			ended <- r.Ended
		}()
	}
	if n := <-ended + <-ended; n != fleet {
		t.Errorf("%d ended, want each of %d once", n, fleet)
	}
	b.expectHeld(0)
}

// TestReconcileFreesOrphansButNotYoungOnes checks slots that are held in Redis without a grant in the ledger. The
// reconciliation frees an old one. It does not free a slot that is just being claimed, although an earlier attempt
// of the same task has ended.
func TestReconcileFreesOrphansButNotYoungOnes(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 3, minute)
		b.createBatch("a", nil, "d1", "y")
		g, failed := b.expectGrant("d1"), b.expectGrant("y")
		b.sendReport("y", fmt.Sprintf(`{"id":"r","accept":false,"results":[{"task":%d,"token":%d,"status":"failed"}]}`, failed.ID, failed.Token))
		// One slot is an orphan: its replica died before the claim. The other slot belongs to a claim in progress,
		// for the second attempt of its task.
		adopt := []slots.LedgerGrant{
			{Lease: "7.1.old", Device: "x", Slot: 1, Remaining: minute, Age: 11 * time.Second},
			{Lease: fmt.Sprintf("%d.2.new", failed.ID), Device: "y", Slot: 2, Remaining: minute, Age: time.Second},
		}
		_, err := b.semaphore.Adopt(b.ctx, "a", adopt)
		b.must(err)
		if r := b.reconcile(); r.Freed != 1 || r.Added != 0 || r.Drift() != 1 {
			b.t.Errorf("reconciled %+v, want one freed", r)
		}
		snapshot, err := b.semaphore.Snapshot(b.ctx, "a")
		b.must(err)
		var left []string
		for _, l := range snapshot.Leases {
			left = append(left, fmt.Sprint(l.Slot, l.Device))
		}
		if fmt.Sprint(left) != "[0 d1 2 y]" && fmt.Sprint(left) != "[0d1 2y]" {
			b.t.Errorf("left %v, want the grant of d1 (%d) and the young lease", left, g.ID)
		}
	})
}

// A Redis replica became the primary and lacks the latest releases, so it shows a slot as held whose grant has ended. After the
// reconciliation the slot must be free, however young the grant is.
func TestReconcileFreesAtOnceWhatHasEnded(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		b.createBatch("a", nil, "d1", "d2")
		g := b.expectGrant("d1")
		before, err := b.semaphore.Snapshot(b.ctx, "a")
		b.must(err)
		b.sendResult("d1", g, "succeeded", "", devices.OutcomeRecorded)
		stale := slots.LedgerGrant{Lease: before.Leases[0].ID, Device: "d1", Slot: 0, Remaining: minute, Age: time.Second}
		_, err = b.semaphore.Adopt(b.ctx, "a", []slots.LedgerGrant{stale})
		b.must(err)
		b.expectReason("d2", `{}`, devices.ReasonFull)
		if r := b.reconcile(); r.Freed != 1 {
			b.t.Errorf("reconciled %+v, want one freed", r)
		}
		b.expectGrant("d2")
	})
}

// The clock of Redis stepped back, so a slot seems to have been acquired in the future. If the slot is an orphan, it must be freed without
// waiting for that time.
func TestReconcileFreesOrphansOfTheFuture(t *testing.T) {
	t.Parallel()
	b := newEmbeddedBench(t)
	b.createPool("a", 3, minute)
	b.reconcile()
	young := slots.LedgerGrant{Lease: "8.1.new", Device: "y", Slot: 2, Remaining: minute, Age: time.Second}
	_, err := b.semaphore.Adopt(b.ctx, "a", []slots.LedgerGrant{young})
	must.Succeed(t, err)
	b.mini.SetTime(time.Now().Add(-time.Hour))
	if r := b.reconcile(); r.Freed != 1 {
		t.Errorf("reconciled %+v, want one freed", r)
	}
}

func TestReconcileAddsWhatRedisDoesNotKnow(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 2, minute)
		b.createBatch("a", nil, "d1", "d2", "d3")
		b.expectGrant("d1")
		b.expectGrant("d2")
		// Redis is stale: it knows the pool, but shows it as empty.
		b.redis.FlushDB(b.ctx)
		_, err := b.semaphore.Restore(b.ctx, "a", slots.Config{Capacity: 2, Version: 1}, nil)
		b.must(err)
		// Device d3 reports. In this one report, the ledger refuses the claim and the pool is repaired.
		b.expectReason("d3", `{}`, devices.ReasonFull)
		b.expectHeld(2)
		if r := b.reconcile(); r.Drift() != 0 {
			b.t.Errorf("drift %+v after the repair", r)
		}
	})
}

func TestReconcileTellsRedisOfNewPools(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 2, minute)
	b.createPool("b", 3, minute)
	if r := b.reconcile(); r.Restored != 2 {
		t.Errorf("reconciled %+v, want both restored", r)
	}
	snapshot, err := b.semaphore.Snapshot(b.ctx, "b")
	if err != nil || !snapshot.PoolKnown || snapshot.Capacity != 3 {
		t.Errorf("pool b: %+v, %v", snapshot, err)
	}
}

func TestLastSeenIsThatOfTheReport(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.sendReport("d1", `{}`)
	must.Succeed(t, b.Seen.Flush(b.ctx))
	d, err := b.store.Device(b.ctx, "d1")
	if err != nil || d.LastSeen == nil || time.Since(*d.LastSeen) > time.Minute {
		t.Errorf("device %+v, %v: want it seen just now", d, err)
	}
}
