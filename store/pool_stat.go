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

// PoolStats reads all pools. It is exact, and costs one pass over their counts and the
// grants, and a look for the oldest task of each: for a scrape, not for a request.
func (s pools) PoolStats(ctx context.Context) ([]PoolStat, error) {
	type reading struct {
		PoolStat
		total  int64
		ended  []int64 // by state
		now    time.Time
		oldest *time.Time
	}
	states := keptStates()[1:] // those that have ended
	// Planned each time: a plan for few pools would go through all counts for each of many.
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
func poolStatsText(states []TaskState) (text string) {
	for _, state := range states {
		text += fmt.Sprintf(", coalesce(CAST(sum(CASE WHEN c.state = '%s' THEN c.n END) AS bigint), 0)", state)
	}
	return `
	SELECT p.name, p.capacity, clock.now, coalesce(CAST(sum(CASE WHEN c.state = '` + queuedState + `' THEN c.n END) AS bigint), 0), coalesce(held.n, 0),
		(` + oldestPending("p.name") + `)` + text + `
	FROM (SELECT {now} AS now) AS clock CROSS JOIN pools p
		LEFT JOIN (` + countedOfPools + `) AS c ON c.pool = p.name
		LEFT JOIN (SELECT pool, count(*) AS n FROM grants WHERE task > 0 GROUP BY pool) AS held ON held.pool = p.name
	WHERE p.deleted_at IS NULL
	GROUP BY p.name, p.capacity, clock.now, held.n
	ORDER BY p.name`
}
