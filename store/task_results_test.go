package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// TestResultsAreOfWhatEnded checks that Results returns only tasks that have ended, each with its last attempt, in the order of ids and in
// pages.
func TestResultsAreOfWhatEnded(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 50)
		names := deviceNames(8)
		b, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 1}, names...)
		l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 1}, names...)
		for i, cause := range map[int]store.EndCause{1: store.BySuccess, 2: store.ByFailure, 4: store.BySuccess, 6: store.BySuccess} {
			l.recordResult(l.mustGrant(ids[i], names[i], "p", i), cause, fmt.Sprintf(`{"n": %d}`, i))
		}
		_, err := l.CancelTask(l.Context(), "op", ids[5])
		l.must(err)
		l.mustGrant(ids[7], names[7], "p", 7)
		var got []string
		for after := int64(0); ; {
			page, err := l.Results(l.Context(), store.ResultFilter{Batch: b.ID, After: after, Limit: 2})
			l.must(err)
			if len(page) == 0 {
				break
			}
			for _, r := range page {
				got = append(got, fmt.Sprintf("%s %s %s", r.Device, r.State, r.Output))
				if ran := r.Granted != nil && r.Freed != nil && !r.Freed.Before(*r.Granted); ran != (r.State != store.Cancelled) || r.Ended == nil {
					l.Errorf("%+v", r)
				}
			}
			after = page[len(page)-1].Task
		}
		want := []string{
			names[1] + ` succeeded {"n": 1}`, names[2] + ` failed {"n": 2}`, names[4] + ` succeeded {"n": 4}`, names[5] + ` cancelled `, names[6] + ` succeeded {"n": 6}`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			l.Error(diff)
		}
		failed, err := l.Results(l.Context(), store.ResultFilter{Batch: b.ID, State: store.Failed})
		l.must(err)
		if len(failed) != 1 || failed[0].Task != ids[2] {
			l.Errorf("%+v", failed)
		}
	})
}

// TestASampleIsOfAllPartsOfABatch checks a sample of the results of a batch. It must have the requested size and cover all parts of the
// batch. If there are fewer results than requested, it must have all of them.
func TestASampleIsOfAllPartsOfABatch(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 50)
		l.exec(`INSERT INTO devices (id, tags, created_at) VALUES ('d', '{"site":"a"}', {now})`)
		b, ids := l.queueBatch(store.Batch{Pool: "p"}, slices.Repeat([]string{"d"}, 4000)...)
		none := 0
		l.must(l.SampleResults(l.Context(), store.SampleSpec{ResultFilter: store.ResultFilter{Batch: b.ID}, MaxResults: 100}, func(store.SampledResult) { none++ }))
		if none != 0 {
			l.Errorf("%d results of a batch of which nothing ended", none)
		}
		l.exec(`UPDATE tasks SET state = CASE WHEN id % 4 = 0 THEN 'failed' ELSE 'succeeded' END, output = '{"n":1}', finished_at = {now} WHERE id % 2 = 0`)
		of := store.SampleSpec{ResultFilter: store.ResultFilter{Batch: b.ID}, MaxResults: 200, WithTags: true}
		parts := map[int64]int{}
		l.must(l.SampleResults(l.Context(), of, func(r store.SampledResult) {
			parts[20*(r.Task-ids[0])/4000]++
			if r.Tags["site"] != "a" || string(r.Output) != `{"n":1}` {
				l.Errorf("%+v", r)
			}
		}))
		for i := range int64(20) {
			if parts[i] < 9 || parts[i] > 11 { // The first part begins at the first ended task, so the bounds differ slightly.
				l.Errorf("part %d: %d, want 10", i, parts[i])
			}
		}
		odd := 0
		of.MaxResults = 39
		l.must(l.SampleResults(l.Context(), of, func(store.SampledResult) { odd++ }))
		if odd != 39 {
			l.Errorf("a sample of 39 has %d", odd)
		}
		of.MaxResults, of.ReadAll, of.State = 3000, true, store.Failed
		all, last := 0, int64(0)
		l.must(l.SampleResults(l.Context(), of, func(r store.SampledResult) {
			if all++; r.State != store.Failed || r.Task <= last {
				l.Errorf("%+v after %d", r, last)
			}
			last = r.Task
		}))
		if all != 1000 {
			l.Errorf("%d failed, want 1000", all)
		}
	})
}

