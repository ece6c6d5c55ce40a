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

// Whatever lets something start ends with a device that is woken for it: one that
// waits in line, or one that sleeps and is known to the ledger alone.
func TestWhateverLetsSomethingStartIsHandedOn(t *testing.T) {
	t.Parallel()
	inHalfAYear := []store.Window{{Cron: fmt.Sprintf("0 0 1 %d *", (time.Now().UTC().Month()+5)%12+1), Duration: "1m"}}
	for name, test := range map[string]func(b *bench, w *wakes, held devices.Task) (woken string){
		"a result": func(b *bench, _ *wakes, held devices.Task) string {
			b.pushed("holds", result(held, "succeeded", ""))
			return "waits"
		},
		"a lease that ended": func(b *bench, _ *wakes, _ devices.Task) string {
			b.lapse()
			b.reap()
			return "waits"
		},
		"a forced release": func(b *bench, _ *wakes, held devices.Task) string {
			_, err := b.ForceRelease(b.ctx, "a", held.Slot, store.Force{Now: true})
			b.must(err)
			return "waits"
		},
		"a capacity that was raised": func(b *bench, _ *wakes, _ devices.Task) string {
			b.pool("a", 2, minute)
			_, err := b.ReconcilePool(b.ctx, "a")
			b.must(err)
			return "waits"
		},
		"a batch that was queued": func(b *bench, _ *wakes, _ devices.Task) string {
			b.pool("b", 1, minute)
			b.reconcile()
			b.batch("b", nil, "sleeps")
			return "sleeps"
		},
		"a batch that was resumed": func(b *bench, _ *wakes, _ devices.Task) string {
			b.pool("b", 1, minute)
			b.reconcile()
			batch := b.batch("b", func(in *store.Batch) { in.Paused = true }, "sleeps")
			b.must(b.HandOnAll(b.ctx))
			_, err := b.store.ResumeBatch(b.ctx, "op", batch)
			b.must(err)
			return "sleeps"
		},
		"a start that has come": func(b *bench, _ *wakes, _ devices.Task) string {
			b.pool("b", 1, minute)
			b.reconcile()
			soon := time.Now().Add(time.Second)
			b.batch("b", func(in *store.Batch) { in.NotBefore = &soon }, "sleeps")
			return "sleeps"
		},
		"a window that opened": func(b *bench, _ *wakes, _ devices.Task) string {
			spec := store.PoolSpec{Capacity: 1, Lease: minute, Windows: inHalfAYear}
			_, _, err := b.store.PutPool(b.ctx, "test", "b", spec)
			b.must(err)
			b.reconcile()
			b.batch("b", nil, "sleeps")
			b.must(b.HandOnAll(b.ctx))
			b.pool("b", 1, minute)
			return "sleeps"
		},
		"a backoff that is over": func(b *bench, w *wakes, _ devices.Task) string {
			b.pool("b", 1, minute)
			b.reconcile()
			b.batch("b", func(in *store.Batch) { in.RetryBackoff = time.Second }, "sleeps")
			b.eventually("wake for the first attempt", func() bool {
				b.must(b.HandOnAll(b.ctx))
				return len(w.woken()) > 0
			})
			first := b.expectPushed("sleeps", devices.ReasonGranted)
			b.pushed("sleeps", result(*first.Task, "failed", ""))
			return "sleeps"
		},
		"a Redis that was restored": func(b *bench, _ *wakes, _ devices.Task) string {
			b.pool("a", 2, minute)
			b.must(b.redis.FlushDB(b.ctx).Err())
			b.reconcile()
			return "waits"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &wakes{}
			b := embedded(t, pushing(w), func(c *dispatcher.Config) { c.Jitter = nil })
			b.pool("a", 1, minute)
			b.reconcile()
			b.registered("holds", "waits", "sleeps")
			b.batch("a", nil, "holds", "waits")
			b.expectPushed("sleeps", devices.ReasonNone)
			held := b.expectPushed("holds", devices.ReasonGranted)
			b.expectPushed("waits", devices.ReasonFull)
			b.must(b.FlushSeen(b.ctx))
			want := test(b, w, *held.Task)
			before := len(w.woken())
			if want == "waits" {
				before = 0
			}
			b.eventually("waking of "+want, func() bool {
				b.must(b.HandOnAll(b.ctx))
				return slices.Contains(w.woken()[min(before, len(w.woken())):], want)
			})
			b.expectPushed(want, devices.ReasonGranted)
		})
	}
}
