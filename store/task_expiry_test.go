package store_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// queueTasks creates a batch with these tasks and returns the ids of the tasks.
func (l *ledger) queueTasks(b store.Batch, tasks ...store.NewTask) (ids []int64) {
	l.Helper()
	created, err := l.CreateBatch(l.Context(), "op", b, newTasks(tasks))
	l.must(err)
	list, err := l.Tasks(l.Context(), store.TaskFilter{Batch: created.ID})
	l.must(err)
	for _, task := range list {
		ids = append(ids, task.ID)
	}
	return ids
}

func (l *ledger) wantExpired(want int) {
	l.Helper()
	if n, err := l.Expire(l.Context(), 10); err != nil || n != want {
		l.Fatalf("expired %d, %v, want %d", n, err, want)
	}
}

// readCandidates returns the candidates in the view of a device (the tasks that may be granted to it), in the order of their batches.
func (l *ledger) readCandidates(device string) []store.Candidate {
	l.Helper()
	views, err := l.DeviceViews(l.Context(), []string{device})
	l.must(err)
	return views[0].Candidates
}

// ageTasksByHour makes all tasks look one hour older.
func (l *ledger) ageTasksByHour() {
	l.Helper()
	l.exec(`UPDATE tasks SET not_before = not_before - 3600000 * {ms}, retry_at = retry_at - 3600000 * {ms}, not_after = not_after - 3600000 * {ms}`)
}

func TestTasksBeginAtTheirOwnTime(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		high, soon, later := 5, time.Now().Add(30*time.Minute), time.Now().Add(90*time.Minute)
		var tasks []store.NewTask
		for range 12 { // more tasks than are compared, with a higher priority than the task that may start
			tasks = append(tasks, store.NewTask{Device: "a", Priority: &high, NotBefore: &later})
		}
		tasks = append(tasks, store.NewTask{Device: "a", NotBefore: &soon}, store.NewTask{Device: "a"}, store.NewTask{Device: "b", NotBefore: &soon})
		ids := l.queueTasks(store.Batch{Pool: "p", MaxAttempts: 3}, tasks...)
		if got := l.readCandidates("a"); len(got) != 1 || got[0].Task != ids[13] || got[0].RetryAtIsNotBefore || !got[0].RetryAt.IsZero() {
			l.Fatalf("candidates %+v", got)
		}
		if got := l.readCandidates("b"); len(got) != 1 || !got[0].RetryAtIsNotBefore || got[0].RetryAt.UnixMilli() != soon.UnixMilli() {
			l.Fatalf("candidates %+v", got)
		}
		if n := l.countWaitingUpTo(10, "p"); n != 1 {
			l.Errorf("%d devices wait", n)
		}
		task := l.wantTask(ids[12], store.Pending)
		if task.NotBefore == nil || task.NotBefore.UnixMilli() != soon.UnixMilli() || task.RetryAt != nil || task.NotAfter != nil {
			l.Errorf("%+v", task)
		}
		l.wantStatuses(l.claimAll(l.newClaim(ids[12], "a", "p", 0), l.newClaim(ids[14], "b", "p", 1)), claimLost, claimLost)
		l.ageTasksByHour()
		l.recordResult(l.mustGrant(ids[13], "a", "p", 0), store.BySuccess, "")
		g := l.mustGrant(ids[12], "a", "p", 0)
		l.recordResult(g, store.ByFailure, "")
		if got := l.readCandidates("a"); len(got) != 1 || got[0].Task != ids[12] || got[0].RetryAtIsNotBefore || got[0].Attempt != 2 {
			l.Errorf("candidates after a failure %+v", got)
		}
	})
}

