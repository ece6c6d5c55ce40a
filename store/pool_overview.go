package store

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
)

// manyPools is the largest number of pools for which the waiting devices of each pool are counted up to the maximum of the request. For more
// pools, they are counted up to a hundredth of this maximum.
const manyPools = "100"

// PoolOverview is the overview of one pool.
type PoolOverview struct {
	Pool Pool
	PoolStatus

	Waiting int        // waiting devices, as in Occupancy; for more than manyPools pools, counted only up to a hundredth of the maximum
	Oldest  *time.Time // creation of the batch of the oldest waiting task; nil means that no task waits
}

// PoolOverviews returns the overviews of at most limit pools with a name > afterName, by name, in one snapshot. Waiting devices are counted
// up to maxWaiting per pool. The cost per pool does not grow with the number of pools or tasks.
func (s pools) PoolOverviews(ctx context.Context, afterName string, limit, maxWaiting int) ([]PoolOverview, error) {
	return s.readOverviews(ctx, `pools o`, `WHERE o.name > $1 AND o.deleted_at IS NULL ORDER BY o.name LIMIT `+hideValueFromPlannerSQL("$2", "integer"), "$3", afterName, limit, maxWaiting)
}

// PoolOverviewsByName returns the overviews of the existing pools in names, by name, in one snapshot.
func (s pools) PoolOverviewsByName(ctx context.Context, names []string, maxWaiting int) ([]PoolOverview, error) {
	return s.readOverviews(ctx, `{names} JOIN pools o ON o.name = names.name AND o.deleted_at IS NULL`, "", "$2", namesToJSONArray(names), maxWaiting)
}

// readOverviews reads the overviews of the pools that fromSQL and conditionSQL (the clauses after it) select. maxWaitingExpr is the SQL for
// the maximum number of counted devices. args are the arguments of the statement.
func (s pools) readOverviews(ctx context.Context, fromSQL, conditionSQL, maxWaitingExpr string, args ...any) ([]PoolOverview, error) {
	return collect(ctx, s.readSession(), func(v *PoolOverview) []any {
		return append(append(poolScanDest(&v.Pool), poolStatusScanDest(&v.PoolStatus)...), &v.Waiting, &v.Oldest)
	}, poolStatusCTE(fromSQL, conditionSQL)+`
		SELECT `+poolColumns+`, `+poolStatusColumns()+`,
			(`+waitingCountSQL("o.name", hideValueFromPlannerSQL(maxWaitingExpr+` / CASE WHEN (SELECT count(*) FROM stood) > `+manyPools+` THEN 100 ELSE 1 END`, "integer"))+`),
			(`+oldestWaitingSQL("o.name")+`)
		FROM stood o ORDER BY name`, args...)
}

// hideValueFromPlannerSQL returns SQL that has the value of argumentExpr (such as $1) but hides it from the planner. If Postgres knew the
// value, it could expect a better plan for it and plan each call anew, which takes longer than the query.
func hideValueFromPlannerSQL(argumentExpr, sqlType string) string {
	return `(SELECT CAST(` + argumentExpr + ` AS ` + sqlType + `))`
}

// oldestWaitingSQL returns the query for the creation time of the oldest batch with a waiting task in the pool poolExpr.
func oldestWaitingSQL(poolExpr string) string {
	return `
	SELECT b.created_at FROM tasks t JOIN batches b ON b.id = t.batch
	WHERE t.pool = ` + poolExpr + ` AND t.state = 'pending' AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = t.id)
	ORDER BY t.batch LIMIT 1`
}

// PoolStat holds the values of one pool for metrics.
type PoolStat struct {
	Pool          string
	Capacity      int
	Held          int64 // grants, including lapsed grants that are not yet reaped
	Tasks         map[TaskState]int64
	OldestPending time.Duration // age of the oldest waiting task; 0 means that no task waits
}

