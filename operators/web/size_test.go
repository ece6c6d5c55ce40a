package web_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"
)

// ledgerSize describes the content of a ledger.
type ledgerSize struct {
	name                   string
	pools                  int
	batches, tasksPerBatch int // number of batches of the first pool, and of tasks per batch
	tasksPerOtherPool      int // number of tasks of each other pool
}

// The second size has only as many rows as each page shows. If a later size costs more than the second one, the additional rows in the
// ledger are the cause.
func ledgerSizes() []ledgerSize {
	return []ledgerSize{
		{"ten pools of ten tasks", 10, 1, 10, 10},
		{"20 pools, one of them of 10,000 tasks", 20, 40, 250, 100},
		{"20 pools, one of them of 1,000,000 tasks", 20, 200, 5000, 100},
		{"3,000 pools, one of them of 10,000 tasks", 3000, 40, 250, 100},
	}
}

// TestPagesOfManyTasksAndPools measures how long the server needs for each page (the shortest and the median time).
// It compares ledgers with a million tasks and with 3,000 pools to a ledger that just fills the pages, and to one
// with ten pools of ten tasks:
//
//	SIZES=1 go test ./operators/web -run 'TestPagesOfManyTasksAndPools$' -v
//
//nolint:paralleltest // it measures
func TestPagesOfManyTasksAndPools(t *testing.T) {
	if os.Getenv("SIZES") == "" {
		t.Skip("runs with SIZES=1 in the environment")
	}
	var benches []*testReplica
	for _, s := range ledgerSizes() {
		b := startOnServers(t)
		b.fillLedger(s)
		benches = append(benches, b)
	}
	for _, path := range []string{
		"/", "/?sort=name", "/?sort=waiting", "/find?q=p-00", "/pools/p-0001", "/pools/p-0001/waiting", "/pools/p-0001/failures?by=tags.site", "/pools/p-0001?range=7d", "/pools/p-0001/slots/7", "/batches", "/batches/1", "/batches/1/waiting", "/batches/1?field=down&tag=site", "/tasks", "/tasks?state=pending", "/tasks?state=failed", "/tasks?pool=p-0001", "/tasks?batch=1",
		"/tasks?device=d-0001-0000007", "/tasks/7", "/devices", "/devices?show=silent", "/devices/d-0001-0000007", "/activity", "/activity?pool=p-0001", "/system", "/limits",
	} {
		took := make([][]time.Duration, len(benches))
		bytes := make([]int, len(benches))
		for range 21 {
			for i, b := range benches {
				var spent time.Duration
				spent, bytes[i] = b.measurePage(path)
				took[i] = append(took[i], spent)
			}
		}
		line := fmt.Sprintf("| `%s`", path)
		for i := range benches {
			slices.Sort(took[i])
			line += fmt.Sprintf(" | %.1f, %.1f (%d kB)", took[i][0].Seconds()*1000, took[i][10].Seconds()*1000, bytes[i]/1024)
		}
		t.Log(line + " |")
	}
}

// measurePage returns how long the server needs for a page, and the length of the page.
func (b *testReplica) measurePage(path string) (time.Duration, int) {
	b.Helper()
	r := httptest.NewRequest(http.MethodGet, b.URL+path, nil)
	r.RemoteAddr = "127.0.0.1:1"
	r.AddCookie(&b.visitorCookie)
	out := httptest.NewRecorder()
	begin := time.Now()
	b.web.Handler(http.NotFoundHandler()).ServeHTTP(out, r)
	took := time.Since(begin)
	if out.Code != http.StatusOK {
		b.Fatalf("%s: %d %s", path, out.Code, out.Body)
	}
	return took, out.Body.Len()
}

// fillLedger creates a ledger of this size. The tasks in the older half of the batches of pool p-0001 have ended.
// Forty slots of each pool are held. All other tasks wait, each for another device.
func (b *testReplica) fillLedger(s ledgerSize) {
	b.Helper()
	db := b.OpenDB(b.T)
	const first, device = `'p-0001'`, `'d-' || right(pool, 4) || '-' || lpad(n::text, 7, '0')`
	for _, statement := range []string{
		fmt.Sprintf(`INSERT INTO pools (name, capacity, lease_ms, created_at, updated_at) SELECT 'p-' || lpad(n::text, 4, '0'), 60, 3600000, now(), now() FROM generate_series(1, %d) n`, s.pools),
		fmt.Sprintf(`INSERT INTO batches (pool, kind, created_at, total) SELECT `+first+`, 'k', now(), %d FROM generate_series(1, %d)`, s.tasksPerBatch, s.batches),
		fmt.Sprintf(`INSERT INTO batches (pool, kind, created_at, total) SELECT name, 'k', now(), %d FROM pools WHERE name <> `+first+` ORDER BY name`, s.tasksPerOtherPool),
		`INSERT INTO tasks (batch, pool, device) SELECT id, pool, ` + device + `
			FROM (SELECT b.id, b.pool, row_number() OVER (PARTITION BY b.pool ORDER BY b.id, i) AS n FROM batches b, generate_series(1, b.total) i) AS numbered ORDER BY id, n`,
		`UPDATE tasks SET state = CASE WHEN id % 83 = 0 THEN 'failed' ELSE 'succeeded' END, error = CASE WHEN id % 83 = 0 THEN 'no route to host' ELSE '' END, finished_at = now()
			WHERE pool = ` + first + ` AND batch <= (SELECT max(id) / 2 FROM batches WHERE pool = ` + first + `)`,
		`INSERT INTO devices (id, created_at, last_seen, quiet_until) SELECT DISTINCT device, now(), now(), now() FROM tasks`,
		`INSERT INTO grants (task, batch, pool, slot, device, token, lease, attempt, granted_at, lease_until, max_until, lease_ms)
			SELECT id, batch, pool, n, device, id, id || '.1.x', 1, now(), now() + interval '1 hour', now() + interval '2 hours', 3600000
			FROM (SELECT *, row_number() OVER (PARTITION BY pool ORDER BY id) - 1 AS n FROM tasks WHERE state = 'pending') AS numbered WHERE n < 40`,
		`INSERT INTO events (at, kind, pool, task, batch, device) SELECT now(), 'task.' || state, pool, id, batch, device FROM tasks WHERE state <> 'pending'`,
		`INSERT INTO events (at, kind, pool, task, batch, device) SELECT now(), 'task.granted', pool, task, batch, device FROM grants`,
	} {
		if _, err := db.ExecContext(b.Context(), statement); err != nil {
			b.Fatalf("%s: %v", statement, err)
		}
	}
	b.Await("counts that are folded", func() bool {
		left := 0
		b.Must(db.QueryRowContext(b.Context(), `SELECT count(*) FROM batch_deltas`).Scan(&left))
		return left == 0
	})
	_, err := db.ExecContext(b.Context(), `VACUUM ANALYZE`)
	b.Must(err)
}