// TestRetriedTasksKeepTheirTimes checks a task with its own not_before and not_after. When an operator retries the task, it must keep both
// times.
func TestRetriedTasksKeepTheirTimes(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		soon, end := time.Now().Add(30*time.Minute), time.Now().Add(50*time.Minute)
		ids := l.queueTasks(store.Batch{Pool: "p"}, store.NewTask{Device: "a", NotBefore: &soon, NotAfter: &end})
		retry := func() error {
			_, err := l.CancelTask(l.Context(), "op", ids[0])
			l.must(err)
			_, err = l.RetryTask(l.Context(), "op", ids[0])
			return err
		}
		l.must(retry())
		l.wantStatuses(l.claimAll(l.newClaim(ids[0], "a", "p", 0)), claimLost)
		if got := l.readCandidates("a"); len(got) != 1 || !got[0].RetryAtIsNotBefore {
			l.Errorf("candidates %+v", got)
		}
		l.ageTasksByHour()
		if err := retry(); !errors.Is(err, store.ErrNotRetriable) {
			l.Errorf("retried past its end: %v", err)
		}
		if n, err := l.CountRetriable(l.Context(), store.TaskFilter{Device: "a"}); n != 0 || err != nil {
			l.Errorf("%d to be retried, %v", n, err)
		}
	})
}

func TestTasksExpireAtTheirOwnTime(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		end := time.Now().Add(30 * time.Minute)
		ids := l.queueTasks(store.Batch{Pool: "p"}, store.NewTask{Device: "a", NotAfter: &end}, store.NewTask{Device: "b", NotAfter: &end}, store.NewTask{Device: "b"})
		l.mustGrant(ids[0], "a", "p", 0)
		l.wantExpired(0)
		l.ageTasksByHour()
		l.wantStatuses(l.claimAll(l.newClaim(ids[1], "b", "p", 1)), claimLost)
		if got := l.readCandidates("b"); len(got) != 1 || got[0].Task != ids[2] {
			l.Fatalf("candidates %+v", got)
		}
		l.wantExpired(1)
		l.wantExpired(0)
		l.wantTask(ids[0], store.Dispatched)
		l.wantTask(ids[1], store.Expired)
		l.wantTask(ids[2], store.Pending)
		events, err := l.Events(l.Context(), store.EventFilter{Device: "b"})
		l.must(err)
		if last := events[len(events)-1]; last.Kind != "task.expired" || last.Detail != "not started by its own not_after" || last.Task != ids[1] {
			l.Errorf("%+v", last)
		}
	})
}

// TestEndsAreCheckedAgain checks a task that the search found to be overdue. If the task is no longer overdue when it is locked, it must
// not be ended.
func TestEndsAreCheckedAgain(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		end := time.Now().Add(time.Hour)
		ids := l.queueTasks(store.Batch{Pool: "p", MaxWait: time.Minute, NotAfter: &end, MaxAttempts: 3}, store.NewTask{Device: "a", NotAfter: &end}, store.NewTask{Device: "b"})
		l.exec(`UPDATE batches SET wait_until = {now} - 1000 * {ms}`)
		ends := func(want int, what string, change func(context.Context, ...int64) (int, error), tasks ...int64) {
			l.Helper()
			if n, err := change(l.Context(), tasks...); n != want || err != nil {
				l.Errorf("%s: %d ended, %v, want %d", what, n, err, want)
			}
		}
		l.exec(`UPDATE tasks SET started = true WHERE id = $1`, ids[0])
		ends(0, "returned meanwhile", l.EndWaitedTooLong, ids[0])
		_, err := l.ChangeBatch(l.Context(), "op", l.wantTask(ids[0], store.Pending).Batch, func(b *store.Batch) error {
			b.MaxWait = 0
			return nil
		})
		l.must(err)
		ends(0, "max_wait lifted meanwhile", l.EndWaitedTooLong, ids[1])
		ends(0, "not_after later meanwhile", l.EndAfterDeadline, ids...)
		for _, id := range ids {
			l.wantTask(id, store.Pending)
		}
	})
}

