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

// inLine returns a bench with a full pool "a". The device "holds" holds its slot, "waits" waits for it, and
// "sleeps" has no work there. All three are reached by push.
func inLine(t *testing.T) (b *bench, w *wakes, held devices.Task) {
	t.Helper()
	w = &wakes{}
	b = light(t, pushing(w), func(c *dispatcher.Config) { c.Jitter = nil })
	b.pool("a", 1, minute)
	b.pool("b", 1, minute)
	b.reconcile()
	b.registered("holds", "waits", "sleeps")
	b.batch("a", nil, "holds", "waits")
	b.expectPushed("sleeps", devices.ReasonNone)
	held = *b.expectPushed("holds", devices.ReasonGranted).Task
	b.expectPushed("waits", devices.ReasonFull)
	b.must(b.Seen.Flush(b.ctx))
	return b, w, held
}

// eventuallyStarts waits until passes wake the device, not counting the first before wake-ups, and expects
// that the device is granted its task.
func (b *bench) eventuallyStarts(w *wakes, before int, device string) devices.Task {
	b.t.Helper()
	b.eventually("waking of "+device, func() bool {
		b.must(b.Waiters.Filler.FillAll(b.ctx))
		return slices.Contains(w.woken()[before:], device)
	})
	return *b.expectPushed(device, devices.ReasonGranted).Task
}

func TestWhateverFreesASlotIsHandedOnInLine(t *testing.T) {
	t.Parallel()
	for name, frees := range map[string]func(b *bench, held devices.Task){
		"a result": func(b *bench, held devices.Task) { b.pushed("holds", result(held, "succeeded", "")) },
		"a lease that ended": func(b *bench, _ devices.Task) {
			b.lapse()
			b.reap()
		},
		"a forced release": func(b *bench, held devices.Task) {
			_, err := b.ForceRelease(b.ctx, "a", held.Slot, store.Force{Now: true})
			b.must(err)
		},
		"a capacity that was raised": func(b *bench, _ devices.Task) {
			b.pool("a", 2, minute)
			_, err := b.Upkeep.ReconcilePool(b.ctx, "a")
			b.must(err)
		},
		"a Redis that was restored": func(b *bench, _ devices.Task) {
			b.pool("a", 2, minute)
			b.must(b.redis.FlushDB(b.ctx).Err())
			b.reconcile()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, w, held := inLine(t)
			frees(b, held)
			b.eventuallyStarts(w, 0, "waits")
		})
	}
}

// A device that sleeps is only known to the ledger, and is woken as soon as a task of it may start.
func TestWhateverMayStartWakesASleeper(t *testing.T) {
	t.Parallel()
	inHalfAYear := []store.Window{{Cron: fmt.Sprintf("0 0 1 %d *", (time.Now().UTC().Month()+5)%12+1), Duration: "1m"}}
	for name, begins := range map[string]func(b *bench, w *wakes){
		"a batch that was queued": func(b *bench, _ *wakes) { b.batch("b", nil, "sleeps") },
		"a batch that was resumed": func(b *bench, _ *wakes) {
			batch := b.batch("b", func(in *store.Batch) { in.Paused = true }, "sleeps")
			b.must(b.Waiters.Filler.FillAll(b.ctx))
			_, err := b.store.ResumeBatch(b.ctx, "op", batch)
			b.must(err)
		},
		"a start that has come": func(b *bench, _ *wakes) {
			soon := time.Now().Add(time.Second)
			b.batch("b", func(in *store.Batch) { in.NotBefore = &soon }, "sleeps")
		},
		"the start of a task that has come": func(b *bench, _ *wakes) {
			soon := time.Now().Add(time.Second)
			b.queue("b", nil, oneTask(store.NewTask{Device: "sleeps", NotBefore: &soon}))
		},
		"a window that opened": func(b *bench, _ *wakes) {
			_, _, err := b.store.PutPool(b.ctx, "test", "b", store.PoolSpec{Capacity: 1, Lease: minute, Windows: inHalfAYear})
			b.must(err)
			b.batch("b", nil, "sleeps")
			b.must(b.Waiters.Filler.FillAll(b.ctx))
			b.pool("b", 1, minute)
		},
		"a backoff that is over": func(b *bench, w *wakes) {
			b.batch("b", func(in *store.Batch) { in.RetryBackoff = time.Second }, "sleeps")
			first := b.eventuallyStarts(w, 0, "sleeps")
			b.pushed("sleeps", result(first, "failed", ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, w, _ := inLine(t)
			begins(b, w)
			b.eventuallyStarts(w, len(w.woken()), "sleeps")
		})
	}
}
