package store

import (
	"context"
	"errors"
	"fmt"
)

// bulkChunk is the maximum number of tasks in one transaction of a bulk change.
const bulkChunk = 1000

// BulkResult is the result of a bulk change.
type BulkResult struct {
	Tasks       int64 // tasks changed at once
	AskedToStop int64 // running tasks whose devices are asked to stop
	More        bool  // there may be more tasks: call again
}

// These SQL conditions on task t of batch b select the tasks that CancelTasks and RetryTasks change.
const (
	isOpenSQL      = `t.state = 'pending'`
	isRetriableSQL = `t.state IN ('failed', 'timed_out', 'cancelled', 'expired', 'suppressed')
		AND b.system IS FALSE AND b.cancelled_at IS NULL AND (b.not_after IS NULL OR b.not_after > {now}) AND (t.not_after IS NULL OR t.not_after > {now}) AND ` + withinMaxWait + `
		AND NOT EXISTS (SELECT 1 FROM pools p WHERE p.name = t.pool AND p.deleted_at IS NOT NULL)`
)

// CancelTasks cancels at most limit open tasks that match filter, and asks the devices of running tasks to stop. It works in chunks of
// bulkChunk tasks, each in one transaction. After an error, earlier chunks stay committed, and the call can be repeated.
func (s tasks) CancelTasks(ctx context.Context, actor string, filter TaskFilter, limit int) (BulkResult, error) {
	return s.changeTasksInChunks(ctx, filter, isOpenSQL, limit, func(tx session, tasks []int64, done *BulkResult) error {
		return tx.cancelTasks(ctx, actor, tasks, done)
	})
}

// RetryTasks makes at most limit tasks that match filter pending again. It changes only tasks that ended without success and whose batch
// can still start tasks. Each of them gets at least one more attempt. It works in chunks as CancelTasks does.
func (s tasks) RetryTasks(ctx context.Context, actor string, filter TaskFilter, limit int) (BulkResult, error) {
	filter.retriable = true
	return s.changeTasksInChunks(ctx, filter, isRetriableSQL, limit, func(tx session, tasks []int64, done *BulkResult) error {
		return tx.retryTasks(ctx, actor, tasks, done)
	})
}

// CountCancellable returns the number of tasks that CancelTasks would change with this filter and without a limit.
func (s tasks) CountCancellable(ctx context.Context, filter TaskFilter) (int64, error) {
	return s.countMatching(ctx, filter, isOpenSQL)
}

// CountRetriable returns the number of tasks that RetryTasks would change with this filter and without a limit.
func (s tasks) CountRetriable(ctx context.Context, filter TaskFilter) (int64, error) {
	filter.retriable = true
	return s.countMatching(ctx, filter, isRetriableSQL)
}

// countMatching counts the tasks that match filter and satisfy condSQL, an SQL condition.
func (s tasks) countMatching(ctx context.Context, filter TaskFilter, condSQL string) (count int64, _ error) {
	for {
		bound, err := s.taskSearchBound(ctx, filter)
		if err != nil {
			return 0, err
		}
		filter.Until = bound.End
		q := filter.matchingQuery("count(*)", condSQL)
		found, err := queryOne(ctx, s.customPlanSession(), singleColumn[int64], q.textWithoutLimit(), q.args...)
		if err != nil || !bound.More {
			return count + found, err
		}
		count, filter.After, filter.Until = count+found, bound.End, 0
	}
}

