package store

import (
	"context"
	"strings"
)

// PoolStanding is how a pool stands by the counts that are kept: no task is counted.
type PoolStanding struct {
	Held    int   // grants in force, or lapsed and not yet reaped
	Pending int64 // tasks that wait, whatever for
	Closed  bool  // it has windows, and none is open
	// For ten minutes slots were free, the settings stayed, the batch of the oldest task that
	// waits, for no time of its own, could start, and nothing was granted.
	Stalled bool
}

// PoolRank is the little of a pool that overviews are sorted by.
type PoolRank struct {
	Name     string
	Capacity int
	Paused   bool
	PoolStanding
}

// PoolRanks reads all pools with this in their names, by name, in one moment; empty: all.
// Upper and lower case are the same. It reads the few counts of each and the grants in force.
func (s pools) PoolRanks(ctx context.Context, part string) ([]PoolRank, error) {
	return collect(ctx, s.read(), func(r *PoolRank) []any {
		return append([]any{&r.Name, &r.Capacity, &r.Paused}, standingDest(&r.PoolStanding)...)
	}, poolRanksText(), containing(part))
}

func poolRanksText() string {
	return standings(`pools o`, `WHERE o.deleted_at IS NULL AND `+like("o.name", "$1")) + `
		SELECT name, capacity, paused, ` + standingColumns() + ` FROM stood o ORDER BY name`
}

// containing is a pattern for like.
func containing(part string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(part) + "%"
}

// like compares without regard to upper and lower case.
func like(column, pattern string) string {
	return `lower(` + column + `) LIKE lower(` + pattern + `) ESCAPE '\'`
}

func standingDest(s *PoolStanding) []any { return []any{&s.Held, &s.Pending, &s.Closed, &s.Stalled} }

// standings begins a statement over pools o with what is counted of them: stood. The
// counts that were not folded yet are added up once.
func standings(from, which string) string {
	const waiting = `CAST(sum(CASE WHEN state = '` + queuedState + `' THEN n ELSE -n END) AS bigint)`
	return `
		WITH fresh AS MATERIALIZED (SELECT pool, ` + waiting + ` AS n FROM batch_deltas WHERE id > 0 GROUP BY pool),
		stood AS MATERIALIZED (
			SELECT o.*, (SELECT count(*) FROM grants g WHERE g.pool = o.name) AS held,
				coalesce((SELECT ` + waiting + ` FROM pool_counts c WHERE c.pool = o.name), 0) + coalesce(fresh.n, 0) AS unended,
				o.closes_at IS NOT NULL AND NOT (o.opens_at <= {now} AND o.closes_at > {now}) AS closed
			FROM ` + from + ` LEFT JOIN fresh ON fresh.pool = o.name ` + which + `)`
}

// standingColumns are those of standingDest. It looks for what stalls only in a pool with
// free slots and tasks that wait.
func standingColumns() string {
	return `held, unended - held, closed,
			CASE WHEN unended > held AND held < capacity AND paused IS FALSE AND NOT closed AND updated_at <= ` + longAgo + ` THEN ` + stalled("o.name") + ` ELSE FALSE END`
}

// longAgo is when nothing may have happened since to a pool that is stalled.
const longAgo = `{now} - 600000 * {ms}`

// stalled looks at the grants in force of a pool, the last that ended, and the first of its 16
// first tasks that wait which waits for no time of its own. In a CASE the look at its grant seems likely to Postgres to succeed: else it
// would read all that wait and sort them.
func stalled(pool string) string {
	return `coalesce((SELECT max(g.granted_at) FROM grants g WHERE g.pool = ` + pool + `), {epoch}) <= ` + longAgo + `
				AND coalesce((SELECT a.granted_at FROM attempts a WHERE a.pool = ` + pool + ` ORDER BY a.token DESC LIMIT 1), {epoch}) <= ` + longAgo + `
				AND EXISTS (
					SELECT 1 FROM batches b JOIN pools p ON p.name = b.pool
					WHERE b.id = (
						SELECT few.batch FROM (
							SELECT t.batch, t.priority, t.id, t.retry_at FROM tasks t WHERE t.pool = ` + pool + ` AND t.state = 'pending'
								AND CASE WHEN (SELECT g.task FROM grants g WHERE g.task = t.id) IS NULL THEN TRUE ELSE FALSE END
							ORDER BY t.batch, t.priority DESC, t.id LIMIT 16) AS few
						WHERE few.retry_at IS NULL OR few.retry_at <= ` + longAgo + ` ORDER BY few.batch, few.priority DESC, few.id LIMIT 1)
					AND ` + startable() + ` AND b.created_at <= ` + longAgo + ` AND (b.not_before IS NULL OR b.not_before <= ` + longAgo + `)
					AND (b.opens_at IS NULL OR b.opens_at <= ` + longAgo + `) AND (p.opens_at IS NULL OR p.opens_at <= ` + longAgo + `)
					AND (p.stands_until IS NULL OR p.stands_until <= ` + longAgo + `))`
}
