package dispatcher_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/store"
)

// newFullPoolBench returns a bench with pool "a", whose only slot is held by the device "holds". The device "waits"
// waits for this slot, and the device "sleeps" has no task in the pool. All three devices can be woken by a push.
func newFullPoolBench(t *testing.T) (b *testBench, w *wakeRecorder, held devices.Task) {
	t.Helper()
	w = &wakeRecorder{}
	b = newLightBench(t, withWaker(w), func(c *dispatcher.Config) { c.Jitter = nil })
	b.createPool("a", 1, minute)
	b.createPool("b", 1, minute)
	b.reconcile()
	b.registerDevices("holds", "waits", "sleeps")
	b.createBatch("a", nil, "holds", "waits")
	b.expectSessionReason("sleeps", devices.ReasonNone)
	held = *b.expectSessionReason("holds", devices.ReasonGranted).Task
	b.expectSessionReason("waits", devices.ReasonFull)
	b.must(b.Seen.Flush(b.ctx))
	return b, w, held
}

// awaitStart waits until passes wake the device. Wake-ups up to the number wakesBefore do not count. Then the
// device reports and must be granted its task.
func (b *testBench) awaitStart(w *wakeRecorder, wakesBefore int, device string) devices.Task {
	b.t.Helper()
	b.awaitCondition("waking of "+device, func() bool {
		b.must(b.Waiters.Filler.FillAllPools(b.ctx))
		return slices.Contains(w.wokenDevices()[wakesBefore:], device)
	})
	return *b.expectSessionReason(device, devices.ReasonGranted).Task
}

func TestWhateverFreesASlotIsHandedOnInLine(t *testing.T) {
	t.Parallel()
	for name, frees := range map[string]func(b *testBench, held devices.Task){
		"a result": func(b *testBench, held devices.Task) {
			b.reportOverSession("holds", resultReport(held, "succeeded", ""))
		},
		"a lease that ended": func(b *testBench, _ devices.Task) {
			b.endAllLeases()
			b.reap()
		},
		"a forced release": func(b *testBench, held devices.Task) {
			_, err := b.ForceRelease(b.ctx, "a", held.Slot, store.ForcedRelease{AtOnce: true})
			b.must(err)
		},
		"a capacity that was raised": func(b *testBench, _ devices.Task) {
			b.createPool("a", 2, minute)
			_, err := b.Upkeep.ReconcilePool(b.ctx, "a")
			b.must(err)
		},
		"a Redis that was restored": func(b *testBench, _ devices.Task) {
			b.createPool("a", 2, minute)
			b.must(b.redis.FlushDB(b.ctx).Err())
			b.reconcile()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, w, held := newFullPoolBench(t)
			frees(b, held)
			b.awaitStart(w, 0, "waits")
		})
	}
}

// The device "sleeps" is in no queue, so only the ledger knows it. It must be woken as soon as one of its tasks may start, whichever change
// made that possible.
func TestWhateverMayStartWakesASleeper(t *testing.T) {
	t.Parallel()
	inHalfAYear := []store.Window{{Cron: fmt.Sprintf("0 0 1 %d *", (time.Now().UTC().Month()+5)%12+1), Duration: "1m"}}
	for name, begins := range map[string]func(b *testBench, w *wakeRecorder){
		"a batch that was queued": func(b *testBench, _ *wakeRecorder) { b.createBatch("b", nil, "sleeps") },
		"a batch that was resumed": func(b *testBench, _ *wakeRecorder) {
			batch := b.createBatch("b", func(in *store.Batch) { in.Paused = true }, "sleeps")
			b.must(b.Waiters.Filler.FillAllPools(b.ctx))
			_, err := b.store.ResumeBatch(b.ctx, "op", batch)
			b.must(err)
		},
		"a start that has come": func(b *testBench, _ *wakeRecorder) {
			soon := time.Now().Add(time.Second)
			b.createBatch("b", func(in *store.Batch) { in.NotBefore = &soon }, "sleeps")
		},
		"the start of a task that has come": func(b *testBench, _ *wakeRecorder) {
			soon := time.Now().Add(time.Second)
			b.queueTasks("b", nil, oneTask(store.NewTask{Device: "sleeps", NotBefore: &soon}))
		},
		"a window that opened": func(b *testBench, _ *wakeRecorder) {
			_, _, err := b.store.PutPool(b.ctx, "test", "b", store.PoolSpec{Capacity: 1, Lease: minute, Windows: inHalfAYear})
			b.must(err)
			b.createBatch("b", nil, "sleeps")
			b.must(b.Waiters.Filler.FillAllPools(b.ctx))
			b.createPool("b", 1, minute)
		},
		"a backoff that is over": func(b *testBench, w *wakeRecorder) {
			b.createBatch("b", func(in *store.Batch) { in.RetryBackoff = time.Second }, "sleeps")
			first := b.awaitStart(w, 0, "sleeps")
			b.reportOverSession("sleeps", resultReport(first, "failed", ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, w, _ := newFullPoolBench(t)
			begins(b, w)
			b.awaitStart(w, len(w.wokenDevices()), "sleeps")
		})
	}
}