// changeTasksInChunks changes at most limit tasks that match filter and condSQL, an SQL condition. It searches from one SearchBound to the next.
// For each chunk of tasks, it calls change with a session, the ids of the tasks, and the BulkResult that change must set.
func (s tasks) changeTasksInChunks(ctx context.Context, filter TaskFilter, condSQL string, limit int, change func(tx session, taskIDs []int64, done *BulkResult) error) (total BulkResult, _ error) {
	for left := limit; left > 0; {
		bound, err := s.taskSearchBound(ctx, filter)
		if err != nil {
			return total, fmt.Errorf("finding tasks: %w", err)
		}
		filter.Until = bound.End
		changed, err := s.changeTasksInRange(ctx, &filter, condSQL, left, change, &total)
		if err != nil {
			return total, fmt.Errorf("changing tasks in bulk: %w", err)
		}
		if left -= changed; left > 0 && !bound.More {
			return total, nil
		}
		filter.After, filter.Until = bound.End, 0
	}
	total.More = true
	return total, nil
}

// changeTasksInRange does the same as changeTasksInChunks for tasks with id <= filter.Until, and adds the results to total. It sets filter.After
// to the last id that it has processed.
func (s tasks) changeTasksInRange(ctx context.Context, filter *TaskFilter, condSQL string, limit int, change func(tx session, taskIDs []int64, done *BulkResult) error, total *BulkResult) (changed int, err error) {
	for changed < limit {
		filter.Limit = min(bulkChunk, limit-changed)
		tasks, done, err := s.changeTaskChunk(ctx, *filter, condSQL, change)
		if err != nil {
			return changed, err
		}
		total.Tasks += done.Tasks
		total.AskedToStop += done.AskedToStop
		changed += len(tasks)
		if len(tasks) < filter.Limit {
			break
		}
		filter.After = tasks[len(tasks)-1]
	}
	return changed, nil
}

// changeTaskChunk calls change with the ids of the next filter.Limit tasks in one transaction, and returns these ids. change must lock tasks in
// the order of ids, as all code does, so that deadlocks are avoided.
func (s tasks) changeTaskChunk(ctx context.Context, filter TaskFilter, condSQL string, change func(tx session, taskIDs []int64, done *BulkResult) error) (taskIDs []int64, done BulkResult, err error) {
	text, args := filter.matchingQuery("t.id", condSQL).build(filter.orderSQL(), filter.Limit)
	err = s.write(ctx, func(tx session) (err error) {
		done = BulkResult{}
		// The statement is not prepared, so that it is planned for its actual arguments.
		if taskIDs, err = collect(ctx, tx.unprepared(), singleColumn[int64], text, args...); err != nil || len(taskIDs) == 0 {
			return err
		}
		return change(tx, taskIDs, &done)
	})
	return taskIDs, done, err
}

// cancelTasks ends the waiting tasks in taskIDs, and asks the devices of the running tasks to stop. It sets the number of ended tasks and the
// number of asked devices in done.
func (s session) cancelTasks(ctx context.Context, actor string, taskIDs []int64, done *BulkResult) error {
	taskIDs, err := collect(ctx, s, singleColumn[int64], `SELECT t.id FROM {ids} JOIN tasks t ON t.id = ids.id WHERE `+isOpenSQL+` ORDER BY t.id FOR UPDATE OF t`, idsToJSONArray(taskIDs...))
	if err != nil {
		return fmt.Errorf("locking tasks: %w", err)
	}
	asked, err := collect(ctx, s, singleColumn[int64], `
		UPDATE grants SET cancel_why = 'cancelled'
		WHERE task IN (SELECT id FROM {ids}) AND cancel_why <> 'cancelled' RETURNING task`, idsToJSONArray(taskIDs...))
	if err != nil {
		return fmt.Errorf("asking devices to stop: %w", err)
	}
	type endedTask struct {
		id     int64
		device string
	}
	rows, err := collect(ctx, s, func(t *endedTask) []any { return []any{&t.id, &t.device} }, `
		UPDATE tasks SET state = 'cancelled', finished_at = {now}, retry_at = NULL
		WHERE id IN (SELECT id FROM {ids}) AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = tasks.id) RETURNING id, device`, idsToJSONArray(taskIDs...))
	if err != nil {
		return fmt.Errorf("ending tasks: %w", err)
	}
	var ended []int64
	for _, row := range rows {
		ended = append(ended, row.id)
		s.pendingNews.addDevices(row.device) // the device may wait with this task
	}
	done.Tasks, done.AskedToStop = int64(len(ended)), int64(len(asked))
	return errors.Join(s.recordTaskEvents(ctx, "task.cancel_asked", actor, asked), s.recordTaskEvents(ctx, "task.cancelled", actor, ended))
}

