package store

import (
	"context"
	"fmt"
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

// oldestPending is when the batch of the oldest pending task of a pool was
// created.
func oldestPending(pool string) string {
	return `
	SELECT b.created_at FROM tasks t JOIN batches b ON b.id = t.batch
	WHERE t.pool = ` + pool + ` AND t.state = 'pending' AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = t.id)
	ORDER BY t.id LIMIT 1`
}

// TaskCounts is how many tasks are in each state.
type TaskCounts struct {
	ByState map[TaskState]int64
	More    bool // slots are held beyond those that were counted: they are among the pending
}

// TaskCounts counts tasks by state, of one pool or, with an empty name, of all,
// and slots held up to heldMax. It reads the counts of batches, never the tasks.
func (s tasks) TaskCounts(ctx context.Context, pool string, heldMax int) (TaskCounts, error) {
	type count struct {
		state TaskState
		n     int64
	}
	of, args := ` JOIN batches b ON b.id = c.batch WHERE b.pool = $2`, []any{heldMax, pool}
	in := ` WHERE pool = $2`
	if pool == "" {
		of, in, args = "", "", args[:1]
	}
	rows, err := collect(ctx, s.read(), func(c *count) []any { return []any{&c.state, &c.n} }, `
		SELECT c.state, CAST(sum(c.n) AS bigint) FROM (`+counted+`) AS c`+of+` GROUP BY c.state
		UNION ALL SELECT 'dispatched', count(*) FROM (SELECT 1 FROM grants`+in+` LIMIT $1 + 1) AS held
		UNION ALL SELECT 'all', coalesce(CAST(sum(total) AS bigint), 0) FROM batches`+in, args...)
	if err != nil {
		return TaskCounts{}, fmt.Errorf("counting tasks: %w", err)
	}
	counts, total := TaskCounts{ByState: map[TaskState]int64{}}, int64(0)
	for _, c := range rows {
		switch {
		case c.state == "all":
			total = c.n
		case c.state == Dispatched && c.n > int64(heldMax):
			counts.ByState[Dispatched], counts.More = int64(heldMax), true
		case c.n != 0:
			counts.ByState[c.state] += c.n
		}
	}
	setPending(counts.ByState, total)
	return counts, nil
}

// ErrorCount is an error text and how many tasks had it.
type ErrorCount struct {
	Error string // its beginning, up to 200 characters
	Tasks int64
}

// TopErrors groups the errors of the tasks of a batch that failed or timed out,
// most frequent first. It looks at no more than sample of them in each state.
func (s tasks) TopErrors(ctx context.Context, batch int64, sample, limit int) ([]ErrorCount, error) {
	const latest = `SELECT * FROM (SELECT error FROM tasks WHERE batch = $1 AND state = '%s' LIMIT $2) AS %[1]s`
	return collect(ctx, s.planned(), func(e *ErrorCount) []any { return []any{&e.Error, &e.Tasks} }, `
		SELECT substr(error, 1, 200) AS text, count(*) AS n FROM (`+
		fmt.Sprintf(latest, Failed)+` UNION ALL `+fmt.Sprintf(latest, TimedOut)+`) AS ended
		GROUP BY text ORDER BY n DESC, text LIMIT $3`, batch, sample, limit)
}
