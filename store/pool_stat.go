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
// all batches and over the grants: for a scrape, not for a request.
func (s pools) PoolStats(ctx context.Context) ([]PoolStat, error) {
	type reading struct {
		PoolStat
		state    TaskState
		n        int64
		now      time.Time
		pendedAt *time.Time
	}
	rows, err := collect(ctx, s.read(), func(r *reading) []any {
		return []any{&r.Pool, &r.Capacity, opt(&r.state), opt(&r.n), instant{&r.now}, maybe{&r.pendedAt}}
	}, `
		WITH held AS (SELECT pool, batch, count(*) AS n FROM grants GROUP BY pool, batch),
		ended AS (SELECT batch, state, CAST(sum(n) AS bigint) AS n FROM (`+counted+`) AS c GROUP BY batch, state),
		-- The first batch of which more is there than was held or has ended. To
		-- look for its task in each pool would take three times as long as all of this.
		oldest AS (
			SELECT b.pool, min(b.id) AS batch
			FROM batches b LEFT JOIN (
				SELECT batch, sum(n) AS n FROM (SELECT batch, n FROM ended UNION ALL SELECT batch, n FROM held) AS off GROUP BY batch) AS gone ON gone.batch = b.id
			WHERE b.total > coalesce(gone.n, 0) GROUP BY b.pool),
		counts AS (
			SELECT b.pool, e.state, CAST(sum(e.n) AS bigint) AS n FROM ended e JOIN batches b ON b.id = e.batch GROUP BY b.pool, e.state
			UNION ALL SELECT pool, 'dispatched', CAST(sum(n) AS bigint) FROM held GROUP BY pool
			UNION ALL SELECT pool, 'all', CAST(sum(total) AS bigint) FROM batches GROUP BY pool)
		SELECT p.name, p.capacity, c.state, c.n, clock.now, b.created_at
		FROM (SELECT {now} AS now) AS clock CROSS JOIN pools p
			LEFT JOIN counts c ON c.pool = p.name LEFT JOIN oldest o ON o.pool = p.name LEFT JOIN batches b ON b.id = o.batch
		WHERE p.deleted_at IS NULL
		ORDER BY p.name, c.state`)
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
		stats[i].Held = stats[i].Tasks[Dispatched]
		setPending(stats[i].Tasks, totals[stats[i].Pool])
	}
	return stats, nil
}
