package store

import (
	"context"
	"fmt"
	"maps"
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

// PoolStats reads all pools. It is exact, and costs one pass over the batches, their counts
// and the grants: for a scrape, not for a request.
func (s pools) PoolStats(ctx context.Context) ([]PoolStat, error) {
	type reading struct {
		PoolStat
		total  int64
		ended  []int64 // by state
		now    time.Time
		oldest *time.Time
	}
	states := keptStates()[1:] // those that have ended
	// Planned each time: a plan for few batches would go through all counts for each of many.
	rows, err := collect(ctx, s.planned(), func(r *reading) []any {
		r.ended = make([]int64, len(states))
		dest := []any{&r.Pool, &r.Capacity, instant{&r.now}, &r.total, &r.Held, maybe{&r.oldest}}
		for i := range r.ended {
			dest = append(dest, &r.ended[i])
		}
		return dest
	}, poolStatsText(states))
	if err != nil {
		return nil, err
	}
	stats := make([]PoolStat, len(rows))
	for i, r := range rows {
		r.Tasks = map[TaskState]int64{Dispatched: r.Held}
		for n, state := range states {
			r.Tasks[state] = r.ended[n]
		}
		if r.oldest != nil {
			r.OldestPending = max(0, r.now.Sub(*r.oldest))
		}
		setPending(r.Tasks, r.total)
		maps.DeleteFunc(r.Tasks, func(_ TaskState, n int64) bool { return n == 0 })
		stats[i] = r.PoolStat
	}
	return stats, nil
}

// poolStatsText has a column for each state. All ids are above 0: with that said Postgres
// reads by an index, where it expects to compare costs that a table read as a whole hides
// (enable_seqscan is off).
func poolStatsText(states []TaskState) string {
	each := func(column string) (columns string) {
		for _, state := range states {
			columns += ", " + fmt.Sprintf(column, state)
		}
		return columns
	}
	return `
	SELECT p.name, p.capacity, clock.now, coalesce(b.total, 0), coalesce(b.held, 0), b.oldest` + each("coalesce(b.%s, 0)") + `
	FROM (SELECT {now} AS now) AS clock CROSS JOIN pools p LEFT JOIN (
		-- The oldest batch of which more is there than is held or has ended. To look for its
		-- task in each pool would take three times as long as all of this.
		SELECT b.pool, CAST(sum(b.total) AS bigint) AS total, CAST(sum(held.n) AS bigint) AS held,
			min(CASE WHEN b.total > coalesce(ended.n, 0) + coalesce(held.n, 0) THEN b.created_at END) AS oldest` + each("CAST(sum(ended.%[1]s) AS bigint) AS %[1]s") + `
		FROM batches b
			LEFT JOIN (
				SELECT batch, CAST(sum(n) AS bigint) AS n` + each("CAST(sum(CASE WHEN state = '%[1]s' THEN n END) AS bigint) AS %[1]s") + `
				FROM (` + counted + `) AS c WHERE batch > 0 GROUP BY batch) AS ended ON ended.batch = b.id
			LEFT JOIN (SELECT batch, count(*) AS n FROM grants WHERE task > 0 GROUP BY batch) AS held ON held.batch = b.id
		WHERE b.id > 0 GROUP BY b.pool) AS b ON b.pool = p.name
	WHERE p.deleted_at IS NULL
	ORDER BY p.name`
}