// PoolStats returns the exact values of all pools. It reads all counts and grants, so it is for metrics, not for requests.
func (s pools) PoolStats(ctx context.Context) ([]PoolStat, error) {
	type reading struct {
		PoolStat
		total  int64
		ended  []int64 // number of ended tasks, by state
		now    time.Time
		oldest *time.Time
	}
	states := storedStates()[1:] // the states of tasks that have ended
	// The statement is planned for each call, because a plan made while there were few pools could read all counts once for each pool.
	rows, err := collect(ctx, s.customPlanSession(), func(r *reading) []any {
		r.ended = make([]int64, len(states))
		dest := []any{&r.Pool, &r.Capacity, &r.now, &r.total, &r.Held, &r.oldest}
		for i := range r.ended {
			dest = append(dest, &r.ended[i])
		}
		return dest
	}, poolStatsSQL(states))
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
		setPendingCount(r.Tasks, r.total)
		maps.DeleteFunc(r.Tasks, func(_ TaskState, n int64) bool { return n == 0 })
		stats[i] = r.PoolStat
	}
	return stats, nil
}

// poolStatsSQL returns the statement of PoolStats, with one column for each of states. The conditions id > 0 make Postgres use an index,
// because enable_seqscan = off distorts the costs that Postgres computes. The time is a sub-select. A plain call of the clock could give each
// row another time, so that a pool would be returned several times.
func poolStatsSQL(states []TaskState) (text string) {
	for _, state := range states {
		text += fmt.Sprintf(", coalesce(CAST(sum(CASE WHEN c.state = '%s' THEN c.n END) AS bigint), 0)", state)
	}
	return `
	SELECT p.name, p.capacity, (SELECT {now}), coalesce(CAST(sum(CASE WHEN c.state = '` + queuedState + `' THEN c.n END) AS bigint), 0), coalesce(held.n, 0),
		(` + oldestWaitingSQL("p.name") + `)` + text + `
	FROM pools p
		LEFT JOIN (` + poolCountsSQL + `) AS c ON c.pool = p.name
		LEFT JOIN (SELECT pool, count(*) AS n FROM grants WHERE task > 0 GROUP BY pool) AS held ON held.pool = p.name
	WHERE p.deleted_at IS NULL
	GROUP BY p.name, p.capacity, held.n
	ORDER BY p.name`
}

// PoolStatus is the state of a pool according to the stored counts. To read it, no tasks are counted.
type PoolStatus struct {
	Held    int   // grants, including lapsed grants that are not yet reaped
	Pending int64 // number of waiting tasks, for any reason
	Closed  bool  // the pool has windows, and none of them is open now
	// Stalled means that nothing was granted for ten minutes without a known reason. In this time, slots were free, the settings did not change,
	// and the batch of the oldest waiting task without a start time could start.
	Stalled bool
	Failing bool // many attempts failed within the last five minutes (ManyAttemptsFailed), according to the counts per minute
}

// PoolRank is the data of a pool by which overviews are sorted.
type PoolRank struct {
	Name     string
	Capacity int
	Paused   bool
	PoolStatus
}

// PoolRanks returns all pools whose names contain namePart in any case, by name, in one snapshot. It reads no tasks.
func (s pools) PoolRanks(ctx context.Context, namePart string) ([]PoolRank, error) {
	return collect(ctx, s.readSession(), func(r *PoolRank) []any {
		return append([]any{&r.Name, &r.Capacity, &r.Paused}, poolStatusScanDest(&r.PoolStatus)...)
	}, poolRanksSQL(), likePattern(namePart))
}

func poolRanksSQL() string {
	return poolStatusCTE(`pools o`, `WHERE o.deleted_at IS NULL AND `+likeSQL("o.name", "$1")) + `
		SELECT name, capacity, paused, ` + poolStatusColumns() + ` FROM stood o ORDER BY name`
}

// likePattern returns the pattern of LIKE for texts that contain text. It escapes the special characters in text. likeSQL returns the condition
// with the pattern.
func likePattern(text string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(text) + "%"
}

// likeSQL returns the SQL condition that column matches pattern in any case.
func likeSQL(column, pattern string) string {
	return `lower(` + column + `) LIKE lower(` + pattern + `) ESCAPE '\'`
}

func poolStatusScanDest(status *PoolStatus) (scanDest []any) {
	return []any{&status.Held, &status.Pending, &status.Closed, &status.Stalled, &status.Failing}
}

