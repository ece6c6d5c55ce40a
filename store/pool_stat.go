package store

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// PoolStat holds the values of one pool for metrics.
type PoolStat struct {
	Pool          string
	Capacity      int
	Held          int64 // grants, including lapsed grants that are not yet reaped
	Tasks         map[TaskState]int64
	OldestPending time.Duration // age of the oldest waiting task; 0 means that no task waits
}

// PoolStats returns the exact values of all pools. It reads all counts and all grants once, and looks up the oldest task of each pool. This
// is cheap enough for each scrape of the metrics, but not for each request.
func (s pools) PoolStats(ctx context.Context) ([]PoolStat, error) {
	type reading struct {
		PoolStat
		total  int64
		ended  []int64 // number of ended tasks, by state
		now    time.Time
		oldest *time.Time
	}
	states := storedStates()[1:] // the states of tasks that have ended
	// The statement is planned for each call. A plan made while there were few pools could read all counts once for each pool.
	rows, err := collect(ctx, s.customPlanSession(), func(r *reading) []any {
		r.ended = make([]int64, len(states))
		dest := []any{&r.Pool, &r.Capacity, &r.now, &r.total, &r.Held, &r.oldest}
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

// poolStatsText returns the statement of PoolStats, with one column for each of states. The conditions id > 0 are true for all rows, but
// they make Postgres use an index. Without these conditions it would compare costs, which are distorted because enable_seqscan is off.
func poolStatsText(states []TaskState) (text string) {
	for _, state := range states {
		text += fmt.Sprintf(", coalesce(CAST(sum(CASE WHEN c.state = '%s' THEN c.n END) AS bigint), 0)", state)
	}
	return `
	SELECT p.name, p.capacity, clock.now, coalesce(CAST(sum(CASE WHEN c.state = '` + queuedState + `' THEN c.n END) AS bigint), 0), coalesce(held.n, 0),
		(` + oldestPendingSQL("p.name") + `)` + text + `
	FROM (SELECT {now} AS now) AS clock CROSS JOIN pools p
		LEFT JOIN (` + poolCountsSQL + `) AS c ON c.pool = p.name
		LEFT JOIN (SELECT pool, count(*) AS n FROM grants WHERE task > 0 GROUP BY pool) AS held ON held.pool = p.name
	WHERE p.deleted_at IS NULL
	GROUP BY p.name, p.capacity, clock.now, held.n
	ORDER BY p.name`
}
