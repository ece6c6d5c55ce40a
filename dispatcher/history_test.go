package dispatcher_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// A fleet works for a while, and its grants end in different ways. The history of the pool must contain every grant
// once, and must never show two devices in one slot at the same time.
func TestHistoryHasNoTwoInOneSlot(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		const capacity, fleet = 3, 8
		rounds := 12
		if testing.Short() {
			rounds = 6
		}
		b.createPool("a", capacity, minute)
		names := make([]string, fleet)
		for i := range names {
			names[i] = fmt.Sprintf("d%d", i)
		}
		for range rounds {
			b.createBatch("a", nil, names...)
		}
		var mu sync.Mutex
		given := map[int64]devices.Task{} // key is the token
		var wait sync.WaitGroup
		for n, name := range names {
			wait.Go(func() {
				draw := rand.New(rand.NewPCG(uint64(n), 1))
				for range 5 * rounds {
					reply := b.sendReport(name, `{"id":"x"}`)
					if reply.Task == nil {
						continue
					}
					mu.Lock()
					given[reply.Task.Token] = *reply.Task
					mu.Unlock()
					if draw.IntN(6) == 0 {
						_, _ = b.ForceRelease(b.ctx, "a", reply.Task.Slot, store.ForcedRelease{Token: reply.Task.Token, AtOnce: true})
						continue
					}
					b.sendReport(name, fmt.Sprintf(`{"id":"y","accept":false,"results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, reply.Task.ID, reply.Task.Token))
				}
			})
		}
		wait.Wait()
		all, _, err := b.store.Holdings(b.ctx, store.HoldingFilter{Pool: "a", Limit: 1000})
		b.must(err)
		last := map[int]store.Holding{}
		forced := 0
		for _, h := range all {
			task, known := given[h.Token]
			if !known || task.Slot != h.Slot || task.ID != h.Task {
				b.t.Errorf("%+v was given as %+v", h, task)
			}
			delete(given, h.Token)
			if before, held := last[h.Slot]; held && (before.EndedAt == nil || before.EndedAt.After(h.GrantedAt)) {
				b.t.Errorf("two in one slot: %+v and %+v", before, h)
			}
			last[h.Slot] = h
			if h.EndedBy == store.ByOperator {
				forced++
			}
		}
		if len(given) > 0 || len(all) < 2*fleet || forced == 0 {
			b.t.Errorf("%d holdings, %d by force; missing: %v", len(all), forced, given)
		}
	})
}
