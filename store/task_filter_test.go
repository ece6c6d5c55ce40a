package store_test

import (
	"database/sql"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	"github.com/fleetslots/dispatcher/migrations"
	"github.com/fleetslots/dispatcher/store"
)

// openWithManyTasks returns a ledger with 200,000 ended tasks in 20 batches of 5 pools, and a batch with one waiting task.
// Every 50,000th ended task has failed.
func openWithManyTasks(t *testing.T) *ledger {
	t.Helper()
	dsn := sharedPostgres.NewCopy(t, "many_tasks", func(db *sql.DB) error {
		_, err := migrations.Up(t.Context(), db, migrations.Postgres)
		if err == nil {
			_, err = db.ExecContext(t.Context(), manyTasksSQL)
		}
		return err
	})
	return &ledger{t, backends.OpenPostgres(t, dsn), &atomic.Int64{}}
}

const manyTasksSQL = `
	INSERT INTO pools (name, capacity, lease_ms, created_at, updated_at) SELECT 'p' || n, 1, 1000, now(), now() FROM generate_series(0, 4) n;
	INSERT INTO batches (pool, kind, created_at) SELECT 'p' || n % 5, 'k' || n, now() FROM generate_series(0, 19) n;
	INSERT INTO tasks (batch, pool, device, state, error)
		SELECT 1 + i % 20, 'p' || i % 5, 'd' || i % 5000, CASE WHEN i % 50000 = 0 THEN 'failed' ELSE 'succeeded' END, CASE WHEN i % 50000 = 0 THEN 'timeout ' || i ELSE '' END
		FROM generate_series(1, 200000) AS i;
	INSERT INTO batches (pool, kind, created_at) VALUES ('p1', 'rare', now());
	INSERT INTO tasks (batch, pool, device) VALUES (21, 'p1', 'd7')`

// maxRowsRead returns the number of rows that the plan node with the most rows has read.
func maxRowsRead(plan []string) (rows int) {
	for _, line := range plan {
		found := regexp.MustCompile(`actual time=\S+ rows=([0-9]+)\S* loops=([0-9]+)`).FindStringSubmatch(line)
		if found == nil {
			continue
		}
		each, _ := strconv.Atoi(found[1])
		times, _ := strconv.Atoi(found[2])
		rows = max(rows, each*times)
		if removed := regexp.MustCompile(`Rows Removed by Filter: ([0-9]+)`).FindStringSubmatch(line); removed != nil {
			n, _ := strconv.Atoi(removed[1])
			rows = max(rows, n)
		}
	}
	return rows
}

// TestFiltersOfTasksAreServedOrBounded checks lists of tasks with every filter. No list may read more than MaxExaminedRows tasks at a time,
// whatever statistics Postgres has. It must use an index, or read a limited range of the primary key.
func TestFiltersOfTasksAreServedOrBounded(t *testing.T) {
	t.Parallel()
	l := openWithManyTasks(t)
	for _, statistics := range []string{`SELECT 1`, `ANALYZE`, `DELETE FROM tasks WHERE id <= 100000`} {
		l.exec(statistics)
		l.expectBoundedFilters(statistics)
	}
}

