package store

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// TaskScope selects the tasks of a batch or, if Batch is 0, of a pool.
type TaskScope struct {
	Pool  string
	Batch int64
}

// WaitingPosition is a position among the waiting tasks of a pool, in the order of batch, priority and id. The zero value is before all
// tasks.
type WaitingPosition struct {
	Batch    int64
	Priority int
	Task     int64
}

// WaitingTasks holds waiting tasks, read in one snapshot. The view of a task contains everything that decides why the task waits.
type WaitingTasks struct {
	Views      []TaskView // without RunningGrant, LateResultAt, CancelledBy and CancelNote; a Task has only the fields of its position
	Total      int64      // number of waiting tasks; only set by SampleWaiting
	IsComplete bool       // true if Views has all waiting tasks or, after NextWaiting, all waiting tasks behind the start position
}

type waitingTask struct {
	WaitingPosition

	device              string
	notBefore, notAfter *time.Time
}

func waitingTaskScanDest(task *waitingTask) (scanDest []any) {
	return []any{&task.Task, &task.Batch, &task.Priority, &task.device, &task.notBefore, &task.notAfter}
}

// SampleWaiting reads at most maxTasks waiting tasks of a pool or a batch (scope), spread evenly over all its waiting tasks. Its cost does
// not depend on the number of tasks. Error: ErrNotFound.
func (s tasks) SampleWaiting(ctx context.Context, scope TaskScope, maxTasks int) (found WaitingTasks, err error) {
	defer wrapError(&err, "reading waiting tasks")
	err = s.readInSnapshot(ctx, func(ctx context.Context) error {
		pool, err := s.readScopePool(ctx, scope)
		if err != nil {
			return err
		}
		list, err := s.readWaiting(ctx, pool.Name, scope.firstPosition(), scope.lastBatch(), maxTasks+1)
		if err != nil {
			return err
		}
		found = WaitingTasks{Total: int64(len(list)), IsComplete: len(list) <= maxTasks}
		if !found.IsComplete {
			if list, found.Total, err = s.spreadSample(ctx, scope, pool.Name, maxTasks); err != nil {
				return err
			}
		}
		found.Views, err = s.readWaitingViews(ctx, pool, list)
		return err
	})
	return found, err
}

// NextWaiting reads the next waiting tasks of a pool or a batch (scope) behind a position (after), at most limit. Error: ErrNotFound.
func (s tasks) NextWaiting(ctx context.Context, scope TaskScope, after WaitingPosition, limit int) (found WaitingTasks, err error) {
	defer wrapError(&err, "reading waiting tasks")
	err = s.readInSnapshot(ctx, func(ctx context.Context) error {
		pool, err := s.readScopePool(ctx, scope)
		if err != nil {
			return err
		}
		if after == (WaitingPosition{}) {
			after = scope.firstPosition()
		}
		list, err := s.readWaiting(ctx, pool.Name, after, scope.lastBatch(), limit)
		if err != nil {
			return err
		}
		found = WaitingTasks{IsComplete: len(list) < limit}
		found.Views, err = s.readWaitingViews(ctx, pool, list)
		return err
	})
	return found, err
}

// readInSnapshot runs read in the snapshot of ctx. If ctx has no snapshot, it opens a new snapshot.
func (s tasks) readInSnapshot(ctx context.Context, read func(ctx context.Context) error) error {
	if _, inside := s.snapshotSessionOf(ctx); inside {
		return read(ctx)
	}
	return s.InOneSnapshot(ctx, func(ctx context.Context, _ Snapshot) error { return read(ctx) })
}

// firstPosition returns the position before all tasks of the scope.
func (scope TaskScope) firstPosition() WaitingPosition {
	if scope.Batch == 0 {
		return WaitingPosition{}
	}
	return WaitingPosition{Batch: scope.Batch, Priority: 1 << 30}
}

// lastBatch returns the highest id of a batch that can have tasks of the scope.
func (scope TaskScope) lastBatch() int64 {
	if scope.Batch == 0 {
		return math.MaxInt64
	}
	return scope.Batch
}

// readScopePool returns the pool of the tasks of scope. If scope is a batch, it also returns a deleted pool, because the pool of an ended batch
// may have been deleted.
func (s tasks) readScopePool(ctx context.Context, scope TaskScope) (Pool, error) {
	if scope.Batch == 0 {
		return s.readSession().poolByName(ctx, scope.Pool)
	}
	return queryOne(ctx, s.readSession(), poolScanDest, `SELECT `+poolColumns+` FROM pools WHERE name = (SELECT b.pool FROM batches b WHERE b.id = $1)`, scope.Batch)
}

// readWaiting reads the next waiting tasks of a pool behind a position (after), up to the batch lastBatch, at most limit.
func (s tasks) readWaiting(ctx context.Context, pool string, after WaitingPosition, lastBatch int64, limit int) ([]waitingTask, error) {
	return collect(ctx, s.readSession(), waitingTaskScanDest, waitingTasksSQL(), pool, after.Batch, after.Priority, after.Task, limit, lastBatch)
}

// isNotRunningSQL is the condition that task t holds no slot. The lookup of each grant avoids a join that reads all grants. With <>,
// Postgres expects that nearly all rows satisfy the condition, and reads them in order. With IS NULL, it would read all tasks of a pool to
// find one.
const isNotRunningSQL = `coalesce((SELECT g.task FROM grants g WHERE g.task = t.id), 0) <> t.id`