// lockRetriableTasks locks the tasks that may become pending again, and returns their ids. It locks pools and batches first, because a task
// that became pending in a cancelled batch or a deleted pool would stay pending forever.
func (s session) lockRetriableTasks(ctx context.Context, taskIDs []int64) (lockedIDs []int64, err error) {
	in := idsToJSONArray(taskIDs...)
	for _, query := range []string{
		`SELECT name FROM pools WHERE name IN (SELECT t.pool FROM {ids} JOIN tasks t ON t.id = ids.id) ORDER BY name FOR SHARE`,
		`SELECT id FROM batches WHERE id IN (SELECT t.batch FROM {ids} JOIN tasks t ON t.id = ids.id) ORDER BY id FOR SHARE`,
	} {
		if _, err := s.exec(ctx, query, in); err != nil {
			return nil, fmt.Errorf("locking pools and batches: %w", err)
		}
	}
	return collect(ctx, s, singleColumn[int64], `
		SELECT t.id FROM {ids} JOIN tasks t ON t.id = ids.id JOIN batches b ON b.id = t.batch
		WHERE `+isRetriableSQL+` ORDER BY t.id FOR UPDATE OF t`, in)
}

// retryTasks makes the tasks in taskIDs pending again if that is allowed, and sets their number in done. Attempt numbers continue, and a task
// without attempts left gets one more. The count of returned attempts is reset.
func (s session) retryTasks(ctx context.Context, actor string, taskIDs []int64, done *BulkResult) error {
	taskIDs, err := s.lockRetriableTasks(ctx, taskIDs)
	if err != nil {
		return fmt.Errorf("locking tasks: %w", err)
	}
	devices, err := collect(ctx, s, singleColumn[string], `
		UPDATE tasks SET state = 'pending', finished_at = NULL, retry_at = not_before, returned = 0, output = NULL, output_dropped = false, error = ''
		WHERE id IN (SELECT id FROM {ids}) RETURNING device`, idsToJSONArray(taskIDs...))
	if err != nil {
		return fmt.Errorf("retrying tasks: %w", err)
	}
	done.Tasks = int64(len(devices))
	s.pendingNews.addDevices(devices...)
	return s.recordTaskEvents(ctx, "task.retried", actor, taskIDs)
}

func (s session) recordTaskEvents(ctx context.Context, kind, actor string, taskIDs []int64) error {
	if len(taskIDs) == 0 {
		return nil
	}
	_, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device)
		SELECT {now}, $2, $3, 'operator', t.pool, t.batch, t.id, t.device FROM {ids} JOIN tasks t ON t.id = ids.id`, idsToJSONArray(taskIDs...), kind, actor)
	return err
}

// RetryTask makes one task pending again, as RetryTasks does. It does not change an open task. Errors: ErrNotFound, ErrNotRetriable.
func (s tasks) RetryTask(ctx context.Context, actor string, id int64) (Task, error) {
	var task Task
	err := s.write(ctx, func(tx session) (err error) {
		if err := tx.retryTasks(ctx, actor, []int64{id}, &BulkResult{}); err != nil {
			return err
		}
		if task, err = queryOne(ctx, tx, taskScanDest, `SELECT `+taskColumns+` FROM `+taskTables+` WHERE t.id = $1`, id); err != nil {
			return err
		}
		if task.State != Pending && task.State != Dispatched {
			return fmt.Errorf("task %d is %s: %w", id, task.State, ErrNotRetriable)
		}
		return nil
	})
	return task, err
}