// TestStartedTasksExpireAsUnfinished checks that the error of an expired task shows whether the task was ever
// started.
func TestStartedTasksExpireAsUnfinished(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		end := time.Now().Add(30 * time.Minute)
		own := l.queueTasks(store.Batch{Pool: "p", MaxAttempts: 3}, store.NewTask{Device: "a", NotAfter: &end}, store.NewTask{Device: "b", NotAfter: &end})
		shared := l.queueTasks(store.Batch{Pool: "p", MaxAttempts: 3, NotAfter: &end}, store.NewTask{Device: "c"}, store.NewTask{Device: "d"})
		l.recordResult(l.mustGrant(own[0], "a", "p", 0), store.ByFailure, "")
		l.recordResult(l.mustGrant(shared[0], "c", "p", 0), store.ByReturn, "")
		l.exec(`UPDATE batches SET not_after = not_after - 3600000 * {ms}`)
		l.ageTasksByHour()
		l.wantExpired(4)
		for id, want := range map[int64]string{
			own[0]: "not finished by its own not_after", own[1]: "not started by its own not_after",
			shared[0]: "not finished by the not_after of its batch", shared[1]: "not started by the not_after of its batch",
		} {
			if task := l.wantTask(id, store.Expired); task.Error != want {
				l.Errorf("task %d: %q, want %q", id, task.Error, want)
			}
		}
	})
}

// TestExpiryGoesByItsIndex checks that the pass that expires tasks reads only the tasks that it ends. This must hold even for a query plan
// that was made while the tables were empty.
func TestExpiryGoesByItsIndex(t *testing.T) {
	t.Parallel()
	for i, index := range []string{"batches_not_after", "tasks_not_after"} {
		t.Run(index, func(t *testing.T) {
			t.Parallel()
			l := openSingleConn(t)
			l.exec(`SET plan_cache_mode = force_generic_plan`)
			text := l.Text(store.ExpiryTexts()[i])
			l.exec(`PREPARE empty AS ` + text)
			l.putPool("p", 1)
			l.exec(loadSQL)
			l.exec(`ANALYZE`)
			l.exec(`UPDATE tasks SET not_after = now() + CASE WHEN id % 1000 = 7 THEN interval '0' ELSE interval '1 day' END`)
			l.exec(`UPDATE batches SET not_after = now() + CASE WHEN id = 7 THEN interval '0' ELSE interval '1 day' END`)
			l.exec(`PREPARE analyzed AS ` + text)
			for _, name := range []string{"empty", "analyzed"} {
				plan := l.explainAnalyze(`EXECUTE ` + name + `(1000)`)
				text := strings.Join(plan, "\n")
				if !strings.Contains(text, index) || !strings.Contains(text, "Index Cond: (not_after <=") || strings.Contains(text, "Removed by Filter") || maxRowsRead(plan) > 70 {
					t.Errorf("planned %s:\n%s", name, text)
				}
			}
		})
	}
}

// TestEndedBatchesCostNoneOfTheTasksThatWait checks the search for batches with overdue tasks. It must read at most one row for each ended
// batch, and at most limit batches at once. This must hold even for a query plan that was made while the tables were empty.
func TestEndedBatchesCostNoneOfTheTasksThatWait(t *testing.T) {
	t.Parallel()
	const searchLimit, ended = 1000, 5000
	l := openSingleConn(t)
	l.exec(`SET plan_cache_mode = force_generic_plan`)
	text := l.Text(store.OverdueText())
	l.exec(`PREPARE empty AS ` + text)
	l.exec(`INSERT INTO batches (pool, created_at, max_wait_ms, wait_until) SELECT 'p', now(), 1, now() - interval '1 day' FROM generate_series(1, $1)`, ended)
	l.exec(`INSERT INTO tasks (batch, pool, device, state) SELECT id, 'p', 'd' || id, 'succeeded' FROM batches`)
	l.exec(`INSERT INTO batches (pool, created_at) SELECT 'p', now() FROM generate_series(1, 300)`)
	l.exec(`INSERT INTO tasks (batch, pool, device) SELECT $1 + 1 + i % 300, 'p', 'd' || i FROM generate_series(1, 20000) AS i`, ended)
	for _, state := range []string{"loaded", "analyzed"} {
		l.exec(`PREPARE ` + state + ` AS ` + text)
		for _, name := range []string{"empty", state} {
			for _, after := range []string{"0", "3000"} {
				plan := l.explainAnalyze(`EXECUTE ` + name + `(` + after + `, 1000)`)
				if !strings.Contains(strings.Join(plan, "\n"), "batches_with_wait") || maxRowsRead(plan) > searchLimit+1 {
					t.Errorf("%s, planned %s:\n%s", state, name, strings.Join(plan, "\n"))
				}
			}
		}
		l.exec(`ANALYZE`)
	}
	steps := 0
	for mark := (store.ExpiryPosition{}); steps == 0 || mark != (store.ExpiryPosition{}); steps++ {
		expired, next, err := l.ExpireWaited(t.Context(), mark, searchLimit)
		l.must(err)
		if mark = next; expired != 0 {
			t.Errorf("%d expired", expired)
		}
	}
	if steps != ended/searchLimit {
		t.Errorf("%d steps, want %d", steps, ended/searchLimit)
	}
}

