package store_test

import (
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestAScrapeReadsNoBatches checks the query of a metrics scrape. It must read the counts of pools and the grants once each, and must not
// read more if there are more batches.
func TestAScrapeReadsNoBatches(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	const grants = 2000
	l.exec(`INSERT INTO pools (name, capacity, lease_ms, created_at, updated_at) SELECT 'p' || n, 10, 1000, now(), now() FROM generate_series(0, 999) n`)
	l.exec(`INSERT INTO batches (pool, created_at, total) SELECT 'p' || n % 1000, now(), 10 FROM generate_series(1, 20000) n`)
	l.exec(`INSERT INTO batch_counts (batch, state, n) SELECT id, 'failed', 2 FROM batches`)
	l.exec(`INSERT INTO tasks (batch, pool, device) SELECT id, pool, 'd' || id FROM batches ORDER BY id`)
	l.exec(`INSERT INTO grants (task, batch, pool, slot, device, token, lease, attempt, granted_at, lease_until, max_until, lease_ms)
		SELECT id, batch, pool, id / 1000, device, id, id || '.1.x', 1, now(), now(), now(), 1000 FROM tasks WHERE id <= 2000`)
	for folded := 1; folded > 0; {
		var err error
		folded, _, err = l.Fold(l.Context(), 5000)
		l.must(err)
	}
	l.exec(`ANALYZE`)
	if plan := l.explainAnalyze(store.PoolStatsText()); maxRowsRead(plan) > grants+1000 {
		l.Errorf("%d rows are looked at:\n%s", maxRowsRead(plan), strings.Join(plan, "\n"))
	}
}
