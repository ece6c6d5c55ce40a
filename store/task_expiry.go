package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// waitingEnd ends tasks t that wait, those of some rows.
type waitingEnd struct {
	rows   string // FROM ... WHERE
	args   []any
	order  string // that of an index, if any
	reason string // SQL of t: why, for people; of the tasks and their events
	still  string // SQL of t, asked again once they are locked: what ends them may have changed; empty: always
	state  TaskState
	actor  string
}

// waiting is true of tasks t that wait. The look at the grant is none that can be joined to all
// tasks, and in a CASE it seems likely to Postgres to succeed: so rows are found by their index.
const waiting = `t.state = 'pending' AND CASE WHEN (SELECT g.task FROM grants g WHERE g.task = t.id) IS NULL THEN TRUE ELSE FALSE END`

// text finds up to so many of them.
func (e waitingEnd) text() string {
	return `SELECT t.id, ` + e.reason + ` ` + e.rows + ` AND ` + waiting + e.order + fmt.Sprintf(` LIMIT $%d {skip t}`, len(e.args)+1)
}

func expiry(rows, order, reason, still string, args ...any) waitingEnd {
	return waitingEnd{rows, args, order, reason, still, Expired, "reaper"}
}

// expiries are the ways to expire that an index finds, which is read up to one moment: the
// clock itself is no bound, as it goes on.
func expiries() []waitingEnd {
	const missed = `CASE WHEN t.attempts > 0 OR t.returned > 0 THEN 'not finished by ' ELSE 'not started by ' END || `
	return []waitingEnd{
		expiry(`FROM batches b JOIN tasks t ON t.batch = b.id WHERE b.not_after <= (SELECT {now})`, ` ORDER BY b.not_after`,
			missed+`'the not_after of its batch'`, `(SELECT b.not_after FROM batches b WHERE b.id = t.batch) <= {now}`),
		expiry(`FROM tasks t WHERE t.not_after <= (SELECT {now})`, ` ORDER BY t.not_after`,
			missed+`'its own not_after'`, `t.not_after <= {now}`),
	}
}

// tooLong is how those of some tasks expire that waited too long.
func tooLong(tasks []int64) waitingEnd {
	return expiry(`FROM {ids} JOIN tasks t ON t.id = ids.id WHERE TRUE`, ``, `'waited longer than max_wait'`,
		`EXISTS (SELECT 1 FROM batches b WHERE b.id = t.batch AND `+withinWait+` IS NOT TRUE)`, ids(tasks...))
}

// Expire ends up to limit tasks that were not granted before their own NotAfter or that of
// their batch, and says how many.
func (s tasks) Expire(ctx context.Context, limit int) (int, error) {
	expired := 0
	for _, way := range expiries() {
		n, err := s.endWaiting(ctx, way, limit-expired)
		if err != nil {
			return expired, err
		}
		if expired += n; expired == limit {
			break
		}
	}
	return expired, nil
}

// WaitMark is how far a search for tasks that waited too long has come: it goes by the
// batches that have some, then by the tasks of each. The zero WaitMark is before all.
type WaitMark struct{ Batch, Task int64 }

// ExpireWaited ends those of the next tasks behind a mark that waited longer than the MaxWait
// of their batch, says how many, and how far it came; the zero mark: there are no more. It
// looks at so many batches with a MaxWait, which may have ended, and so many tasks of one of
// them at most: those that were started once, or begin later, stay, and no index tells them apart.
func (s tasks) ExpireWaited(ctx context.Context, after WaitMark, looked int) (expired int, next WaitMark, err error) {
	found, err := one(ctx, s.planned(), func(o *overdue) []any { return []any{&o.batch, &o.beyond} }, overdueText, after.Batch, looked)
	if err != nil {
		return 0, after, fmt.Errorf("looking for batches that waited too long: %w", err)
	}
	if found.batch == 0 {
		return 0, WaitMark{Batch: found.beyond}, nil
	}
	f := TaskFilter{Batch: found.batch, State: Pending}
	if found.batch == after.Batch {
		f.After = after.Task
	}
	q := &query{}
	stretch, err := s.stretchAt(ctx, q, f.ids(q, looked), "", looked)
	if err != nil {
		return 0, after, fmt.Errorf("looking for tasks that waited too long: %w", err)
	}
	if next = (WaitMark{found.batch, stretch.End}); !stretch.More {
		next = WaitMark{Batch: found.batch + 1}
	}
	f.Until = stretch.End
	expired, err = s.expireWaited(ctx, f, looked)
	return expired, next, err
}