// expireAllWaited calls ExpireWaited with this limit until the search has reached the end. It returns the number of expired tasks.
func (l *ledger) expireAllWaited(limit int) (expired int) {
	l.Helper()
	mark := store.ExpiryPosition{}
	for range 10_000 {
		n, next, err := l.ExpireWaited(l.Context(), mark, limit)
		l.must(err)
		if expired += n; next == (store.ExpiryPosition{}) {
			return expired
		}
		mark = next
	}
	l.Fatalf("no end at %+v", mark)
	return 0
}

func (l *ledger) wantWaitedExpired(want int) {
	l.Helper()
	if expired := l.expireAllWaited(2); expired != want {
		l.Fatalf("expired %d, want %d", expired, want)
	}
}

// ageBatchByHour makes a batch and its tasks look one hour older.
func (l *ledger) ageBatchByHour(batch int64) {
	l.Helper()
	l.exec(`UPDATE batches SET created_at = created_at - 3600000 * {ms}, not_before = not_before - 3600000 * {ms}, wait_until = wait_until - 3600000 * {ms} WHERE id = $1`, batch)
	l.exec(`UPDATE tasks SET not_before = not_before - 3600000 * {ms}, retry_at = retry_at - 3600000 * {ms} WHERE batch = $1`, batch)
}

func TestTasksDoNotWaitLongerThanTheirBatchAllows(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		later := time.Now().Add(100 * time.Minute)
		ids := l.queueTasks(store.Batch{Pool: "p", MaxWait: 30 * time.Minute, MaxAttempts: 3},
			store.NewTask{Device: "never"}, store.NewTask{Device: "runs"}, store.NewTask{Device: "failed"}, store.NewTask{Device: "returned"},
			store.NewTask{Device: "later", NotBefore: &later}, store.NewTask{Device: "never"}, store.NewTask{Device: "paused"})
		batch := l.wantTask(ids[0], store.Pending).Batch
		l.recordResult(l.mustGrant(ids[2], "failed", "p", 0), store.ByFailure, "")
		l.recordResult(l.mustGrant(ids[3], "returned", "p", 0), store.ByReturn, "")
		paused := l.mustGrant(ids[6], "paused", "p", 0)
		l.must(l.AskCancel(l.Context(), paused.Task, paused.Token, "paused"))
		l.recordResult(paused, store.ByReturn, "")
		l.mustGrant(ids[1], "runs", "p", 0)
		l.wantWaitedExpired(0)
		l.ageBatchByHour(batch)
		l.wantStatuses(l.claimAll(l.newClaim(ids[0], "never", "p", 1)), claimLost)
		for device, want := range map[string]int{"never": 0, "failed": 1, "returned": 1, "paused": 1, "later": 1} {
			if got := l.readCandidates(device); len(got) != want {
				l.Errorf("candidates of %s: %+v", device, got)
			}
		}
		l.wantWaitedExpired(2)
		l.wantWaitedExpired(0)
		for i, want := range []store.TaskState{store.Expired, store.Dispatched, store.Pending, store.Pending, store.Pending, store.Expired, store.Pending} {
			if task := l.wantTask(ids[i], want); want == store.Expired && task.Error != "waited longer than max_wait" {
				l.Errorf("%+v", task)
			}
		}
		events, err := l.Events(l.Context(), store.EventFilter{Device: "never"})
		l.must(err)
		if last := events[len(events)-1]; last.Kind != "task.expired" || last.Detail != "waited longer than max_wait" {
			l.Errorf("%+v", last)
		}
		if _, err := l.RetryTask(l.Context(), "op", ids[0]); !errors.Is(err, store.ErrNotRetriable) {
			l.Errorf("retried: %v", err)
		}
		l.mustGrant(ids[2], "failed", "p", 1)
		// The last task of the batch has a not_before of its own, from which its max_wait is counted.
		l.ageBatchByHour(batch)
		l.mustGrant(ids[4], "later", "p", 2)
		l.recordResult(l.mustGrant(ids[3], "returned", "p", 3), store.BySuccess, "")
		l.wantWaitedExpired(0)
	})
}