// TestResultsOfATime checks the results of one period. Each call searches one range of task ids. Each result must
// be found exactly once.
func TestResultsOfATime(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 50)
		b, _ := l.queueBatch(store.Batch{Pool: "p"}, "d")
		l.exec(`INSERT INTO tasks (batch, pool, device) WITH RECURSIVE more(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more WHERE n < $2)
			SELECT $1, 'p', 'd' FROM more`, b.ID, store.MaxExaminedRows+1999)
		noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		l.exec(`UPDATE tasks SET state = CASE WHEN id % 2 = 0 THEN 'failed' ELSE 'succeeded' END, error = CASE WHEN id % 2 = 0 THEN 'E' ELSE '' END,
			finished_at = {epoch} + ($1 + id % 100 * 60000) * {ms} WHERE id % 100 < 50`, noon.UnixMilli())
		l.exec(`UPDATE tasks SET state = 'succeeded', finished_at = {epoch} + $1 * {ms} WHERE id % 100 >= 50`, noon.Add(-time.Hour).UnixMilli())
		f := store.ResultFilter{Batch: b.ID, Since: noon.Add(7 * time.Minute), Until: noon.Add(9 * time.Minute), Limit: 1000}
		found, last := 0, int64(0)
		for pages := 0; ; pages++ {
			bound, err := l.ResultSearchBound(l.Context(), f)
			l.must(err)
			f.LastTask = bound.End
			list, err := l.Results(l.Context(), f)
			l.must(err)
			for _, r := range list {
				if minute := r.Task % 100; minute != 7 && minute != 8 || r.Task <= last {
					l.Fatalf("%+v after %d", r, last)
				}
				last = r.Task
			}
			found += len(list)
			if len(list) == 1000 {
				f.After = last
				continue
			}
			if !bound.More {
				break
			}
			f.After = bound.End
			if pages > 5 {
				l.Fatal("no end")
			}
		}
		if want := 2 * (store.MaxExaminedRows + 2000) / 100; found != want {
			l.Errorf("%d results, want %d", found, want)
		}
		top, err := l.TopErrors(l.Context(), f, 1000, 5)
		l.must(err)
		if len(top) != 1 || top[0].Error != "E" || top[0].Tasks != 40 { // 1 in 25 of 1,000 failed tasks ended in this period
			l.Errorf("%+v", top)
		}
	})
}

// TestResultsReadNoMoreThanTheyShow checks that a page of results and a sample of results read only a few more rows than they return, even
// among many other tasks.
func TestResultsReadNoMoreThanTheyShow(t *testing.T) {
	t.Parallel()
	l := openWithManyTasks(t)
	l.exec(`UPDATE tasks SET finished_at = now(), output = '{"a":1}' WHERE state <> 'pending'`)
	l.exec(`INSERT INTO attempts (token, task, number, device, pool, slot, lease, granted_at, ended_at, ended_by)
		SELECT id, id, 1, device, pool, 0, '', now(), now(), 'succeeded' FROM tasks WHERE batch < 20`)
	for _, statistics := range []string{`SELECT 1`, `ANALYZE`} {
		l.exec(statistics)
		of := store.SampleSpec{ResultFilter: store.ResultFilter{Batch: 3, After: 5000}, MaxResults: 200, WithTags: true}
		page, args := store.ResultsQuery(of.ResultFilter)
		timed, timedArgs := store.ResultsQuery(store.ResultFilter{Batch: 3, After: 5000, Since: time.Now()})
		sample, sampleArgs, ends := store.SampleQuery(of, 150_000, 200)
		for name, c := range map[string]struct {
			text string
			args []any
			rows int
		}{"a page": {page, args, 500}, "a page of a time": {timed, timedArgs, 6 * store.MaxExaminedRows}, "a sample": {sample, sampleArgs, 1000}, "the ends": {ends, []any{3}, 10}} {
			plan := l.explainAnalyze(c.text, c.args...)
			text := strings.Join(plan, "\n")
			if maxRowsRead(plan) > c.rows || !strings.Contains(text, "tasks_of_batch") || strings.Contains(text, "Seq Scan on tasks") {
				l.Errorf("after %s: %s: %d rows, want %d at most:\n%s", statistics, name, maxRowsRead(plan), c.rows, text)
			}
		}
	}
	small := openSQLite(t)
	page, args := store.ResultsQuery(store.ResultFilter{Batch: 3})
	for _, detail := range small.sqlitePlan(page, args...) {
		if detail == "SCAN t" || strings.HasPrefix(detail, "SCAN tasks") || strings.HasPrefix(detail, "SCAN attempts") {
			t.Error(detail)
		}
	}
}

// TestProgressAddsUp checks the progress of a batch over time. Its steps must add up to the counts of the batch, also after retries. There
// must be few steps even if the batch runs for long.
func TestProgressAddsUp(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 50)
		names := deviceNames(6)
		b, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 1}, names...)
		last := func(want store.Progress) {
			l.Helper()
			l.foldAll()
			steps, err := l.Progress(l.Context(), b.ID)
			l.must(err)
			if len(steps) == 0 {
				l.Fatal("no progress")
			}
			got := steps[len(steps)-1]
			if got.Ended != want.Ended || got.Failed != want.Failed || got.At.IsZero() {
				l.Errorf("%+v, want %+v", steps, want)
			}
		}
		l.recordResult(l.mustGrant(ids[0], names[0], "p", 0), store.BySuccess, "")
		last(store.Progress{Ended: 1})
		l.recordResult(l.mustGrant(ids[1], names[1], "p", 1), store.ByFailure, "")
		_, err := l.CancelTask(l.Context(), "op", ids[2])
		l.must(err)
		last(store.Progress{Ended: 3, Failed: 1})
		_, err = l.RetryTask(l.Context(), "op", ids[1])
		l.must(err)
		last(store.Progress{Ended: 2})
		for hour := range 24 * 14 { // as if the batch had run for two weeks, with three ended tasks each hour
			l.exec(`INSERT INTO batch_deltas (batch, pool, state, n, at) SELECT id, pool, 'succeeded', 3, created_at + $1 * {ms} FROM batches WHERE id = $2`,
				time.Duration(hour)*time.Hour/time.Millisecond, b.ID)
			l.foldAll()
		}
		last(store.Progress{Ended: 2 + 3*24*14})
		if n := l.countRows("batch_progress"); n < 150 || n > 200 { // one row for each hour of the first week, then one row for each six hours
			l.Errorf("%d rows for two weeks", n)
		}
	})
}
