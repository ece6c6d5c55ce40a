package store

import (
	"context"
	"time"
)

// PoolStat is a reading of one pool for metrics.
type PoolStat struct {
	Pool          string
	Capacity      int
	Held          int64 // grants in force, or lapsed and not yet reaped
	Tasks         map[TaskState]int64
	OldestPending time.Duration // age of the oldest task that waits; 0 = none
}

// PoolStats reads all pools. It is exact, and costs one pass over the counts of
// all batches: for a scrape, not for a request.
func (s *Store) PoolStats(ctx context.Context) ([]PoolStat, error) {
	type reading struct {
		PoolStat
		state    TaskState
		n        int64
		now      time.Time
		pendedAt *time.Time
	}
	rows, err := collect(ctx, s.read(), func(r *reading) []any {
		return []any{&r.Pool, &r.Capacity, &r.Held, opt(&r.state), opt(&r.n), instant{&r.now}, maybe{&r.pendedAt}}
	}, `
		WITH counts AS (
			SELECT b.pool, c.state, CAST(sum(c.n) AS bigint) AS n FROM (`+counted+`) AS c JOIN batches b ON b.id = c.batch GROUP BY b.pool, c.state
			UNION ALL SELECT pool, 'all', CAST(sum(total) AS bigint) FROM batches GROUP BY pool),
		-- The clock keeps this apart: once for each pool, not for each count.
		each AS (
			SELECT p.name, p.capacity, (SELECT count(*) FROM grants g WHERE g.pool = p.name) AS held, {now} AS now, (
				SELECT t.batch FROM tasks t
				WHERE t.pool = p.name AND t.state = 'pending' AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = t.id)
				ORDER BY t.id LIMIT 1) AS oldest
			FROM pools p WHERE p.deleted_at IS NULL)
		SELECT e.name, e.capacity, e.held, c.state, c.n, e.now, b.created_at
		FROM each e LEFT JOIN counts c ON c.pool = e.name LEFT JOIN batches b ON b.id = e.oldest
		ORDER BY e.name, c.state`)
	if err != nil {
		return nil, err
	}
	var stats []PoolStat
	totals := map[string]int64{}
	for _, r := range rows {
		if len(stats) == 0 || stats[len(stats)-1].Pool != r.Pool {
			r.Tasks = map[TaskState]int64{}
			if r.pendedAt != nil {
				r.OldestPending = max(0, r.now.Sub(*r.pendedAt))
			}
			stats = append(stats, r.PoolStat)
		}
		stat := &stats[len(stats)-1]
		switch {
		case r.state == "all":
			totals[r.Pool] = r.n
		case r.n > 0:
			stat.Tasks[r.state] = r.n
		}
	}
	for i := range stats {
		if stat := &stats[i]; stat.Held > 0 {
			stat.Tasks[Dispatched] = stat.Held
		}
		setPending(stats[i].Tasks, totals[stats[i].Pool])
	}
	return stats, nil
}