func (s tasks) expireWaited(ctx context.Context, f TaskFilter, looked int) (int, error) {
	q := &query{}
	late, err := collect(ctx, s.planned(), only[int64], `SELECT t.id FROM (`+f.ids(q, looked)+`) AS w {task w} {batch of t} WHERE `+withinWait+` IS NOT TRUE`, q.args...)
	if err != nil || len(late) == 0 {
		return 0, err
	}
	return s.endWaiting(ctx, tooLong(late), looked)
}

// overdue is what overdueText finds: 0: none.
type overdue struct{ batch, beyond int64 }

// overdueText finds, among the next $2 batches with a MaxWait, the first whose tasks must have
// started and that has some left, and the batch behind all these. Whether it has some is asked of
// one after another, by a sub-select: an EXISTS may be answered by all tasks that wait.
const overdueText = `
	SELECT coalesce((
			SELECT b.id FROM (SELECT id, wait_until FROM batches WHERE wait_until IS NOT NULL AND id >= $1 ORDER BY id LIMIT $2) AS b
			WHERE CASE WHEN b.wait_until <= {now} THEN (SELECT t.id FROM tasks t WHERE t.batch = b.id AND t.state = 'pending' ORDER BY t.batch, t.state, t.id LIMIT 1) END IS NOT NULL
			ORDER BY b.id LIMIT 1), 0),
		coalesce((SELECT id FROM batches WHERE wait_until IS NOT NULL AND id >= $1 ORDER BY id LIMIT 1 OFFSET $2), 0)`

func (s tasks) endWaiting(ctx context.Context, of waitingEnd, limit int) (ended int, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		ended, err = tx.tasks().endWaiting(ctx, of, limit)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ending tasks that are %s: %w", of.state, err)
	}
	return ended, nil
}

// endWaiting ends up to limit tasks that are not granted, and says how many.
func (s tasksIn) endWaiting(ctx context.Context, of waitingEnd, limit int) (int, error) {
	ends, err := collect(ctx, s.session, func(e *end) []any { return []any{&e.Task, &e.Reason} }, of.text(), append(of.args, limit)...)
	if err != nil || len(ends) == 0 {
		return 0, err
	}
	gone, err := s.endLocked(ctx, of, ends)
	return len(gone), err
}

// end is a task that ends without a grant.
type end struct {
	Task   int64  `json:"task"`
	Reason string `json:"reason"` // its error, and what its event says
}

// endLocked ends those of these locked tasks that are still to end and not granted, and returns them.
func (s tasksIn) endLocked(ctx context.Context, of waitingEnd, ends []end) ([]int64, error) {
	// A grant does not write its task, and a change of a batch none of its tasks, so one that
	// came in between shows only in a new snapshot, now that the tasks are locked against claims.
	gone, err := collect(ctx, s.session, only[int64], `
		UPDATE tasks AS t SET state = $2, finished_at = {now}, retry_at = NULL, error = ends.reason
		FROM {ends} WHERE t.id = ends.task AND `+waiting+` AND `+cmp.Or(of.still, `TRUE`)+` RETURNING id`, input(ends), string(of.state))
	if err != nil || len(gone) == 0 {
		return nil, err
	}
	ends = slices.DeleteFunc(slices.Clone(ends), func(e end) bool { return !slices.Contains(gone, e.Task) })
	_, err = s.exec(ctx, `
		INSERT INTO events (at, kind, actor, pool, batch, task, device, detail)
		SELECT {now}, $2, $3, t.pool, t.batch, t.id, t.device, ends.reason FROM {ends} JOIN tasks t ON t.id = ends.task`,
		input(ends), "task."+string(of.state), of.actor)
	return gone, err
}