func (l *ledger) expectBoundedFilters(statistics string) {
	l.Helper()
	for name, test := range map[string]struct {
		filter store.TaskFilter
		index  string
		rows   int
	}{
		"device":        {store.TaskFilter{Device: "d7"}, "tasks_of_device", 100},
		"device, error": {store.TaskFilter{Device: "d7", Error: "x"}, "tasks_of_device", 100},
		"batch":         {store.TaskFilter{Batch: 3}, "tasks_of_batch", 700},
		"batch, state":  {store.TaskFilter{Batch: 3, State: store.Failed}, "tasks_of_batch", 100},
		"batch, error":  {store.TaskFilter{Batch: 3, Error: "x"}, "tasks_of_batch", 10_000},
		"runs":          {store.TaskFilter{State: store.Dispatched, Batch: 3}, "grants", 100},
		"all":           {store.TaskFilter{}, "tasks_pkey", 100},
		"state":         {store.TaskFilter{State: store.Expired}, "tasks_pkey", store.MaxExaminedRows},
		"open":          {store.TaskFilter{State: store.Pending}, "tasks_pkey", store.MaxExaminedRows},
		"pool":          {store.TaskFilter{Pool: "p1", State: store.Failed}, "tasks_pkey", store.MaxExaminedRows},
		"kind":          {store.TaskFilter{Kind: "rare"}, "tasks_pkey", store.MaxExaminedRows},
		"prefix":        {store.TaskFilter{Error: "connect*"}, "tasks_pkey", store.MaxExaminedRows},
	} {
		for _, test.filter.Newest = range []bool{false, true} {
			filter := test.filter
			bound, err := l.TaskSearchBound(l.Context(), filter)
			l.must(err)
			filter.LimitTo(bound)
			query, args := store.TasksQuery(filter)
			plan := l.explainAnalyze(query, args...)
			if text := strings.Join(plan, "\n"); !strings.Contains(text, test.index) || strings.Contains(text, "Seq Scan on tasks") || maxRowsRead(plan) > test.rows {
				l.Errorf("after %s: %s, newest %v: %d rows, want %d by %s:\n%s", statistics, name, filter.Newest, maxRowsRead(plan), test.rows, test.index, text)
			} else if test.index == "tasks_pkey" && strings.Count(text, test.index) > 1 {
				l.Errorf("after %s: %s: each row is looked up once more:\n%s", statistics, name, text)
			}
		}
	}
}

// TestAPageOfTasksReadsNoMoreThanItself checks one page of a list of tasks. The query ends with the last row of the
// page: it does not read, sort or join later rows, even if many tasks wait or run.
func TestAPageOfTasksReadsNoMoreThanItself(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 10_000)
	l.exec(`INSERT INTO batches (pool, created_at) SELECT 'p', now() FROM generate_series(1, 5000)`)
	l.exec(`INSERT INTO tasks (batch, pool, device) SELECT 1 + i % 5000, 'p', 'd' || i FROM generate_series(1, 50000) AS i`)
	l.exec(`INSERT INTO grants (task, batch, pool, slot, device, token, lease, attempt, granted_at, lease_until, max_until, lease_ms)
		SELECT id, batch, pool, id / 10, device, id, id || '.1.x', 1, now(), now(), now(), 1000 FROM tasks WHERE id % 10 = 0`)
	l.exec(`ANALYZE`)
	for name, filter := range map[string]store.TaskFilter{
		"waiting": {State: store.Pending}, "of a pool": {Pool: "p"}, "of a pool, waiting": {Pool: "p", State: store.Pending}, "in a batch, waiting": {Batch: 7, Pool: "p", State: store.Pending},
	} {
		query, args := store.TasksQuery(filter)
		if plan := l.explainAnalyze(query, args...); maxRowsRead(plan) > 120 {
			l.Errorf("%s: %d rows are read for a page of 100:\n%s", name, maxRowsRead(plan), strings.Join(plan, "\n"))
		}
	}
}

// TestAPageOfABatchReadsNoMoreThanItself checks one page of the tasks of a batch. All tasks of the batch are pending, so no task has any of
// the other states. The query must not read the whole batch to find this out.
func TestAPageOfABatchReadsNoMoreThanItself(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.exec(`INSERT INTO pools (name, capacity, lease_ms, created_at, updated_at) VALUES ('p', 1, 1000, now(), now())`)
	l.exec(`INSERT INTO batches (pool, created_at) SELECT 'p', now() FROM generate_series(1, 3)`)
	l.exec(`INSERT INTO tasks (batch, pool, device) SELECT 1 + i % 3, 'p', 'd' || i FROM generate_series(1, 150000) AS i`)
	l.exec(`VACUUM ANALYZE tasks`)
	query, args := store.TasksQuery(store.TaskFilter{Batch: 2})
	var text string
	l.must(l.DB().QueryRowContext(l.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+l.Text(query), args...).Scan(&text))
	blocks := 0 // blocks of the whole query, which is the first node
	for _, name := range []string{"Hit", "Read"} {
		found := regexp.MustCompile(`"Shared ` + name + ` Blocks": ([0-9]+)`).FindStringSubmatch(text)
		n, err := strconv.Atoi(found[1])
		l.must(err)
		blocks += n
	}
	if blocks > 800 { // 8 for each of the 100 tasks; reading the whole batch takes 250 for each state
		l.Errorf("%d blocks are read:\n%s", blocks, text)
	}
}