// waitingTasksSQL returns the statement of readWaiting. It has three parts that the index serves: tasks of the same batch and priority,
// tasks of the batch with lower priorities, and tasks of later batches.
func waitingTasksSQL() string {
	const part = `SELECT t.id, t.batch, t.priority, t.device, t.not_before, t.not_after FROM tasks t WHERE t.pool = $1 AND t.state = 'pending' AND ` + isNotRunningSQL
	return `
	SELECT id, batch, priority, device, not_before, not_after FROM (
		SELECT * FROM (` + part + ` AND t.batch = $2 AND t.priority = $3 AND t.id > $4 ORDER BY t.id LIMIT $5) AS rest
		UNION ALL
		SELECT * FROM (` + part + ` AND t.batch = $2 AND t.priority < $3 ORDER BY t.priority DESC, t.id LIMIT $5) AS lower
		UNION ALL
		SELECT * FROM (` + part + ` AND t.batch > $2 AND t.batch <= $6 ORDER BY t.batch, t.priority DESC, t.id LIMIT $5) AS later
	) AS line
	ORDER BY batch, priority DESC, id LIMIT $5`
}

// readWaitingViews reads everything that decides why the tasks in list wait, and returns one view per task, in the order of list. All tasks
// must be of pool.
func (s tasks) readWaitingViews(ctx context.Context, pool Pool, list []waitingTask) ([]TaskView, error) {
	if len(list) == 0 {
		return nil, nil
	}
	devices, ids := make([]string, len(list)), make([]int64, len(list))
	for i, w := range list {
		devices[i], ids[i] = w.device, w.Task
	}
	views, err := s.readSession().readViewsWithTasks(ctx, waitingViewText, devices, ids)
	if err != nil {
		return nil, fmt.Errorf("reading their devices: %w", err)
	}
	batches, err := s.batchesByID(ctx, list)
	if err != nil {
		return nil, fmt.Errorf("reading their batches: %w", err)
	}
	held, err := queryOne(ctx, s.readSession(), singleColumn[int], `SELECT count(*) FROM grants g WHERE g.pool = $1`, pool.Name)
	if err != nil {
		return nil, fmt.Errorf("reading the slots of their pool: %w", err)
	}
	all := make([]TaskView, len(list))
	for i, w := range list {
		all[i] = TaskView{
			DeviceView: views[i], Batch: batches[w.Batch], Pool: pool, Held: held,
			Task: Task{ID: w.Task, Batch: w.Batch, Pool: pool.Name, Device: w.device, State: Pending, Priority: w.Priority, NotBefore: w.notBefore, NotAfter: w.notAfter},
		}
	}
	return all, s.fillLastAttempts(ctx, all)
}

// batchesByID returns the batches of the tasks in list, without payloads. The keys are the ids of the batches.
func (s tasks) batchesByID(ctx context.Context, list []waitingTask) (batchByID map[int64]Batch, err error) {
	wanted := make([]int64, len(list))
	for i, w := range list {
		wanted[i] = w.Batch
	}
	slices.Sort(wanted)
	found, err := collect(ctx, s.readSession(), batchScanDest, `SELECT `+strings.Replace(batchColumns, "b.payload", "NULL", 1)+` FROM batches b WHERE b.id IN (SELECT id FROM {ids})`, idsToJSONArray(slices.Compact(wanted)...))
	all := make(map[int64]Batch, len(found))
	for _, b := range found {
		all[b.ID] = b
	}
	return all, err
}

// fillLastAttempts sets LastAttempt of the views whose task waits for a retry.
func (s tasks) fillLastAttempts(ctx context.Context, views []TaskView) error {
	var waitingForRetry []int64
	for _, v := range views {
		for _, c := range v.Candidates {
			if c.Task == v.Task.ID && c.RetryAt.After(v.Now) {
				waitingForRetry = append(waitingForRetry, c.Task)
			}
		}
	}
	last, err := s.lastAttempts(ctx, waitingForRetry)
	for i := range views {
		views[i].LastAttempt = last[views[i].Task.ID]
	}
	return err
}

// lastAttempts returns the last attempt of each task in ids, if the task has one, with its number, end and error.
func (s tasks) lastAttempts(ctx context.Context, ids []int64) (attemptByTask map[int64]*Attempt, err error) {
	if len(ids) == 0 {
		return nil, nil //nolint:nilnil // an empty map
	}
	found, err := collect(ctx, s.readSession(), func(a *Attempt) []any {
		return []any{&a.Token, &a.Task, &a.Number, &a.EndedAt, &a.EndedBy, &a.Error}
	}, lastAttemptsText, idsToJSONArray(ids...))
	if err != nil {
		return nil, fmt.Errorf("reading their last attempts: %w", err)
	}
	last := make(map[int64]*Attempt, len(found))
	for i := range found {
		last[found[i].Task] = &found[i]
	}
	return last, nil
}

// lastAttemptsText selects the last attempt of each task in {ids}. The order is by token + 0, because for an order by token Postgres would
// read the attempts of all tasks along the primary key.
const lastAttemptsText = `
	SELECT a.token, a.task, a.number, a.ended_at, a.ended_by, a.error
	FROM (SELECT (SELECT a.token FROM attempts a WHERE a.task = ids.id ORDER BY a.token + 0 DESC LIMIT 1) AS token FROM {ids}) AS w {attempt w}`

// WaitingPositionOf returns the position of a task among the waiting tasks of its pool. The task must come from the field Views of a
// WaitingTasks.
func WaitingPositionOf(task Task) WaitingPosition {
	return WaitingPosition{Batch: task.Batch, Priority: task.Priority, Task: task.ID}
}

// Compare compares positions: by batch, then highest priority first, then by task. It is negative if m comes before other.
func (m WaitingPosition) Compare(other WaitingPosition) int {
	return cmp.Or(cmp.Compare(m.Batch, other.Batch), cmp.Compare(other.Priority, m.Priority), cmp.Compare(m.Task, other.Task))
}
