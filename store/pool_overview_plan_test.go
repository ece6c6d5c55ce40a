package store_test

import "testing"

// TestOverviewsArePlannedOnce checks that Postgres plans the queries for overviews of pools once, and not at each
// call, because planning takes longer than execution.
func TestOverviewsArePlannedOnce(t *testing.T) {
	t.Parallel()
	l := openSingleConn(t)
	l.exec(`INSERT INTO pools (name, capacity, lease_ms, created_at, updated_at) SELECT 'p-' || n, 1, 1, now(), now() FROM generate_series(1, 1000) n`)
	l.exec(`INSERT INTO batches (pool, kind, created_at, total) SELECT 'p-1', 'k', now(), 100 FROM generate_series(1, 200) n`)
	l.exec(`INSERT INTO tasks (batch, pool, device) SELECT b.id, b.pool, 'd-' || n FROM batches b, generate_series(1, 50) n`)
	l.exec(`ANALYZE`)
	for range 10 {
		_, err := l.PoolOverviews(l.Context(), "", 16, 1000)
		l.must(err)
		_, err = l.Occupancy(l.Context(), "p-1", 1000)
		l.must(err)
	}
	rows, err := l.DB().QueryContext(l.Context(), `SELECT statement, generic_plans FROM pg_prepared_statements WHERE custom_plans > 0`)
	l.must(err)
	defer rows.Close()
	seen := 0
	for rows.Next() {
		var text string
		var generic int
		l.must(rows.Scan(&text, &generic))
		if generic == 0 {
			l.Errorf("planned anew for each call: %s", text)
		}
		seen++
	}
	l.must(rows.Err())
	if seen < 2 {
		l.Errorf("%d statements with arguments, want those two", seen)
	}
}
