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

// PoolView is what an overview shows of one pool.
type PoolView struct {
	Pool    Pool
	Held    int
	Waiting int        // as in Occupancy
	Oldest  *time.Time // since when the oldest pending task waits; nil: none
}

// PoolViews reads up to limit pools by name, those after the one named, in one
// moment. Its work does not grow with the number of pools or tasks.
func (s pools) PoolViews(ctx context.Context, after string, limit, waitingMax int) ([]PoolView, error) {
	return collect(ctx, s.read(), func(v *PoolView) []any {
		return append(poolDest(&v.Pool), &v.Held, &v.Waiting, maybe{&v.Oldest})
	}, `
		SELECT `+poolColumns+`,
			(SELECT count(*) FROM grants g WHERE g.pool = o.name),
			(`+waitingCount("o.name", hidden("$3", "integer"))+`),
			(`+oldestPending("o.name")+`)
		FROM pools o WHERE name > $1 AND deleted_at IS NULL ORDER BY name LIMIT `+hidden("$2", "integer"), after, limit, waitingMax)
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
