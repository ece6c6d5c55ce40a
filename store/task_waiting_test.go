package store_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fleetslots/dispatcher/store"
)

// TestWaitingTasksAreSeenAsEachByItself checks views of waiting tasks. If a task is read together with many others, its view must equal the
// view of the task read alone.
func TestWaitingTasksAreSeenAsEachByItself(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		l.putPool("other", 9)
		_, err := l.EnsureDevices(l.Context(), "a", "b", "c")
		l.must(err)
		first, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 3, RetryOn: []string{"failed"}, RetryBackoff: time.Hour}, "a", "b", "c", "a", "a", "unknown")
		_, more := l.queueBatch(store.Batch{Pool: "p"}, "b", "a")
		l.queueBatch(store.Batch{Pool: "other"}, "a", "d")
		l.recordResult(l.mustGrant(ids[2], "c", "p", 1), store.ByFailure, "")
		l.mustGrant(ids[1], "b", "p", 0)
		l.exec(fmt.Sprintf(`UPDATE tasks SET priority = 7, own_priority = true WHERE id = %d`, ids[4]))

		seen, err := l.SampleWaiting(l.Context(), store.TaskScope{Pool: "p"}, 10)
		l.must(err)
		want := []int64{ids[4], ids[0], ids[2], ids[3], ids[5], more[0], more[1]}
		if !seen.IsComplete || seen.Total != 7 || !slices.Equal(waitingTaskIDs(seen), want) {
			l.Errorf("%v of %d, want %v", waitingTaskIDs(seen), seen.Total, want)
		}
		for _, v := range seen.Views {
			l.compareWithTaskView(v)
		}
		seen, err = l.SampleWaiting(l.Context(), store.TaskScope{Batch: first.ID}, 5)
		l.must(err)
		if !seen.IsComplete || seen.Total != 5 || !slices.Equal(waitingTaskIDs(seen), want[:5]) {
			l.Errorf("of the batch %v of %d", waitingTaskIDs(seen), seen.Total)
		}
		for _, of := range []store.TaskScope{{Pool: "none"}, {Batch: 4711}} {
			_, err = l.SampleWaiting(l.Context(), of, 5)
			_, err2 := l.NextWaiting(l.Context(), of, store.WaitingPosition{}, 5)
			if !errors.Is(err, store.ErrNotFound) || !errors.Is(err2, store.ErrNotFound) {
				l.Errorf("%+v: %v, %v", of, err, err2)
			}
		}
		for _, limit := range []int{1, 2, 3, 7, 8} {
			if got := l.readWaiting(store.TaskScope{Pool: "p"}, limit); !slices.Equal(got, want) {
				l.Errorf("by %d: %v, want %v", limit, got, want)
			}
			if got := l.readWaiting(store.TaskScope{Batch: first.ID}, limit); !slices.Equal(got, want[:5]) {
				l.Errorf("of the batch, by %d: %v, want %v", limit, got, want[:5])
			}
		}
	})
}

// TestWaitingTasksOfDevicesWithManyBatches checks the view of a waiting task whose device has many open batches. Its candidates must be the
// tasks of the 16 oldest batches and of the batch of the task itself.
func TestWaitingTasksOfDevicesWithManyBatches(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		var all []int64
		for range 40 {
			_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a")
			all = append(all, ids...)
		}
		seen, err := l.SampleWaiting(l.Context(), store.TaskScope{Pool: "p"}, 100)
		l.must(err)
		for i, v := range seen.Views {
			want := slices.Clone(all[:16])
			if i >= 16 {
				want = append(want, v.Task.ID)
			}
			var got []int64
			for _, c := range v.Candidates {
				got = append(got, c.Task)
			}
			if v.Task.ID != all[i] || !slices.Equal(got, want) {
				l.Errorf("of task %d: %v, want %v", v.Task.ID, got, want)
			}
		}
	})
}

func waitingTaskIDs(w store.WaitingTasks) (ids []int64) {
	for _, v := range w.Views {
		ids = append(ids, v.Task.ID)
	}
	return ids
}

// compareWithTaskView compares the view v with the view that TaskView returns for the same task. All fields that explain why the task waits
// must be equal.
func (l *ledger) compareWithTaskView(v store.TaskView) {
	l.Helper()
	alone, err := l.TaskView(l.Context(), v.Task.ID)
	l.must(err)
	alone.Task = store.Task{ID: alone.Task.ID, Batch: alone.Task.Batch, Pool: alone.Task.Pool, Device: alone.Task.Device, State: alone.Task.State, Priority: v.Task.Priority}
	if alone.LastAttempt != nil {
		a := *alone.LastAttempt
		alone.LastAttempt = &store.Attempt{Token: a.Token, Task: a.Task, Number: a.Number, EndedAt: a.EndedAt, EndedBy: a.EndedBy, Error: a.Error}
	}
	if d := cmp.Diff(alone, v, cmpopts.IgnoreFields(store.DeviceView{}, "Now"), cmpopts.IgnoreFields(store.Batch{}, "ReadAt"), cmpopts.IgnoreFields(store.Grant{}, "Remaining")); d != "" {
		l.Errorf("task %d by itself, and among others:\n%s", v.Task.ID, d)
	}
}