// poolStatusCTE returns a WITH clause. It defines a table with the counts of each pool o that fromSQL (a FROM clause) and conditionSQL (a WHERE
// clause) select. Deltas (changes of counts that are not folded yet) are added up once for all pools.
func poolStatusCTE(fromSQL, conditionSQL string) string {
	const waiting = `CAST(sum(CASE WHEN state = '` + queuedState + `' THEN n ELSE -n END) AS bigint)`
	return `
		WITH fresh AS MATERIALIZED (SELECT pool, ` + waiting + ` AS n FROM batch_deltas WHERE id > 0 GROUP BY pool),
		stood AS MATERIALIZED (
			SELECT o.*, (SELECT count(*) FROM grants g WHERE g.pool = o.name) AS held,
				coalesce((SELECT ` + waiting + ` FROM pool_counts c WHERE c.pool = o.name), 0) + coalesce(fresh.n, 0) AS unended,
				o.closes_at IS NOT NULL AND NOT (o.opens_at <= {now} AND o.closes_at > {now}) AS closed
			FROM ` + fromSQL + ` LEFT JOIN fresh ON fresh.pool = o.name ` + conditionSQL + `)`
}

// poolStatusColumns returns the columns of poolStatusScanDest. Stalled is expensive, so it is evaluated only for a pool with free slots and
// waiting tasks.
func poolStatusColumns() string {
	return `held, unended - held, closed,
			CASE WHEN unended > held AND held < capacity AND paused IS FALSE AND NOT closed AND updated_at <= ` + stalledSinceSQL + ` THEN ` + isStalledSQL("o.name") + ` ELSE FALSE END,
			coalesce((SELECT sum(m.failed) >= ` + strconv.Itoa(minFailures) + ` AND sum(m.failed) * ` + strconv.Itoa(manyFailOneIn) + ` >= sum(m.ended)
				FROM pool_minutes m WHERE m.pool = o.name AND m.minute >= {this minute} - 5), FALSE)`
}

// stalledSinceSQL is the time ten minutes ago.
const stalledSinceSQL = `{now} - 600000 * {ms}`

// isStalledSQL returns the condition that nothing was granted in the pool poolExpr for ten minutes although a task could start. It examines one
// task: the first of the 16 oldest waiting tasks that does not wait for a start time (its not_before or the end of a backoff).
//
// The grant of each task is looked up inside a CASE. Postgres expects such a CASE to be true for most tasks, so it reads only the first
// tasks.
func isStalledSQL(poolExpr string) string {
	return `coalesce((SELECT max(g.granted_at) FROM grants g WHERE g.pool = ` + poolExpr + `), {epoch}) <= ` + stalledSinceSQL + `
				AND coalesce((SELECT a.granted_at FROM attempts a WHERE a.pool = ` + poolExpr + ` ORDER BY a.token DESC LIMIT 1), {epoch}) <= ` + stalledSinceSQL + `
				AND EXISTS (
					SELECT 1 FROM batches b JOIN pools p ON p.name = b.pool
					WHERE b.id = (
						SELECT few.batch FROM (
							SELECT t.batch, t.priority, t.id, t.retry_at FROM tasks t WHERE t.pool = ` + poolExpr + ` AND t.state = 'pending'
								AND CASE WHEN (SELECT g.task FROM grants g WHERE g.task = t.id) IS NULL THEN TRUE ELSE FALSE END
							ORDER BY t.batch, t.priority DESC, t.id LIMIT 16) AS few
						WHERE few.retry_at IS NULL OR few.retry_at <= ` + stalledSinceSQL + ` ORDER BY few.batch, few.priority DESC, few.id LIMIT 1)
					AND ` + isStartableSQL() + ` AND b.created_at <= ` + stalledSinceSQL + ` AND (b.not_before IS NULL OR b.not_before <= ` + stalledSinceSQL + `)
					AND (b.opens_at IS NULL OR b.opens_at <= ` + stalledSinceSQL + `) AND (p.opens_at IS NULL OR p.opens_at <= ` + stalledSinceSQL + `)
					AND (p.stands_until IS NULL OR p.stands_until <= ` + stalledSinceSQL + `))`
}
