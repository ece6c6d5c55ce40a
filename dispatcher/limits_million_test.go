package dispatcher_test

import (
	"database/sql"
	"encoding/json"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	"github.com/fleetslots/dispatcher/store"
)

// hundredADay is a policy of 100 starts a day for each account. Its window contains a million attempts in the test.
const hundredADay = `[{"name":"a-day","per":"tags.account","algorithm":"sliding","windows":[{"max":100,"per_ms":86400000}]}]`

// TestRebuildOfAMillion measures how long it takes until a policy can be checked again whose window has a million
// attempts of 10,000 accounts:
//
//	MILLION=1 go test ./dispatcher -run 'TestRebuildOfAMillion$' -v
func TestRebuildOfAMillion(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	if os.Getenv("MILLION") == "" {
		t.Skip("runs with MILLION=1 in the environment")
	}
	dsn := sharedPostgres.NewLedger(t)
	b := newBench(t, backends.OpenPostgres(t, dsn), sharedRedis.NewDatabase(t), withLongPeriod)
	b.createPool("a", 9, minute)
	db, err := sql.Open("postgres", dsn)
	b.must(err)
	defer func() { _ = db.Close() }()
	for _, statement := range []string{
		`INSERT INTO devices (id, tags, created_at) SELECT 'm-' || n, jsonb_build_object('account', (n % 10000)::text), now() FROM generate_series(1, 100000) n`,
		`INSERT INTO batches (pool, kind, created_at, total) VALUES ('a', 'common', now(), 1000000)`,
		`INSERT INTO tasks (batch, pool, device, state, finished_at) SELECT 1, 'a', 'm-' || (n % 100000 + 1), 'succeeded', now() FROM generate_series(1, 1000000) n`,
		`INSERT INTO attempts (token, task, number, device, pool, slot, lease, granted_at, ended_at, ended_by)
			SELECT n, n, 1, 'm-' || (n % 100000 + 1), 'a', 0, n || '.1.0123456789abcdef', now() - make_interval(secs => (1000000 - n) * 0.08), now(), 'result' FROM generate_series(1, 1000000) n`,
		`SELECT setval(pg_get_serial_sequence('tasks', 'id'), 2000000)`,
		`VACUUM ANALYZE`,
	} {
		_, err := db.ExecContext(b.ctx, statement)
		b.must(err)
	}
	b.createAccountDevice("late", "7")
	b.createBatch("a", nil, "late")
	b.changePool("", func(p *store.PoolSpec) { p.Limits = json.RawMessage(hundredADay) })
	stop, most := make(chan struct{}), make(chan uint64)
	go func() { most <- highestHeap(stop) }()
	begin, reports := time.Now(), 0
	for b.sendReport("late", `{"id":"1"}`).Reason == devices.ReasonUnavailable {
		reports++
	}
	took := time.Since(begin)
	close(stop)
	b.expectReason("late", `{"id":"1"}`, devices.ReasonLimited) // its account has used its hundred starts
	t.Logf("believed after %s and %d reports that waited for it; heap %d MB at most", took.Round(time.Millisecond), reports, <-most>>20)
}

// highestHeap measures the size of the heap again and again until stop is closed. It returns the maximum.
func highestHeap(stop chan struct{}) (maxBytes uint64) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		maxBytes = max(maxBytes, m.HeapAlloc)
		select {
		case <-stop:
			return maxBytes
		case <-tick.C:
		}
	}
}