// readWaiting returns the ids of all waiting tasks that filter selects. It reads them in pages of at most limit tasks.
func (l *ledger) readWaiting(filter store.TaskScope, limit int) (ids []int64) {
	l.Helper()
	for after := (store.WaitingPosition{}); ; {
		page, err := l.NextWaiting(l.Context(), filter, after, limit)
		l.must(err)
		if len(page.Views) > limit {
			l.Errorf("%d at once, of at most %d", len(page.Views), limit)
		}
		if ids = append(ids, waitingTaskIDs(page)...); page.IsComplete {
			return ids
		}
		after = store.WaitingPositionOf(page.Views[len(page.Views)-1].Task)
	}
}

// TestASampleOfWhatWaits checks a sample of many waiting tasks. The share of a batch in the sample must correspond to its number of waiting
// tasks.
func TestASampleOfWhatWaits(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 100)
		large, ids := l.queueBatch(store.Batch{Pool: "p"}, deviceNames(900)...)
		l.queueBatch(store.Batch{Pool: "p"}, deviceNames(600)[300:]...)
		l.mustGrant(ids[0], "dev-00000", "p", 0)
		l.exec(fmt.Sprintf(`UPDATE tasks SET state = 'failed' WHERE id BETWEEN %d AND %d`, ids[100], ids[299]))
		of := store.TaskScope{Pool: "p"}
		seen, err := l.SampleWaiting(l.Context(), of, 200)
		l.must(err)
		batches, once := map[int64]int{}, map[int64]bool{}
		for _, v := range seen.Views {
			batches[v.Task.Batch]++
			once[v.Task.ID] = true
		}
		n := len(seen.Views)
		if seen.IsComplete || seen.Total != 999 || n > 200 || n < 150 || len(once) != n || once[ids[0]] {
			l.Errorf("%d of %d, each once: %d", n, seen.Total, len(once))
		}
		if share := float64(batches[large.ID]) / float64(n); share < 0.6 || share > 0.8 { // The large batch has 699 of 999 tasks.
			l.Errorf("a share of %.2f is of the large batch", share)
		}
		seen, err = l.SampleWaiting(l.Context(), store.TaskScope{Batch: large.ID}, 50)
		l.must(err)
		if n := len(seen.Views); seen.IsComplete || seen.Total != 699 || n > 50 || n < 35 {
			l.Errorf("of the batch %d of %d", n, seen.Total)
		}
	})
}

// TestASampleOfManyBatches checks a sample of waiting tasks of many batches. It must read only some of the batches. Batches after the
// oldest 64 must have their share of the sample, too.
func TestASampleOfManyBatches(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		for range 150 {
			l.queueBatch(store.Batch{Pool: "p"}, "a", "b", "c", "d")
		}
		last, _ := l.queueBatch(store.Batch{Pool: "p"}, deviceNames(10)...)
		seen, err := l.SampleWaiting(l.Context(), store.TaskScope{Pool: "p"}, 120)
		l.must(err)
		late, ofLast := 0, 0
		for _, v := range seen.Views {
			if v.Task.Batch > 64 {
				late++
			}
			if v.Task.Batch == last.ID {
				ofLast++
			}
		}
		if n := len(seen.Views); seen.Total != 610 || n < 90 || late < n/2 || late > n*7/10 || ofLast == 0 {
			l.Errorf("%d of %d, of the late batches %d, of the last %d", n, seen.Total, late, ofLast)
		}
	})
}

// TestASampleReadsNoMoreThanItself checks that a sample of waiting tasks does not read more rows if there are more
// tasks, whether or not Postgres has statistics.
func TestASampleReadsNoMoreThanItself(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.exec(`ALTER TABLE tasks SET (autovacuum_enabled = off)`)
	l.putPool("p", 1)
	l.exec(`INSERT INTO batches (pool, created_at, total) SELECT 'p', now(), 10000 FROM generate_series(1, 5)`)
	l.exec(`INSERT INTO tasks (batch, pool, device) SELECT 1 + i % 5, 'p', 'd' || i FROM generate_series(1, 50000) AS i`)
	of := store.TaskScope{Pool: "p"}
	for _, statistics := range []string{`SELECT 1`, `ANALYZE`} {
		l.exec(statistics)
		for name, read := range map[string]func() (store.WaitingTasks, error){
			"a sample": func() (store.WaitingTasks, error) { return l.SampleWaiting(l.Context(), of, 200) },
			"the next": func() (store.WaitingTasks, error) {
				return l.NextWaiting(l.Context(), of, store.WaitingPosition{Batch: 2, Task: 7000}, 200)
			},
			"of a batch": func() (store.WaitingTasks, error) {
				return l.SampleWaiting(l.Context(), store.TaskScope{Batch: 4}, 200)
			},
		} {
			before := l.taskRowsRead()
			seen, err := read()
			l.must(err)
			if len(seen.Views) < 150 || seen.IsComplete {
				l.Errorf("%s: %d tasks", name, len(seen.Views))
			}
			if read := l.taskRowsRead() - before; read > 10_000 {
				l.Errorf("%s, after %s: %d rows are read for %d tasks", name, statistics, read, len(seen.Views))
			}
		}
	}
}
