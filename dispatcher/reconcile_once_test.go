package dispatcher_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// TestRestoreTakesBackWhatEndedMeanwhile checks a restore of a pool in Redis. A grant ends after the grants were
// read and before the pool is restored, so its slot could not be released in Redis. The slot must be free right
// after the restore, and not only when it counts as an orphan.
func TestRestoreTakesBackWhatEndedMeanwhile(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 2, minute)
	b.createBatch("a", nil, "d1", "d2")
	g := b.expectGrant("d1")
	b.expectGrant("d2")
	b.redis.FlushDB(b.ctx)
	spies.runBefore("Restore", func() {
		spies.removeHooks()
		b.sendResult("d1", g, "succeeded", "", devices.OutcomeRecorded)
	})
	if r := b.reconcile(); r.Restored != 1 {
		t.Errorf("reconciled %+v, want one restored", r)
	}
	b.expectHeld(1)
}

// TestReconcileTakesBackWhatEndedMeanwhile checks a reconciliation. A grant ends after the grants were read and
// before its slot is added to Redis, so there was nothing to release. The reconciliation must read the grant again
// and free the slot, because nobody else would.
func TestReconcileTakesBackWhatEndedMeanwhile(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 2, minute)
	b.createBatch("a", nil, "d1")
	g := b.expectGrant("d1")
	b.redis.FlushDB(b.ctx)
	_, err := b.semaphore.Restore(b.ctx, "a", slots.Config{Capacity: 2, Version: 1}, nil)
	must.Succeed(t, err)
	ended := false
	spies.runBefore("Adopt", func() {
		b.sendResult("d1", g, "succeeded", "", devices.OutcomeRecorded)
		ended = true
	})
	if r := b.reconcile(); r.Added != 1 || !ended {
		t.Errorf("reconciled %+v, ended %v: want the grant added", r, ended)
	}
	b.expectHeld(0)
}

// TestAnUnknownPoolIsRestoredOnceForAllReports checks reports that arrive at the same time and find a pool unknown
// to Redis. There may be thousands of them. They share one restore.
func TestAnUnknownPoolIsRestoredOnceForAllReports(t *testing.T) {
	t.Parallel()
	const fleet = 20
	var reads int64
	for range 5 { // on a busy machine some reports come too late to share the first restore
		if reads = countLostPoolReads(t, fleet); reads <= fleet/2 {
			return
		}
	}
	t.Errorf("the pool was read %d times for %d reports", reads, fleet)
}

// countLostPoolReads lets Redis lose a pool and sends reports of fleet devices at the same time. It returns how
// often the pool was read from the ledger.
func countLostPoolReads(t *testing.T, fleet int) int64 {
	t.Helper()
	b, spies := newSpiedBench(t)
	var reads atomic.Int64
	hold := make(chan struct{}) // closed when all reports have had time to arrive
	spies.runBefore("Pool", func() {
		reads.Add(1)
		<-hold
	})
	b.createPool("a", fleet, minute)
	names := make([]string, fleet)
	for i := range names {
		names[i] = fmt.Sprintf("d%d", i)
	}
	b.createBatch("a", nil, names...)
	var reports sync.WaitGroup
	for _, name := range names {
		reports.Go(func() { b.expectGrant(name) })
	}
	// The semaphore has answered to all reports that the pool is unknown. Some of these answers may not have been
	// handled yet.
	b.awaitCondition("a reading of the pool", func() bool { return spies.slotRequests.Load() >= int64(fleet) && reads.Load() > 0 })
	close(hold)
	reports.Wait()
	b.expectHeld(fleet)
	return reads.Load()
}

// awaitCondition checks the condition again and again until it holds, for at most two minutes.
func (b *testBench) awaitCondition(what string, holds func() bool) {
	b.t.Helper()
	await.True(b.t, what, holds)
}
