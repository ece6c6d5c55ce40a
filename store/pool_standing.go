package store

import (
	"context"
	"strconv"
	"strings"
)

// PoolStatus is the state of a pool according to the stored counts. To read it, no tasks are counted.
type PoolStatus struct {
	Held    int   // grants, including lapsed grants that are not yet reaped
	Pending int64 // number of waiting tasks, for any reason
	Closed  bool  // the pool has windows, and none of them is open now
	// Stalled means that for ten minutes nothing was granted while slots were free, the settings did not change, and the batch of the
	// oldest waiting task could start. Tasks that wait for a time of their own are ignored.
	Stalled bool
	Failing bool // many attempts failed within the last five minutes (ManyFail), according to the counts per minute
}

// PoolRank is the data of a pool by which overviews are sorted.
type PoolRank struct {
	Name     string
	Capacity int
	Paused   bool
	PoolStatus
}

// PoolRanks returns all pools whose names contain namePart, in the order of names, in one snapshot. It ignores upper and lower case. If
// namePart is empty, it returns all pools. It reads only the stored counts of each pool and the grants.
func (s pools) PoolRanks(ctx context.Context, namePart string) ([]PoolRank, error) {
	return collect(ctx, s.readSession(), func(r *PoolRank) []any {
		return append([]any{&r.Name, &r.Capacity, &r.Paused}, poolStatusDest(&r.PoolStatus)...)
	}, poolRanksText(), likePattern(namePart))
}

// poolRanksText returns the statement of PoolRanks.
func poolRanksText() string {
	return poolStatusCTE(`pools o`, `WHERE o.deleted_at IS NULL AND `+like("o.name", "$1")) + `
		SELECT name, capacity, paused, ` + poolStatusColumns() + ` FROM stood o ORDER BY name`
}

// likePattern returns the SQL pattern that matches all texts which contain the parameter text. It escapes the special characters in text.
// Use the pattern with the function like.
func likePattern(text string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(text) + "%"
}

// like returns the SQL condition that column matches pattern, without regard to upper and lower case.
func like(column, pattern string) string {
	return `lower(` + column + `) LIKE lower(` + pattern + `) ESCAPE '\'`
}

// poolStatusDest returns pointers to the fields of status. A query that selects poolStatusColumns scans a row into them.
func poolStatusDest(status *PoolStatus) []any {
	return []any{&status.Held, &status.Pending, &status.Closed, &status.Stalled, &status.Failing}
}

// poolStatusCTE returns the WITH clause of a statement over pools. fromSQL is the content of a FROM clause that names the pools o, and
// filter is the WHERE clause on them. The clause defines the table stood, which has a row with the counts of each pool. The deltas (changes
// of counts that are not folded yet) are added up once for all pools.
func poolStatusCTE(fromSQL, filter string) string {
	const waiting = `CAST(sum(CASE WHEN state = '` + queuedState + `' THEN n ELSE -n END) AS bigint)`
	return `
		WITH fresh AS MATERIALIZED (SELECT pool, ` + waiting + ` AS n FROM batch_deltas WHERE id > 0 GROUP BY pool),
		stood AS MATERIALIZED (
			SELECT o.*, (SELECT count(*) FROM grants g WHERE g.pool = o.name) AS held,
				coalesce((SELECT ` + waiting + ` FROM pool_counts c WHERE c.pool = o.name), 0) + coalesce(fresh.n, 0) AS unended,
				o.closes_at IS NOT NULL AND NOT (o.opens_at <= {now} AND o.closes_at > {now}) AS closed
			FROM ` + fromSQL + ` LEFT JOIN fresh ON fresh.pool = o.name ` + filter + `)`
}

// poolStatusColumns returns the columns that poolStatusDest reads. The column for Stalled is expensive, so it is evaluated only for pools
// with free slots and waiting tasks.
func poolStatusColumns() string {
	return `held, unended - held, closed,
			CASE WHEN unended > held AND held < capacity AND paused IS FALSE AND NOT closed AND updated_at <= ` + stalledSinceSQL + ` THEN ` + isStalledSQL("o.name") + ` ELSE FALSE END,
			coalesce((SELECT sum(m.failed) >= ` + strconv.Itoa(minFailures) + ` AND sum(m.failed) * ` + strconv.Itoa(manyFailOneIn) + ` >= sum(m.ended)
				FROM pool_minutes m WHERE m.pool = o.name AND m.minute >= {this minute} - 5), FALSE)`
}

// stalledSinceSQL is the SQL for the time ten minutes ago. A pool is stalled only if nothing has happened in it since then.
const stalledSinceSQL = `{now} - 600000 * {ms}`

// isStalledSQL returns the condition that the pool poolExpr (an SQL expression) is stalled: nothing was granted for ten minutes, but a task
// could start. It reads the newest grant in force, the newest grant that ended, and one task. This task is one of the 16 oldest waiting
// tasks: the first that does not wait for a time of its own.
//
// The grant of each task is looked up inside a CASE, because Postgres expects a CASE to be true for most tasks and so reads only the first
// ones. Without the CASE it would read and sort all waiting tasks.
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
