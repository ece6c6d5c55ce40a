package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// CallerBound holds how many slots of a pool callers may hold and do hold, and how many callers wait before one waiting caller.
type CallerBound struct {
	Bound *int // nil means no bound
	Held  int  // slots that callers hold; counted only if there is a bound
	Ahead int  // callers that wait before this caller and still ask for a slot; counted up to maxCountedAhead
}

// IsFull reports whether the bound leaves no slot for the waiting caller.
func (c CallerBound) IsFull() bool { return c.Bound != nil && c.Held+c.Ahead >= *c.Bound }

// maxCountedAhead is the largest value of CallerBound.Ahead.
const maxCountedAhead = 1000

// CallerBoundOf reads the CallerBound of the caller that waits with this task.
func (s grants) CallerBoundOf(ctx context.Context, pool string, taskID int64) (_ CallerBound, err error) {
	defer wrapError(&err, "counting the callers of pool %s", pool)
	return queryOne(ctx, s.readSession(), func(c *CallerBound) []any { return []any{&c.Bound, &c.Held, &c.Ahead} },
		callerBoundSQL(), pool, taskID, (PositionTTL - AskAgainWithin).Milliseconds(), maxCountedAhead)
}

func callerBoundSQL() string {
	return `
	SELECT p.callers, CASE WHEN p.callers IS NULL THEN 0 ELSE (` + callerSlotsSQL + `) END,
		CASE WHEN p.callers IS NULL THEN 0 ELSE (SELECT count(*) FROM (` + waitingCallersSQL("$3", "t.id < $2", "$4") + `) AS ahead) END
	FROM pools p WHERE p.name = $1`
}

// callerSlotsSQL counts the slots of pool p that callers hold.
const callerSlotsSQL = `SELECT count(*) FROM grants g WHERE g.pool = p.name AND g.device >= '@' AND g.device < 'A'`

// waitingCallersSQL returns the query for the tasks of callers that wait in pool $1 and still ask for a slot. The query reads the newest
// leaseBatches batches of leases. From each of them it selects at most limitExpr tasks that satisfy conditionSQL. All parameters are SQL
// expressions, and minWaitExpr is in ms.
//
// If the not_after of a task is less than minWaitExpr from now, its caller has stopped asking, and the task is left out. Batches whose
// tasks cannot start are left out. Each batch is looked up separately, because for a join Postgres may read all tasks of the pool.
func waitingCallersSQL(minWaitExpr, conditionSQL, limitExpr string) string {
	each := make([]string, leaseBatches)
	for i := range each {
		each[i] = fmt.Sprintf(`SELECT * FROM (
			SELECT t.id, t.batch, t.device FROM tasks t
			WHERE t.pool = $1 AND t.state = 'pending' AND t.batch = (
				SELECT b.id FROM (SELECT * FROM batches WHERE pool = $1 AND system ORDER BY id DESC LIMIT 1 OFFSET %d) AS b
				WHERE `+batchMayStart+` AND `+windowOpenSQL("b", "0")+`)
				AND t.not_after > {now} + %s * {ms} AND (SELECT g.task FROM grants g WHERE g.task = t.id) IS NULL AND %s
			ORDER BY t.priority DESC, t.id LIMIT %s) AS of%d`, i, minWaitExpr, conditionSQL, limitExpr, i)
	}
	return strings.Join(each, " UNION ALL ")
}

// NextCallers returns the first waiting callers of a pool that has a bound for callers, as device names (HolderDevice). It returns as many
// as the bound leaves room for, at most limit.
func (s grants) NextCallers(ctx context.Context, pool string, limit int) (holderDevices []string, err error) {
	room, err := queryOne(ctx, s.readSession(), singleColumn[int], `
		SELECT p.callers - (`+callerSlotsSQL+`) FROM pools p WHERE p.name = $1 AND p.callers IS NOT NULL AND p.deleted_at IS NULL
		UNION ALL SELECT 0 LIMIT 1`, pool)
	if err != nil || room < 1 {
		return nil, err
	}
	found, err := collect(ctx, s.readSession(), singleColumn[string], nextCallersSQL(), pool, (PositionTTL - AskAgainWithin).Milliseconds(), min(room, limit))
	if err != nil {
		return nil, fmt.Errorf("finding the next callers of pool %s: %w", pool, err)
	}
	return found, nil
}

func nextCallersSQL() string {
	return `SELECT device FROM (` + waitingCallersSQL("$2", "TRUE", "$3") + `) AS asking ORDER BY batch, id LIMIT $3`
}

// admitCallers removes from rows the claims of callers that exceed the bound of their pool, and sets their outcomes to ClaimCallersFull. It
// locks the bound of each pool, so that concurrent transactions count each other's slots. For claims of devices, it takes no lock.
func (s session) admitCallers(ctx context.Context, rows []claimRow, outcomes []ClaimOutcome) (admitted []claimRow, err error) {
	callers := slices.DeleteFunc(slices.Clone(rows), func(c claimRow) bool { return !IsCaller(c.Device) })
	if len(callers) == 0 {
		return rows, nil
	}
	left := make(map[string]int)
	for _, pool := range poolNamesOfClaims(callers) {
		if err := s.lockNameExclusively(ctx, callerPrefix+pool); err != nil {
			return nil, err
		}
		type room struct {
			Bound *int
			Held  int
		}
		r, err := queryOne(ctx, s, func(r *room) []any { return []any{&r.Bound, &r.Held} },
			`SELECT p.callers, CASE WHEN p.callers IS NULL THEN 0 ELSE (`+callerSlotsSQL+`) END FROM pools p WHERE p.name = $1`, pool)
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
