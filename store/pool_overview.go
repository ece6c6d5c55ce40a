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

// manyPools is the number of pools in one call above which waiting devices are counted only up to a hundredth of the bound.
const manyPools = "100"

// PoolOverview is the overview of one pool.
type PoolOverview struct {
	Pool Pool
	PoolStatus

	Waiting int        // waiting devices, as in Occupancy; for more than manyPools pools, counted only up to a hundredth of waitingMax
	Oldest  *time.Time // creation of the batch of the oldest waiting task; nil means that no task waits
}

// PoolOverviews returns at most limit pools with a name > after, in the order of names, in one snapshot. The cost per pool does not grow
// with the number of pools or tasks.
func (s pools) PoolOverviews(ctx context.Context, after string, limit, waitingMax int) ([]PoolOverview, error) {
	return s.readOverviews(ctx, `pools o`, `WHERE o.name > $1 AND o.deleted_at IS NULL ORDER BY o.name LIMIT `+hideFromPlanner("$2", "integer"), "$3", after, limit, waitingMax)
}

// PoolOverviewsByName returns each pool in list that exists, in the order of names, in one snapshot.
func (s pools) PoolOverviewsByName(ctx context.Context, list []string, waitingMax int) ([]PoolOverview, error) {
	return s.readOverviews(ctx, `{names} JOIN pools o ON o.name = names.name AND o.deleted_at IS NULL`, "", "$2", namesInput(list), waitingMax)
}

func (s pools) readOverviews(ctx context.Context, from, which, waitingMax string, args ...any) ([]PoolOverview, error) {
	return collect(ctx, s.readSession(), func(v *PoolOverview) []any {
		return append(append(poolDest(&v.Pool), poolStatusDest(&v.PoolStatus)...), &v.Waiting, optionalTime{&v.Oldest})
	}, poolStatusCTE(from, which)+`
		SELECT `+poolColumns+`, `+poolStatusColumns()+`,
			(`+waitingCountSQL("o.name", hideFromPlanner(waitingMax+` / CASE WHEN (SELECT count(*) FROM stood) > `+manyPools+` THEN 100 ELSE 1 END`, "integer"))+`),
			(`+oldestPendingSQL("o.name")+`)
		FROM stood o ORDER BY name`, args...)
}

// hideFromPlanner returns an SQL expression that hides the value of an argument from the planner. For some values Postgres expects that a
// special plan is cheaper than the general plan; it would then plan each call anew, which takes longer than the query itself.
func hideFromPlanner(argument, kind string) string {
	return `(SELECT CAST(` + argument + ` AS ` + kind + `))`
}

// oldestPendingSQL returns the query for the creation time of the oldest batch of a pool with a waiting task. A task is as old as its
// batch.
func oldestPendingSQL(pool string) string {
	return `
	SELECT b.created_at FROM tasks t JOIN batches b ON b.id = t.batch
	WHERE t.pool = ` + pool + ` AND t.state = 'pending' AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = t.id)
	ORDER BY t.batch LIMIT 1`
}