// TestRetriedReturnsAreNotSubjectToMaxWait checks a task that was returned, cancelled and retried. It must still count as started, so that
// max_wait does not end it.
func TestRetriedReturnsAreNotSubjectToMaxWait(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		ids := l.queueTasks(store.Batch{Pool: "p", MaxWait: 30 * time.Minute, MaxAttempts: 3}, store.NewTask{Device: "a"})
		for i := range 3 {
			l.recordResult(l.mustGrant(ids[0], "a", "p", 0), store.ByReturn, "")
			l.exec(`UPDATE tasks SET retry_at = NULL`)
			if i == 0 {
				l.ageBatchByHour(l.wantTask(ids[0], store.Pending).Batch)
			}
			_, err := l.CancelTask(l.Context(), "op", ids[0])
			l.must(err)
			_, err = l.RetryTask(l.Context(), "op", ids[0])
			l.must(err)
			l.wantWaitedExpired(0)
			l.wantTask(ids[0], store.Pending)
		}
		if returns := l.countReturns(ids[0]); returns != 0 {
			l.Errorf("%d returns are counted after a retry", returns)
		}
	})
}

// TestMaxWaitCanBeChanged checks that a new max_wait of a batch applies at once to all its waiting tasks.
func TestMaxWaitCanBeChanged(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		begin := time.Now().Add(time.Hour)
		ids := l.queueTasks(store.Batch{Pool: "p", NotBefore: &begin}, store.NewTask{Device: "a"}, store.NewTask{Device: "b"})
		batch := l.wantTask(ids[0], store.Pending).Batch
		change := func(to time.Duration) {
			b, err := l.ChangeBatch(l.Context(), "op", batch, func(b *store.Batch) error {
				b.MaxWait = to
				return nil
			})
			if err != nil || b.MaxWait != to {
				l.Fatalf("%s, %v, want %s", b.MaxWait, err, to)
			}
		}
		l.ageBatchByHour(batch) // The batch begins now.
		change(time.Minute)
		l.wantWaitedExpired(0)
		l.ageBatchByHour(batch)
		if got := l.readCandidates("a"); len(got) != 0 {
			l.Fatalf("candidates %+v", got)
		}
		read, err := l.NewsSince(l.Context(), 0)
		l.must(err)
		change(0)
		if after, err := l.NewsSince(l.Context(), read.Newest); err != nil || !slices.ContainsFunc(after.Rows, func(n store.News) bool { return n.Batch == batch }) {
			l.Errorf("news %+v, %v", after, err)
		}
		l.wantWaitedExpired(0)
		change(time.Minute)
		l.wantWaitedExpired(2)
		change(2 * time.Hour)
		_, err = l.RetryTask(l.Context(), "op", ids[0])
		l.must(err)
		if task := l.wantTask(ids[0], store.Pending); task.Error != "" {
			l.Errorf("%+v", task)
		}
		l.mustGrant(ids[0], "a", "p", 0)
	})
}
