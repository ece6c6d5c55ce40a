package app

import (
	"bytes"
	"database/sql"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestScrapeOfManyPools measures a scrape of the metrics of 3,000 pools while the passes of a replica run. In each
// pool, 20 of 30 slots are held and 80 devices wait:
//
//	POOLS=1 go test ./internal/app -run 'TestScrapeOfManyPools$' -v
func TestScrapeOfManyPools(t *testing.T) {
	t.Parallel()
	if os.Getenv("POOLS") == "" {
		t.Skip("runs with POOLS=1 in the environment")
	}
	dsn := sharedPostgres.NewLedger(t)
	i, _ := startServing(t, serveConfig(t, dsn, servers.StartRedis(t).URL()))
	db, err := sql.Open("postgres", dsn)
	must.Succeed(t, err)
	defer db.Close()
	for _, statement := range []string{
		`INSERT INTO pools (name, capacity, lease_ms, created_at, updated_at) SELECT 'p-' || n, 30, 3600000, now(), now() FROM generate_series(1, 3000) n`,
		`INSERT INTO batches (pool, kind, created_at, total) SELECT 'p-' || n, 'k', now(), 100 FROM generate_series(1, 3000) n`,
		`INSERT INTO batches (pool, kind, created_at, total) SELECT 'p-' || n % 3000 + 1, 'old', now(), 0 FROM generate_series(1, 30000) n`,
		`INSERT INTO devices (id, created_at, last_seen) SELECT 'd-' || n, now(), now() FROM generate_series(1, 300000) n`,
		`INSERT INTO tasks (batch, pool, device) SELECT b.id, b.pool, 'd-' || (b.id - 1) * 100 + n FROM batches b, generate_series(1, 100) n WHERE b.total > 0`,
		`INSERT INTO grants (task, batch, pool, slot, device, token, lease, attempt, granted_at, lease_until, max_until, lease_ms)
			SELECT id, batch, pool, n, device, id, id || '.1.x', 1, now(), now() + interval '1 hour', now() + interval '2 hours', 3600000
			FROM (SELECT *, row_number() OVER (PARTITION BY pool ORDER BY id) - 1 AS n FROM tasks) AS numbered WHERE n < 20`,
		`VACUUM ANALYZE`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	var took []time.Duration
	var text []byte
	waiting := 0 // number of scrapes with the count of waiting devices
	for range 15 {
		begin := time.Now()
		text = i.callOperator(t, http.MethodGet, "/metrics", "")
		took = append(took, time.Since(begin))
		if bytes.Contains(text, []byte("dispatcher_slots_waiting{pool=\"p-1\"} 80\n")) {
			waiting++
		}
		await.True(t, "a reading of its own for the next", func() bool { return time.Since(begin) > took[len(took)-1]+time.Second })
	}
	slices.Sort(took)
	t.Logf("%d series, %d kB: median %s, highest %s; %d of %d told who waits",
		bytes.Count(text, []byte("\n")), len(text)/1024, took[7], took[14], waiting, len(took))
	before := processCPU(t, text)
	var group errgroup.Group
	group.SetLimit(16)
	answers := make(chan int, 64)
	for range cap(answers) {
		group.Go(func() error {
			status, _ := i.call(t, http.MethodGet, "/metrics", "", "")
			answers <- status
			return nil
		})
	}
	_ = group.Wait()
	close(answers)
	byStatus := map[int]int{}
	for status := range answers {
		byStatus[status]++
	}
	await.True(t, "a new text", func() bool {
		text = i.callOperator(t, http.MethodGet, "/metrics", "")
		return processCPU(t, text) > before
	})
	if used := processCPU(t, text) - before; used > 1 {
		t.Errorf("64 scrapes of 16 clients, answers %v: %.2f s of CPU, want at most 1 s", byStatus, used)
	} else {
		t.Logf("64 scrapes of 16 clients, answers %v: %.2f s of CPU", byStatus, used)
	}
	for _, want := range []string{`dispatcher_slots_held{pool="p-3000"} 20`, `dispatcher_tasks{pool="p-7",state="pending"} 80`} {
		if !strings.Contains(string(text), want+"\n") {
			t.Errorf("the scrape lacks %s", want)
		}
	}
}

// processCPU returns the seconds of CPU that this process has used, according to a text of metrics.
func processCPU(t *testing.T, text []byte) float64 {
	t.Helper()
	_, rest, _ := bytes.Cut(text, []byte("\nprocess_cpu_seconds_total "))
	value, _, _ := bytes.Cut(rest, []byte("\n"))
	seconds, err := strconv.ParseFloat(string(value), 64)
	must.Succeed(t, err)
	return seconds
}
