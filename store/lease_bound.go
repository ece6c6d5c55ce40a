package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Callers says how the bound of a pool's callers stands to one of them that waits.
type Callers struct {
	Bound *int // nil: there is none
	Held  int  // slots that callers hold; counted only where there is a bound
	Ahead int  // callers that wait before it, and ask; counted up to mostAhead
}

// Full says that no slot is left for the caller.
func (c Callers) Full() bool { return c.Bound != nil && c.Held+c.Ahead >= *c.Bound }

// mostAhead bounds what is counted of those who wait before a caller.
const mostAhead = 1000

// CallersBefore reads how the bound of a pool's callers stands to the one that waits with a task.
func (s grants) CallersBefore(ctx context.Context, pool string, task int64) (Callers, error) {
	c, err := one(ctx, s.read(), func(c *Callers) []any { return []any{&c.Bound, &c.Held, &c.Ahead} },
		callersBefore(), pool, task, (Stay - Returns).Milliseconds(), mostAhead)
	if err != nil {
		return c, fmt.Errorf("counting the callers of pool %s: %w", pool, err)
	}
	return c, nil
}

func callersBefore() string {
	return `
	SELECT p.callers, CASE WHEN p.callers IS NULL THEN 0 ELSE (` + heldByCallers + `) END,
		CASE WHEN p.callers IS NULL THEN 0 ELSE (SELECT count(*) FROM (` + callersAsking("$3", "t.id < $2", "$4") + `) AS ahead) END
	FROM pools p WHERE p.name = $1`
}

// heldByCallers counts the slots of pool p that callers hold.
const heldByCallers = `SELECT count(*) FROM grants g WHERE g.pool = p.name AND g.device >= '@' AND g.device < 'A'`

// callersAsking are the tasks of callers that wait in pool $1, some of each of its newest batches of
// leases, and whose last answer is not due or was a moment ago: so one that went away keeps
// nobody waiting. A batch that starts nothing now has none. Each batch is looked up by itself:
// joined, Postgres may read all tasks of the pool.
func callersAsking(stay, also, most string) string {
	each := make([]string, leaseBatches)
	for i := range each {
		each[i] = fmt.Sprintf(`SELECT * FROM (
			SELECT t.id, t.batch, t.device FROM tasks t
			WHERE t.pool = $1 AND t.state = 'pending' AND t.batch = (
				SELECT b.id FROM (SELECT * FROM batches WHERE pool = $1 AND system ORDER BY id DESC LIMIT 1 OFFSET %d) AS b
				WHERE `+batchStarts+` AND `+windowOpen("b", "0")+`)
				AND t.not_after > {now} + %s * {ms} AND (SELECT g.task FROM grants g WHERE g.task = t.id) IS NULL AND %s
			ORDER BY t.priority DESC, t.id LIMIT %s) AS of%d`, i, stay, also, most, i)
	}
	return strings.Join(each, " UNION ALL ")
}

// NextCallers are the holders that wait first in a pool whose callers have a bound, as many as
// there is room for by that; limit at most.
func (s grants) NextCallers(ctx context.Context, pool string, limit int) ([]string, error) {
	room, err := one(ctx, s.read(), only[int], `
		SELECT p.callers - (`+heldByCallers+`) FROM pools p WHERE p.name = $1 AND p.callers IS NOT NULL AND p.deleted_at IS NULL
		UNION ALL SELECT 0 LIMIT 1`, pool)
	if err != nil || room < 1 {
		return nil, err
	}
	found, err := collect(ctx, s.read(), only[string], nextCallers(), pool, (Stay - Returns).Milliseconds(), min(room, limit))
	if err != nil {
		return nil, fmt.Errorf("looking for the next callers of pool %s: %w", pool, err)
	}
	return found, nil
}

func nextCallers() string {
	return `SELECT device FROM (` + callersAsking("$2", "TRUE", "$3") + `) AS asking ORDER BY batch, id LIMIT $3`
}

// admitCallers leaves out the claims of callers that would hold more slots of a pool than
// callers may. Those of a pool are made one after the other: the next one is counted when this one
// has committed. Claims of devices pay nothing for it.
func (s grantsIn) admitCallers(ctx context.Context, rows []claimRow, outcomes []ClaimOutcome) ([]claimRow, error) {
	callers := slices.DeleteFunc(slices.Clone(rows), func(c claimRow) bool { return !IsCaller(c.Device) })
	if len(callers) == 0 {
		return rows, nil
	}
	left := make(map[string]int)
	for _, pool := range poolsOf(callers) {
		if err := s.pools().lock(ctx, callerMark+pool); err != nil {
			return nil, err
		}
		type room struct {
			Bound *int
			Held  int
		}
		r, err := one(ctx, s.session, func(r *room) []any { return []any{&r.Bound, &r.Held} },
			`SELECT p.callers, CASE WHEN p.callers IS NULL THEN 0 ELSE (`+heldByCallers+`) END FROM pools p WHERE p.name = $1`, pool)
		if err != nil {
			return nil, fmt.Errorf("counting the callers of pool %s: %w", pool, err)
		}
		left[pool] = len(callers)
		if r.Bound != nil {
			left[pool] = *r.Bound - r.Held
		}
	}
	return slices.DeleteFunc(slices.Clone(rows), func(c claimRow) bool {
		if !IsCaller(c.Device) {
			return false
		}
		left[c.Pool]--
		if left[c.Pool] < 0 {
			outcomes[c.N].Status = ClaimCallersFull
		}
		return left[c.Pool] < 0
	}), nil
}
