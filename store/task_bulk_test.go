package store_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

func (l *ledger) taskIDs(f store.TaskFilter) []int64 {
	l.Helper()
	tasks, err := l.Tasks(l.Context(), f)
	l.must(err)
	var ids []int64
	for _, t := range tasks {
		ids = append(ids, t.ID)
	}
	return ids
}

// eventCountsByKind returns, for each kind of event, the number of events that this actor caused.
func (l *ledger) eventCountsByKind(actor string) map[string]int {
	l.Helper()
	kinds := map[string]int{}
	for f := (store.EventFilter{Actor: actor, Limit: 1000}); ; {
		events, err := l.Events(l.Context(), f)
		l.must(err)
		for _, e := range events {
			kinds[e.Kind]++
			f.After = e.ID
		}
		if len(events) < f.Limit {
			return kinds
		}
	}
}

// failTask grants a task to its device and ends it as rejected, with this error text.
func (l *ledger) failTask(task int64, device, errorText string) {
	l.Helper()
	g := l.mustGrant(task, device, "p", 0)
	r := store.Result{Device: device, Task: task, Token: g.Token, Cause: store.ByReject, Error: errorText}
	l.must(l.RecordResults(l.Context(), []store.Result{r}, settleEnding)[0].Err)
}

func TestTasksAreFoundByTheirError(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		long := strings.Repeat("é", 300)
		texts := []string{"timeout after 3 s", "timeout", "Timeout", long, long + "x", "50% _*", "\U0010fffe"}
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, deviceNames(len(texts)+1)...)
		for i, text := range texts {
			l.failTask(ids[i], deviceNames(len(texts))[i], text)
		}
		for filter, want := range map[string][]int64{
			"timeout": {2}, "timeout*": {1, 2}, "T*": {3}, "x*": nil, long: {4}, long + "*": {4, 5}, "é*": {4, 5}, "50% _**": {6}, "*": {1, 2, 3, 4, 5, 6, 7},
		} {
			if diff := cmp.Diff(want, l.taskIDs(store.TaskFilter{Error: filter})); diff != "" {
				l.Errorf("%.20q: %s", filter, diff)
			}
		}
		if got := l.taskIDs(store.TaskFilter{Error: "*", State: store.Failed, Device: deviceNames(2)[1], After: 1}); !slices.Equal(got, []int64{2}) {
			l.Errorf("with other filters: %v", got)
		}
	})
}

func TestTasksAreCancelledInChunks(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		_, other := l.queueBatch(store.Batch{Pool: "p"}, "other")
		b, ids := l.queueBatch(store.Batch{Pool: "p"}, deviceNames(2500)...)
		held := l.mustGrant(ids[1200], deviceNames(2500)[1200], "p", 1)
		l.failTask(ids[3], deviceNames(2500)[3], "x")
		f := store.TaskFilter{Batch: b.ID}
		n, err := l.CountCancellable(l.Context(), f)
		l.must(err)
		if n != 2499 {
			l.Errorf("%d can be cancelled", n)
		}
		for i, want := range []store.BulkResult{{Tasks: 1499, AskedToStop: 1, More: true}, {Tasks: 999}, {}} {
			got, err := l.CancelTasks(l.Context(), "bulk", f, 1500)
			l.must(err)
			if diff := cmp.Diff(want, got); diff != "" {
				l.Errorf("request %d: %s", i, diff)
			}
		}
		if diff := cmp.Diff(map[string]int{"task.cancelled": 2498, "task.cancel_asked": 1}, l.eventCountsByKind("bulk")); diff != "" {
			l.Error(diff)
		}
		l.wantTask(other[0], store.Pending)
		l.wantTask(ids[3], store.Failed)
		l.wantTask(ids[2499], store.Cancelled)
		l.recordResult(held, store.ByFailure, "")
		l.wantTask(held.Task, store.Cancelled)
	})
}

