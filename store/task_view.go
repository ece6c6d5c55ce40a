package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// TaskView holds everything that decides whether a task runs, read in one snapshot.
type TaskView struct {
	DeviceView // view of the device of the task; while the task waits, its Candidates contain the task

	Task         Task
	RunningGrant *Grant     // the grant of the task; nil means no grant
	Batch        Batch      // without its counts
	Pool         Pool       // set even if the pool was deleted after the task ended
	Held         int        // grants of the pool, including grants that lapsed and are not yet reaped
	LastAttempt  *Attempt   // the newest attempt that ended; nil means none
	LateResultAt *time.Time // time of the newest result that came too late to be used; nil means that no such result came
	CancelledBy  string     // who requested the end of the task; empty if not found in the newest events of the device
	CancelNote   string     // detail of the event from which CancelledBy was read; may be empty
}

// TaskView reads the TaskView of one task. The cost depends on the number of open tasks of the task's device, and on the number of slots of the
// task's pool. Error: ErrNotFound.
func (s tasks) TaskView(ctx context.Context, id int64) (_ TaskView, err error) {
	defer wrapError(&err, "reading task %d", id)
	var v TaskView
	err = s.withSnapshotSession(ctx, func(tx session) (err error) {
		v, err = tx.readTaskView(ctx, id)
		return err
	})
	return v, err
}

func (s session) readTaskView(ctx context.Context, id int64) (view TaskView, err error) {
	var running Grant
	dest := append(taskScanDest(&view.Task), grantScanDest(&running)...)
	if err := s.scanRow(ctx, dest, `SELECT `+taskColumns+`, `+grantColumns+` FROM `+taskTables+` WHERE t.id = $1`, id); err != nil {
		return view, err
	}
	if running.Task != 0 {
		view.RunningGrant = &running
	}
	views, err := s.readViewsWithTasks(ctx, taskViewText, []string{view.Task.Device}, []int64{id})
	if err != nil {
		return view, fmt.Errorf("reading its device: %w", err)
	}
	view.DeviceView = views[0]
	if view.Batch, err = queryOne(ctx, s, batchScanDest, `SELECT `+batchColumns+` FROM batches b WHERE b.id = $1`, view.Task.Batch); err != nil {
		return view, fmt.Errorf("reading its batch: %w", err)
	}
	if view.Pool, err = queryOne(ctx, s, poolScanDest, `SELECT `+poolColumns+` FROM pools WHERE name = $1`, view.Task.Pool); err != nil {
		return view, fmt.Errorf("reading its pool: %w", err)
	}
	if view.Held, err = queryOne(ctx, s, singleColumn[int], `SELECT count(*) FROM grants g WHERE g.pool = $1`, view.Task.Pool); err != nil {
		return view, fmt.Errorf("reading the slots of its pool: %w", err)
	}
	return view, s.fillTaskHistory(ctx, &view)
}

// fillTaskHistory sets the last attempt and the late result of the task, and who cancelled it.
func (s session) fillTaskHistory(ctx context.Context, view *TaskView) error {
	last, err := queryOne(ctx, s, attemptScanDest, `SELECT `+attemptColumns+` FROM attempts WHERE task = $1 ORDER BY token DESC LIMIT 1`, view.Task.ID)
	switch {
	case err == nil:
		view.LastAttempt = &last
	case !errors.Is(err, ErrNotFound):
		return fmt.Errorf("reading its last attempt: %w", err)
	}
	if err := s.scanRow(ctx, []any{&view.LateResultAt}, `SELECT max(received_at) FROM late_results WHERE device = $1 AND task = $2`, view.Task.Device, view.Task.ID); err != nil {
		return fmt.Errorf("reading its late results: %w", err)
	}
	// The statement finds who requested the end of the task. It skips an event task.cancelled with a token, because the device wrote that
	// event when it ended the task.
	err = s.scanRow(ctx, []any{&view.CancelledBy, &view.CancelNote}, `
		SELECT actor, detail FROM (
			SELECT id, actor, detail, kind, task, token FROM events WHERE device <> '' AND device = $2 ORDER BY id DESC LIMIT $3) AS newest
		WHERE task = $1 AND (kind IN ('task.cancel_asked', 'slot.release_asked', 'slot.released') OR kind = 'task.cancelled' AND token = 0)
		ORDER BY id DESC LIMIT 1`, view.Task.ID, view.Task.Device, searchLimit)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("reading who cancelled it: %w", err)
	}
	return nil
}
