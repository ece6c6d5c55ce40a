package store_test

import (
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// TestMillion measures the queries of operators and of device reports with a million tasks and a million devices.
// It also logs the query plans of the lists:
//
//	MILLION=1 go test ./store -run 'TestMillion$' -v -timeout 30m
func TestMillion(t *testing.T) {
	t.Parallel()
	if os.Getenv("MILLION") == "" {
		t.Skip("runs with MILLION=1 in the environment")
	}
	dsn := sharedPostgres.NewLedger(t)
	l := migrateOpened(t)(store.OpenPostgres(t.Context(), dsn, longTimeouts()))
	l.insertMillion(dsn)
	for _, m := range []struct {
		name string
		list store.TaskFilter
		want int // number of rows; -1 means any number
	}{
		{"failed", store.TaskFilter{State: store.Failed}, 12},
		{"failed, of a device", store.TaskFilter{State: store.Failed, Device: "m-0083333"}, 1},
		{"error", store.TaskFilter{Error: "no route to*"}, 12},
		{"error, failed, pool", store.TaskFilter{Error: "no route to host", State: store.Failed, Pool: "p"}, 12},
		{"rare kind", store.TaskFilter{Kind: "rare"}, 12},
		{"rare kind, failed", store.TaskFilter{Kind: "rare", State: store.Failed}, 0},
		{"common kind", store.TaskFilter{Kind: "common"}, 100},
		{"common kind, failed", store.TaskFilter{Kind: "common", State: store.Failed}, 12},
		{"no such kind", store.TaskFilter{Kind: "none"}, 0},
		{"device", store.TaskFilter{Device: "m-0500000"}, 1},
		{"batch", store.TaskFilter{Batch: 150}, 100},
		{"batch, failed", store.TaskFilter{Batch: 150, State: store.Failed}, 1},
		{"batch, pending", store.TaskFilter{Batch: 150, State: store.Pending}, 100},
		{"pending", store.TaskFilter{State: store.Pending}, 100},
		{"pool, pending", store.TaskFilter{Pool: "p", State: store.Pending}, 100},
		{"pool, pending, later page", store.TaskFilter{Pool: "p", State: store.Pending, After: 900_000}, 100},
		{"succeeded, later page", store.TaskFilter{State: store.Succeeded, After: 400_000}, 100},
		{"all, 1000 of the end", store.TaskFilter{After: 999_000, Limit: 1000}, -1},
	} {
		l.measure(m.name, func() {
			list, err := l.Tasks(l.Context(), m.list)
			l.must(err)
			if m.want >= 0 && len(list) != m.want {
				l.Errorf("%s: %d tasks, want %d", m.name, len(list), m.want)
			}
		})
		l.logPlan(m.list)
	}
	l.measureQueries()
	l.measureRetention()
}

func (l *ledger) measureQueries() {
	l.Helper()
	ctx := l.Context()
	for name, read := range map[string]func() error{
		"view of a report":                      func() error { return errOf(l.DeviceViews(ctx, []string{"m-0700000"})) },
		"first 100 batches with counts":         func() error { return errOf(l.Batches(ctx, store.BatchFilter{}, 0, 100)) },
		"a batch with counts":                   func() error { return errOf(l.Batch(ctx, 7)) },
		"events of a task":                      func() error { return errOf(l.Events(ctx, store.EventFilter{Task: 123_456})) },
		"newest events":                         func() error { return errOf(l.Events(ctx, store.EventFilter{Newest: true})) },
		"devices by a tag of 1,000":             l.deviceRead(store.DeviceFilter{Tags: map[string]string{"area": "42"}}),
		"devices by a tag of half":              l.deviceRead(store.DeviceFilter{Tags: map[string]string{"half": "0"}}),
		"devices, later page":                   l.deviceRead(store.DeviceFilter{After: "m-0900000"}),
		"pools with work":                       func() error { return errOf(l.PoolsWithWork(ctx, []string{"p"})) },
		"100 open batches of a pool":            func() error { return errOf(l.OpenBatches(ctx, "p", 0, 100)) },
		"reachable devices among 500 tasks":     l.reachableSearch(store.TaskPosition{}),
		"reachable devices, far into the batch": l.reachableSearch(store.TaskPosition{Set: true, Task: 749_000}),
		"cancel of a task":                      func() error { return errOf(l.CancelTask(ctx, "op", 800_000)) },
		"retention that finds nothing":          func() error { return errOf(l.Retain(ctx, 24*time.Hour, 2000)) },
	} {
		l.measure(name, func() { l.must(read()) })
	}
	slot := 0
	l.measure("claim", func() {
		slot++
		l.mustGrant(int64(600_000+slot), fmt.Sprintf("m-%07d", 600_000+slot), "p", slot)
	})
}

func (l *ledger) deviceRead(f store.DeviceFilter) func() error {
	return func() error { return errOf(l.Devices(l.Context(), f)) }
}

func (l *ledger) reachableSearch(after store.TaskPosition) func() error {
	return func() error {
		return errOf(l.ReachableDevices(l.Context(), store.ReachableSearch{Pool: "p", Batch: 150, After: after, SeenWithin: time.Hour, Limit: 500}))
	}
}

// insertMillion fills the ledger with 200 batches of 5,000 tasks of one kind, and one batch of 12 tasks of another kind. Each device has
// one task of the first kind. Half of the tasks of the first kind have succeeded, and 12 have failed.
func (l *ledger) insertMillion(dsn string) {
	l.Helper()
	l.putPool("p", 1000)
	db, err := sql.Open("postgres", dsn)
	l.must(err)
	defer func() { _ = db.Close() }()
	for _, statement := range []string{
		`INSERT INTO devices (id, tags, created_at) SELECT 'm-' || lpad(n::text, 7, '0'),
			jsonb_build_object('area', (n % 1000)::text, 'half', (n % 2)::text), now() FROM generate_series(1, 1000000) n`,
		`INSERT INTO batches (pool, kind, created_at, total) SELECT 'p', 'common', now(), 5000 FROM generate_series(1, 200)`,
		`INSERT INTO batches (pool, kind, created_at, total) VALUES ('p', 'rare', now(), 12)`,
		`INSERT INTO tasks (batch, pool, device, state, error, finished_at)
			SELECT (n - 1) / 5000 + 1, 'p', 'm-' || lpad(n::text, 7, '0'),
				CASE WHEN n % 83333 = 0 THEN 'failed' WHEN n <= 500000 THEN 'succeeded' ELSE 'pending' END,
				CASE WHEN n % 83333 = 0 THEN 'no route to host' ELSE '' END, CASE WHEN n <= 500000 THEN now() END
			FROM generate_series(1, 1000000) n`,
		`INSERT INTO tasks (batch, pool, device) SELECT 201, 'p', 'm-' || lpad(n::text, 7, '0') FROM generate_series(1, 12) n`,
		`INSERT INTO events (at, kind, task, batch, device) SELECT now(), 'task.succeeded', id, batch, device FROM tasks WHERE id <= 500000`,
		`INSERT INTO batch_deltas (batch, pool, state, n) SELECT batch, pool, state, count(*) FROM tasks WHERE state <> 'pending' GROUP BY batch, pool, state`,
		`UPDATE devices SET reach = 1, last_seen = now(), quiet_until = now() WHERE id LIKE '%7'`,
		`VACUUM ANALYZE`,
	} {
		begin := time.Now()
		_, err := db.ExecContext(l.Context(), statement)
		l.must(err)
		l.Logf("%.40s: %s", strings.Join(strings.Fields(statement), " "), time.Since(begin).Round(time.Second))
	}
}

// measure calls read 21 times and logs the median and the longest duration.
func (l *ledger) measure(name string, read func()) {
	l.Helper()
	var took []time.Duration
	for range 21 {
		begin := time.Now()
		read()
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	l.Logf("%-32s median %8s   worst %8s", name, took[len(took)/2].Round(10*time.Microsecond), took[len(took)-1].Round(10*time.Microsecond))
}

func (l *ledger) logPlan(f store.TaskFilter) {
	l.Helper()
	text, args := store.TasksQuery(f)
	l.Logf("%s\n%s", text[strings.LastIndex(text, "WHERE"):], strings.Join(l.explainAnalyze(text, args...), "\n"))
}

// measureRetention makes all batches 100 days older and logs the duration of one call of Retain with the limit 20,000.
func (l *ledger) measureRetention() {
	l.Helper()
	l.exec(`UPDATE batches SET created_at = created_at - interval '100 days'`)
	begin := time.Now()
	got, err := l.Retain(l.Context(), time.Millisecond, 20_000)
	l.must(err)
	l.Logf("retention: %d tasks and %d batches in %s", got.Tasks, got.Batches, time.Since(begin).Round(time.Millisecond))
}
