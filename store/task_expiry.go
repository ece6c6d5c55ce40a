package store

import (
	"context"
	"fmt"
)

// waitingEnd ends tasks t that wait, those of some rows.
type waitingEnd struct {
	rows   string // FROM ... WHERE
	state  TaskState
	actor  string
	detail string // of their events
}

const waiting = `t.state = 'pending' AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = t.id)`

// text finds up to so many of them.
func (e waitingEnd) text() string {
	return `SELECT t.id ` + e.rows + ` AND ` + waiting + ` LIMIT $1 {skip t}`
}

// expiries are the ways to expire. detail is empty for the oldest one.
func expiries() []waitingEnd {
	return []waitingEnd{
		{`FROM batches b JOIN tasks t ON t.batch = b.id WHERE b.not_after <= {now}`, Expired, "reaper", ""},
		{`FROM tasks t WHERE t.not_after <= {now}`, Expired, "reaper", "not_after of the task"},
	}
}

// Expire ends up to limit tasks that were not granted before their own NotAfter or that of
// their batch, and says how many.
func (s tasks) Expire(ctx context.Context, limit int) (int, error) {
	expired := 0
	for _, way := range expiries() {
		n := 0
		err := s.write(ctx, func(tx session) (err error) {
			n, err = tx.tasks().endWaiting(ctx, way, limit-expired)
			return err
		})
		if err != nil {
			return expired, fmt.Errorf("expiring: %w", err)
		}
		if expired += n; expired == limit {
			break
		}
	}
	return expired, nil
}

// endWaiting ends up to limit tasks that are not granted, and says how many.
func (s tasksIn) endWaiting(ctx context.Context, of waitingEnd, limit int) (int, error) {
	tasks, err := collect(ctx, s.session, only[int64], of.text(), limit)
	if err != nil || len(tasks) == 0 {
		return 0, err
	}
	// A grant does not write its task, so one that came in between shows only
	// in a new snapshot, now that the tasks are locked against claims.
	gone, err := collect(ctx, s.session, only[int64], `
		UPDATE tasks AS t SET state = $2, finished_at = {now}, retry_at = NULL
		WHERE t.id IN (SELECT id FROM {ids}) AND `+waiting+` RETURNING id`, ids(tasks...), string(of.state))
	if err != nil || len(gone) == 0 {
		return 0, err
	}
	_, err = s.exec(ctx, `
		INSERT INTO events (at, kind, actor, pool, batch, task, device, detail)
		SELECT {now}, $2, $3, pool, batch, id, device, $4 FROM tasks WHERE id IN (SELECT id FROM {ids})`,
		ids(gone...), "task."+string(of.state), of.actor, of.detail)
	return len(gone), err
}