// TestARunningTaskIsAskedToStopOnce cancels a running task twice. Its device must be asked to stop only once, so the log must have one
// event.
func TestARunningTaskIsAskedToStopOnce(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a")
		l.mustGrant(ids[0], "a", "p", 0)
		for range 2 {
			l.must(errOf(l.CancelTask(l.Context(), "asker", ids[0])))
		}
		if diff := cmp.Diff(map[string]int{"task.cancel_asked": 1}, l.eventCountsByKind("asker")); diff != "" {
			l.Error(diff)
		}
	})
}

func TestEndedTasksAreTriedAgain(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		future := time.Now().Add(time.Hour)
		b, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 1, NotAfter: &future}, "a", "b", "c", "d", "e")
		l.failTask(ids[0], "a", "x")
		l.recordResult(l.mustGrant(ids[1], "b", "p", 0), store.BySuccess, "1")
		l.must(errOf(l.CancelTask(l.Context(), "op", ids[2])))
		running := l.mustGrant(ids[3], "d", "p", 1)
		f := store.TaskFilter{Batch: b.ID}
		if n, err := l.CountRetriable(l.Context(), f); err != nil || n != 2 {
			l.Errorf("%d can be tried again, %v", n, err)
		}
		got, err := l.RetryTasks(l.Context(), "retrier", f, 1000)
		l.must(err)
		if diff := cmp.Diff(store.BulkResult{Tasks: 2}, got); diff != "" {
			l.Error(diff)
		}
		if diff := cmp.Diff(map[string]int{"task.retried": 2}, l.eventCountsByKind("retrier")); diff != "" {
			l.Error(diff)
		}
		again := l.wantTask(ids[0], store.Pending)
		if again.FinishedAt != nil || again.Error != "" || again.Attempts != 1 {
			l.Errorf("pending again: %+v", again)
		}
		l.wantTask(ids[2], store.Pending)
		// The retried task has one more attempt, with the next number. Then it ends again.
		if g := l.mustGrant(ids[0], "a", "p", 0); g.Attempt != 2 {
			l.Errorf("attempt %d", g.Attempt)
		} else {
			l.recordResult(g, store.ByFailure, "")
		}
		l.wantTask(ids[0], store.Failed)

		for _, open := range []int64{ids[2], ids[3], ids[4]} {
			_, err := l.RetryTask(l.Context(), "op", open)
			l.must(err)
		}
		if _, err := l.RetryTask(l.Context(), "op", ids[1]); !errors.Is(err, store.ErrNotRetriable) {
			l.Errorf("a success: %v", err)
		}
		if _, err := l.RetryTask(l.Context(), "op", 999); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("no task: %v", err)
		}
		if task, err := l.RetryTask(l.Context(), "op", ids[0]); err != nil || task.State != store.Pending {
			l.Errorf("%s, %v", task.State, err)
		}
		l.recordResult(running, store.ByReject, "")
		l.exec(`UPDATE batches SET not_after = {now} - 1000 * {ms} WHERE id = $1`, b.ID)
		if _, err := l.RetryTask(l.Context(), "op", ids[3]); !errors.Is(err, store.ErrNotRetriable) {
			l.Errorf("past its not_after: %v", err)
		}
		if got, err := l.RetryTasks(l.Context(), "op", f, 1000); err != nil || got.Tasks != 0 {
			l.Errorf("past its not_after: %+v, %v", got, err)
		}
	})
}

// explainAnalyze executes a query and returns its plan with the actual row counts, line by line.
func (l *ledger) explainAnalyze(query string, args ...any) (plan []string) {
	l.Helper()
	rows, err := l.DB().QueryContext(l.Context(), l.Text(`EXPLAIN (ANALYZE, BUFFERS OFF) `+query), args...)
	l.must(err)
	defer rows.Close()
	for rows.Next() {
		var line string
		l.must(rows.Scan(&line))
		plan = append(plan, line)
	}
	l.must(rows.Err())
	return plan
}
