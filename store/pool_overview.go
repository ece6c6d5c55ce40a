package store

import (
	"context"
	"time"
)

// PoolUse is the number of held slots of a pool.
type PoolUse struct {
	Pool     string
	Capacity int
	Held     int // grants, including lapsed grants that are not yet reaped
}

// PoolUses returns the use of all pools, in the order of names, in one snapshot.
func (s pools) PoolUses(ctx context.Context) ([]PoolUse, error) {
	return collect(ctx, s.readSession(), func(u *PoolUse) []any { return []any{&u.Pool, &u.Capacity, &u.Held} }, `
		SELECT p.name, p.capacity, (SELECT count(*) FROM grants g WHERE g.pool = p.name)
		FROM pools p WHERE p.deleted_at IS NULL ORDER BY p.name`)
}

// manyPools is a number of pools. If one call returns more pools than this, waiting devices are counted only up to a hundredth of the
// maximum.
const manyPools = "100"

// PoolOverview is the overview of one pool.
type PoolOverview struct {
	Pool Pool
	PoolStatus

	Waiting int        // waiting devices, as in Occupancy; for more than manyPools pools, counted only up to a hundredth of the maximum
	Oldest  *time.Time // creation of the batch of the oldest waiting task; nil means that no task waits
}

// PoolOverviews returns at most limit pools with a name > afterName, in the order of names, in one snapshot. It counts at most maxWaiting
// waiting devices of each pool. The cost per pool does not grow with the number of pools or tasks.
func (s pools) PoolOverviews(ctx context.Context, afterName string, limit, maxWaiting int) ([]PoolOverview, error) {
	return s.readOverviews(ctx, `pools o`, `WHERE o.name > $1 AND o.deleted_at IS NULL ORDER BY o.name LIMIT `+hideFromPlanner("$2", "integer"), "$3", afterName, limit, maxWaiting)
}

// PoolOverviewsByName returns the overview of each pool in names that exists, in the order of names, in one snapshot. It counts at most
// maxWaiting waiting devices of each pool.
func (s pools) PoolOverviewsByName(ctx context.Context, names []string, maxWaiting int) ([]PoolOverview, error) {
	return s.readOverviews(ctx, `{names} JOIN pools o ON o.name = names.name AND o.deleted_at IS NULL`, "", "$2", namesInput(names), maxWaiting)
}

// readOverviews reads the overviews of the pools that fromSQL (the content of a FROM clause) and conditionSQL (the clauses after it)
// select. args are the arguments of the statement. maxWaitingExpr is the SQL expression for the maximum number of counted waiting devices.
func (s pools) readOverviews(ctx context.Context, fromSQL, conditionSQL, maxWaitingExpr string, args ...any) ([]PoolOverview, error) {
	return collect(ctx, s.readSession(), func(v *PoolOverview) []any {
		return append(append(poolDest(&v.Pool), poolStatusDest(&v.PoolStatus)...), &v.Waiting, &v.Oldest)
	}, poolStatusCTE(fromSQL, conditionSQL)+`
		SELECT `+poolColumns+`, `+poolStatusColumns()+`,
			(`+waitingCountSQL("o.name", hideFromPlanner(maxWaitingExpr+` / CASE WHEN (SELECT count(*) FROM stood) > `+manyPools+` THEN 100 ELSE 1 END`, "integer"))+`),
			(`+oldestPendingSQL("o.name")+`)
		FROM stood o ORDER BY name`, args...)
}

// hideFromPlanner returns an SQL expression for argument, such as $1, whose value the planner does not know. sqlType is the type of
// argument. If Postgres knew the value, it could expect that a plan for this value is cheaper than the general plan. Then it would plan
// each call anew, which takes longer than the query itself.
func hideFromPlanner(argument, sqlType string) string {
	return `(SELECT CAST(` + argument + ` AS ` + sqlType + `))`
}

// oldestPendingSQL returns the query for the creation time of the oldest batch with a waiting task in the pool poolExpr (an SQL
// expression). A task is as old as its batch.
func oldestPendingSQL(poolExpr string) string {
	return `
	SELECT b.created_at FROM tasks t JOIN batches b ON b.id = t.batch
	WHERE t.pool = ` + poolExpr + ` AND t.state = 'pending' AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = t.id)
	ORDER BY t.batch LIMIT 1`
}
