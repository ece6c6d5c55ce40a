package store_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestSuppressEndsWhatWaits checks that Suppress ends each waiting task once, and does not end a task that was granted or has ended.
func TestSuppressEndsWhatWaits(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 4)
		batch, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "b", "c", "d")
		l.mustGrant(ids[0], "a", "p", 0)
		_, err := l.CancelTask(l.Context(), "ann", ids[1])
		l.must(err)
		list := make([]store.Suppression, 0, 5)
		for _, id := range append(ids, ids[2], 1<<40) {
			list = append(list, store.Suppression{Task: id, Reason: "policy n says no"})
		}
		done, err := l.Suppress(l.Context(), list)
		l.must(err)
		if want := []bool{false, false, true, true, false, false}; !slices.Equal(done, want) {
			l.Errorf("ended %v, want %v", done, want)
		}
		for i, want := range []store.TaskState{store.Dispatched, store.Cancelled, store.Suppressed, store.Suppressed} {
			l.wantTask(ids[i], want)
		}
		task, _, _, err := l.Task(l.Context(), ids[2])
		l.must(err)
		if task.Error != "policy n says no" || task.FinishedAt == nil {
			l.Errorf("ended as %+v", task)
		}
		l.wantSuppressed(batch.ID, 2)

		again, err := l.RetryTask(l.Context(), "ann", ids[2])
		l.must(err)
		if again.State != store.Pending || again.Error != "" {
			l.Errorf("tried again as %+v", again)
		}
		l.wantSuppressed(batch.ID, 1)
		l.mustGrant(ids[2], "c", "p", 1)
	})
}

// wantSuppressed checks that the batch and its pool each have `want` suppressed tasks in their counts, and that each suppressed task has
// one event.
func (l *ledger) wantSuppressed(batch int64, want int64) {
	l.Helper()
	b, err := l.Batch(l.Context(), batch)
	l.must(err)
	all, err := l.TaskCounts(l.Context(), "p", 100)
	l.must(err)
	if b.Counts[store.Suppressed] != want || all.ByState[store.Suppressed] != want {
		l.Errorf("counted %d in the batch, %d in the pool, want %d", b.Counts[store.Suppressed], all.ByState[store.Suppressed], want)
	}
	listed, err := l.Tasks(l.Context(), store.TaskFilter{Batch: batch, State: store.Suppressed, Limit: 1000})
	l.must(err)
	if int64(len(listed)) != want {
		l.Errorf("%d are listed, want %d", len(listed), want)
	}
	for _, task := range listed {
		events, err := l.Events(l.Context(), store.EventFilter{Kind: "task.suppressed", Device: task.Device})
		l.must(err)
		if len(events) != 1 || events[0].Task != task.ID || events[0].Detail != task.Error || events[0].Pool != "p" || events[0].Batch != batch {
			l.Errorf("events of task %d: %+v", task.ID, events)
		}
	}
}

// TestSuppressBesideClaims lets several calls suppress and claim the same tasks concurrently. For each task exactly one call must succeed,
// and each suppressed task must have one event.
func TestSuppressBesideClaims(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		const n = 12
		devices := deviceNames(n)
		l.putPool("p", n)
		batch, ids := l.queueBatch(store.Batch{Pool: "p"}, devices...)
		var group sync.WaitGroup
		var mu sync.Mutex
		suppressed, granted := map[int64]int{}, map[int64]int{}
		for range 2 {
			group.Go(func() {
				list := make([]store.Suppression, n)
				for i, id := range ids {
					list[i] = store.Suppression{Task: id, Reason: "no"}
				}
				for i := range list { // in parts, so that claims run between them
					done, err := l.Suppress(l.Context(), list[i:min(i+3, n)])
					if err != nil {
						t.Error(err)
						return
					}
					for k, is := range done {
						if is {
							mu.Lock()
							suppressed[list[i+k].Task]++
							mu.Unlock()
						}
					}
				}
			})
		}
		group.Go(func() {
			for i := n - 1; i >= 0; i-- {
				got, err := l.Claim(l.Context(), []store.Claim{l.newClaim(ids[i], devices[i], "p", i)}, true)
				if err != nil {
					t.Error(err)
					return
				}
				if got[0].Status == store.ClaimGranted {
					mu.Lock()
					granted[ids[i]]++
					mu.Unlock()
				}
			}
		})
		group.Wait()
		for _, id := range ids {
			if suppressed[id]+granted[id] != 1 {
				l.Errorf("task %d was suppressed %d times and granted %d times", id, suppressed[id], granted[id])
			}
		}
		l.wantSuppressed(batch.ID, int64(len(suppressed)))
	})
}

// TestSuppressFindsTheGrantThatItWaitedFor checks a call of Suppress that waits for a claim of the same task. After the wait it must not
// end the task, which is now granted. This needs care because the claim does not write the row of the task.
func TestSuppressFindsTheGrantThatItWaitedFor(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 2)
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "b")
	l.runDuringChange(`
		WITH held AS (SELECT id, batch, pool, device FROM tasks WHERE id = $1 FOR UPDATE)
		INSERT INTO grants (task, batch, pool, slot, device, token, lease, attempt, granted_at, lease_until, max_until, lease_ms)
		SELECT id, batch, pool, 0, device, 1, 'x', 1, {now}, {now} + 60000 * {ms}, {now} + 60000 * {ms}, 60000 FROM held`, []any{ids[0]}, func() {
		done, err := l.Suppress(l.Context(), []store.Suppression{{ids[0], "no"}, {ids[1], "no"}})
		if err != nil || done[0] || !done[1] {
			t.Errorf("%v, %v: want the other one alone", done, err)
		}
	})
	l.wantTask(ids[0], store.Dispatched)
}
