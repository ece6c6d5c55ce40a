package store

import (
	"context"
	"fmt"
)

// Expire ends up to limit tasks that were not granted before their batch's
// NotAfter, and says how many.
func (s tasks) Expire(ctx context.Context, limit int) (int, error) {
	expired := 0
	err := s.write(ctx, func(tx session) (err error) {
		expired, err = tx.tasks().endWaiting(ctx, `b.not_after <= {now}`, Expired, "reaper", limit)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("expiring: %w", err)
	}
	return expired, nil
}

// endWaiting ends up to limit tasks that are not granted, of the batches b that
// the condition selects.
func (s tasksIn) endWaiting(ctx context.Context, batches string, state TaskState, actor string, limit int) (int, error) {
	const waiting = `t.state = 'pending' AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = t.id)`
	tasks, err := collect(ctx, s.session, only[int64], `
		SELECT t.id FROM batches b JOIN tasks t ON t.batch = b.id
		WHERE `+batches+` AND `+waiting+` LIMIT $1 {skip t}`, limit)
	if err != nil || len(tasks) == 0 {
		return 0, err
	}
	// A grant does not write its task, so one that came in between shows only
	// in a new snapshot, now that the tasks are locked against claims.
	gone, err := collect(ctx, s.session, only[int64], `
		UPDATE tasks AS t SET state = $2, finished_at = {now}, retry_at = NULL
		WHERE t.id IN (SELECT id FROM {ids}) AND `+waiting+` RETURNING id`, ids(tasks...), string(state))
	if err != nil || len(gone) == 0 {
		return 0, err
	}
	_, err = s.exec(ctx, `
		INSERT INTO events (at, kind, actor, pool, batch, task, device)
		SELECT {now}, $2, $3, pool, batch, id, device FROM tasks WHERE id IN (SELECT id FROM {ids})`,
		ids(gone...), "task."+string(state), actor)
	return len(gone), err
}