// readTaskPages reads all pages of the tasks that match a filter, as a client does. It returns the ids and the
// number of pages.
func (l *ledger) readTaskPages(f store.TaskFilter) (found []int64, pages int) {
	l.Helper()
	for asked := f; ; {
		pages++
		f := asked
		bound, err := l.TaskSearchBound(l.Context(), f)
		l.must(err)
		f.LimitTo(bound)
		page := l.taskIDs(f)
		found = append(found, page...)
		switch {
		case len(page) == f.Limit:
			asked.ContinueAfter(page[len(page)-1])
		case !bound.More:
			return found, pages
		default:
			asked.ContinueAfter(bound.End)
		}
	}
}

func TestPagesFindEachMatchOnce(t *testing.T) {
	t.Parallel()
	l := openWithManyTasks(t)
	rare := []int64{50_000, 100_000, 150_000, 200_000}
	for name, test := range map[string]struct {
		filter store.TaskFilter
		want   []int64
		pages  int
	}{
		"error":         {store.TaskFilter{Error: "timeout*"}, rare, 5},
		"whole error":   {store.TaskFilter{Error: "timeout 150000"}, rare[2:3], 5},
		"state":         {store.TaskFilter{State: store.Failed, Pool: "p0"}, rare, 5},
		"kind":          {store.TaskFilter{Kind: "rare"}, []int64{200_001}, 5},
		"open, one":     {store.TaskFilter{State: store.Pending, Pool: "p1"}, []int64{200_001}, 5},
		"batch":         {store.TaskFilter{Batch: 1, State: store.Failed}, rare, 3},
		"batch, error":  {store.TaskFilter{Batch: 1, Error: "timeout*"}, rare, 3},
		"batch of one":  {store.TaskFilter{Batch: 21}, []int64{200_001}, 1},
		"device, state": {store.TaskFilter{Device: "d0", State: store.Failed}, rare, 3},
		"device, open":  {store.TaskFilter{Device: "d7", State: store.Pending}, []int64{200_001}, 1},
		"nothing":       {store.TaskFilter{Batch: 22}, nil, 1},
	} {
		test.filter.Limit = 2
		if got, pages := l.readTaskPages(test.filter); !slices.Equal(got, test.want) || pages > test.pages {
			t.Errorf("%s: %v in %d pages, want %v in %d", name, got, pages, test.want, test.pages)
		}
		test.filter.Newest = true
		want := slices.Clone(test.want)
		slices.Reverse(want)
		if got, pages := l.readTaskPages(test.filter); !slices.Equal(got, want) || pages > test.pages {
			t.Errorf("%s, newest first: %v in %d pages, want %v in %d", name, got, pages, want, test.pages)
		}
	}
	n, err := l.CountRetriable(l.Context(), store.TaskFilter{Error: "timeout*"})
	l.must(err)
	done, err := l.RetryTasks(l.Context(), "op", store.TaskFilter{Error: "timeout*"}, 3)
	l.must(err)
	again, err := l.RetryTasks(l.Context(), "op", store.TaskFilter{Error: "timeout*"}, 3)
	l.must(err)
	if n != 4 || done != (store.BulkResult{Tasks: 3, More: true}) || again != (store.BulkResult{Tasks: 1}) {
		t.Errorf("%d of all stretches, tried again %+v and %+v", n, done, again)
	}
}
