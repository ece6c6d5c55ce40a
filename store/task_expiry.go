package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// waitingEnd ends tasks t that wait, those of some rows.
type waitingEnd struct {
	rows   string // FROM ... WHERE
	args   []any
	state  TaskState
	actor  string
	reason string // why, for people: of the tasks and their events
}

const waiting = `t.state = 'pending' AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = t.id)`

// text finds up to so many of them.
func (e waitingEnd) text() string {
	return `SELECT t.id ` + e.rows + ` AND ` + waiting + fmt.Sprintf(` LIMIT $%d {skip t}`, len(e.args)+1)
}

func expiry(rows, reason string, args ...any) waitingEnd {
	return waitingEnd{rows, args, Expired, "reaper", reason}
}

// expiries are the ways to expire that an index finds.
func expiries() []waitingEnd {
	return []waitingEnd{
		expiry(`FROM batches b JOIN tasks t ON t.batch = b.id WHERE b.not_after <= {now}`, "not started by the not_after of its batch"),
		expiry(`FROM tasks t WHERE t.not_after <= {now}`, "not started by its own not_after"),
	}
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
// looks at so many of one batch at most: those that were started once, or begin later, stay,
// and no index tells them apart.
func (s tasks) ExpireWaited(ctx context.Context, after WaitMark, looked int) (expired int, next WaitMark, err error) {
	batch, err := one(ctx, s.planned(), only[int64], overdueText, after.Batch)
	if errors.Is(err, ErrNotFound) {
		return 0, WaitMark{}, nil
	}
	f := TaskFilter{Batch: batch, State: Pending}
	if batch == after.Batch {
		f.After = after.Task
	}
	var stretch Stretch
	if err == nil {
		q := &query{}
		stretch, err = s.stretchAt(ctx, q, f.ids(q, looked), "", looked)
	}
	if err != nil {
		return 0, after, fmt.Errorf("looking for what waited too long: %w", err)
	}
	if next = (WaitMark{batch, stretch.End}); !stretch.More {
		next = WaitMark{Batch: batch + 1}
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
	return s.endWaiting(ctx, expiry(`FROM {ids} JOIN tasks t ON t.id = ids.id WHERE TRUE`, "waited longer than max_wait", ids(late...)), looked)
}

// overdueText finds the next batch whose tasks must have started, and that has some left.
const overdueText = `
	SELECT b.id FROM batches b WHERE b.wait_until <= {now} AND b.id >= $1
		AND EXISTS (SELECT 1 FROM tasks t WHERE t.batch = b.id AND t.state = 'pending')
	ORDER BY b.id LIMIT 1`

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
	tasks, err := collect(ctx, s.session, only[int64], of.text(), append(of.args, limit)...)
	if err != nil || len(tasks) == 0 {
		return 0, err
	}
	ends := make([]end, len(tasks))
	for i, task := range tasks {
		ends[i] = end{task, of.reason}
	}
	gone, err := s.endLocked(ctx, of, ends)
	return len(gone), err
}

// end is a task that ends without a grant.
type end struct {
	Task   int64  `json:"task"`
	Reason string `json:"reason"` // its error, and what its event says
}

// endLocked ends those of these locked tasks that are not granted, and returns them.
func (s tasksIn) endLocked(ctx context.Context, of waitingEnd, ends []end) ([]int64, error) {
	// A grant does not write its task, so one that came in between shows only
	// in a new snapshot, now that the tasks are locked against claims.
	gone, err := collect(ctx, s.session, only[int64], `
		UPDATE tasks AS t SET state = $2, finished_at = {now}, retry_at = NULL, error = ends.reason
		FROM {ends} WHERE t.id = ends.task AND `+waiting+` RETURNING id`, input(ends), string(of.state))
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
