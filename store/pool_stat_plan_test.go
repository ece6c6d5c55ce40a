package store_test

import (
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// A scrape goes through batches, counts and grants once each, and compares none of them
// with all of the others.
func TestAScrapeReadsEachBatchOnce(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	const batches = 4000
	l.exec(`INSERT INTO pools (name, capacity, lease_ms, created_at, updated_at) SELECT 'p' || n, 10, 1000, now(), now() FROM generate_series(0, 999) n`)
	l.exec(`INSERT INTO batches (pool, created_at, total) SELECT 'p' || n % 1000, now(), 10 FROM generate_series(1, 4000) n`)
	l.exec(`INSERT INTO batch_counts (batch, state, n) SELECT id, state, 2 FROM batches, (VALUES ('succeeded'), ('failed')) AS s (state)`)
	l.exec(`INSERT INTO grants (task, batch, pool, slot, device, token, lease, attempt, granted_at, lease_until, max_until, lease_ms)
		SELECT id, id, pool, id / 1000, 'd' || id, id, id || '.1.x', 1, now(), now(), now(), 1000 FROM batches`)
	l.exec(`ANALYZE`)
	if plan := l.plan(store.PoolStatsText()); most(plan) > 2*batches+1000 {
		l.Errorf("%d rows are looked at:\n%s", most(plan), strings.Join(plan, "\n"))
	}
}
