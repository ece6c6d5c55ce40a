package store

import (
	"context"
	"time"
)

// PoolUse is how full a pool is.
type PoolUse struct {
	Pool     string
	Capacity int
	Held     int // grants in force, or lapsed and not yet reaped
}

// PoolUses reads how full all pools are, by name, in one moment.
func (s pools) PoolUses(ctx context.Context) ([]PoolUse, error) {
	return collect(ctx, s.read(), func(u *PoolUse) []any { return []any{&u.Pool, &u.Capacity, &u.Held} }, `
		SELECT p.name, p.capacity, (SELECT count(*) FROM grants g WHERE g.pool = p.name)
		FROM pools p WHERE p.deleted_at IS NULL ORDER BY p.name`)
}

// In more than manyPools at once the devices that wait are counted a hundredth as far.
const manyPools = "100"

// PoolView is what an overview shows of one pool.
type PoolView struct {
	Pool Pool
	PoolStanding

	Waiting int        // as in Occupancy; of many pools to a hundredth of the bound
	Oldest  *time.Time // since when the oldest pending task waits; nil: none
}

// PoolViews reads up to limit pools by name, those after the one named, in one
// moment. Its work does not grow with the number of pools or tasks.
func (s pools) PoolViews(ctx context.Context, after string, limit, waitingMax int) ([]PoolView, error) {
	return s.views(ctx, `pools o`, `WHERE o.name > $1 AND o.deleted_at IS NULL ORDER BY o.name LIMIT `+hidden("$2", "integer"), "$3", after, limit, waitingMax)
}

// PoolViewsOf reads those of these pools that there are, by name, in one moment.
func (s pools) PoolViewsOf(ctx context.Context, list []string, waitingMax int) ([]PoolView, error) {
	return s.views(ctx, `{names} JOIN pools o ON o.name = names.name AND o.deleted_at IS NULL`, "", "$2", names(list), waitingMax)
}

func (s pools) views(ctx context.Context, from, which, waitingMax string, args ...any) ([]PoolView, error) {
	return collect(ctx, s.read(), func(v *PoolView) []any {
		return append(append(poolDest(&v.Pool), standingDest(&v.PoolStanding)...), &v.Waiting, maybe{&v.Oldest})
	}, standings(from, which)+`
		SELECT `+poolColumns+`, `+standingColumns()+`,
			(`+waitingCount("o.name", hidden(waitingMax+` / CASE WHEN (SELECT count(*) FROM stood) > `+manyPools+` THEN 100 ELSE 1 END`, "integer"))+`),
			(`+oldestPending("o.name")+`)
		FROM stood o ORDER BY name`, args...)
}

// hidden keeps what an argument says from the planner. Plans for some arguments
// look cheaper than the one for all, and Postgres then makes one for each call,
// which takes longer than running it.
func hidden(argument, kind string) string { return `(SELECT CAST(` + argument + ` AS ` + kind + `))` }

// oldestPending is when the oldest batch of a pool was created that a pending task is
// in: its tasks are as old.
func oldestPending(pool string) string {
	return `
	SELECT b.created_at FROM tasks t JOIN batches b ON b.id = t.batch
	WHERE t.pool = ` + pool + ` AND t.state = 'pending' AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = t.id)
	ORDER BY t.batch LIMIT 1`
}
