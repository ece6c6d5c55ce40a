package store

import (
	"context"
	"encoding/json"
	"time"
)

// tasks is the part of the ledger that holds the tasks.
type tasks struct{ *connection }

// TaskState is the state of a task. Dispatched is not stored: such a task is pending in the table tasks and has a row in grants.
type TaskState string

// These are the states of a task. The last six are final, except that a late success may change TimedOut to Succeeded.
const (
	Pending    TaskState = "pending"
	Dispatched TaskState = "dispatched"
	Succeeded  TaskState = "succeeded"
	Failed     TaskState = "failed"
	TimedOut   TaskState = "timed_out"
	Cancelled  TaskState = "cancelled"
	Expired    TaskState = "expired"
	Suppressed TaskState = "suppressed" // a policy refused the start, and is set to end the tasks that it refuses
)

// storedStates returns the states of tasks that the table tasks stores: all except Dispatched.
func storedStates() []TaskState {
	return []TaskState{Pending, Succeeded, Failed, TimedOut, Cancelled, Expired, Suppressed}
}

func retriableStates() []TaskState {
	return []TaskState{Failed, TimedOut, Cancelled, Expired, Suppressed}
}

// TaskStates returns all states, in the order in which a task passes through them.
func TaskStates() []TaskState {
	return []TaskState{Pending, Dispatched, Succeeded, Failed, TimedOut, Cancelled, Expired, Suppressed}
}

// Task is one piece of work for one device.
type Task struct {
	ID         int64
	Batch      int64
	Pool       string
	Device     string
	Kind       string
	Payload    json.RawMessage // payload of the task or, if the task has none, of its batch
	Priority   int
	State      TaskState
	Attempts   int        // counted attempts that have ended
	Started    bool       // an attempt of the task has ended
	NotBefore  *time.Time // applies in addition to NotBefore of the batch; nil means that the task has none
	NotAfter   *time.Time // applies in addition to NotAfter of the batch; nil means that the task has none
	RetryAt    *time.Time // end of a backoff; the task is not granted before this time
	CreatedAt  time.Time
	FinishedAt *time.Time
	Output     json.RawMessage // output of the result that ended the task
	Dropped    bool            // an output was sent, but was too large to keep
	Error      string
	LastError  string // error of the last attempt of a pending task with counted attempts; only Tasks sets it. Empty also if a lease ended
}

// Attempt is the record of one grant that ended.
type Attempt struct {
	Token     int64
	Task      int64
	Number    int // Attempt of its grant; several attempts of a task may have the same number
	Device    string
	Pool      string
	Slot      int
	LeaseID   string
	GrantedAt time.Time
	EndedAt   time.Time
	EndedBy   EndCause
	Output    json.RawMessage
	Dropped   bool // an output was sent, but was too large to keep
	Error     string
}

// EndCause is the way in which a grant ended.
type EndCause string

// These are the ways in which a grant ends: by a result of its device, by the end of its lease, or by an operator.
const (
	BySuccess  EndCause = "succeeded"
	ByFailure  EndCause = "failed"
	ByReject   EndCause = "rejected"
	ByReturn   EndCause = "returned"
	ByLapse    EndCause = "lapsed"
	ByOperator EndCause = "released"
)

// isResult reports whether the grant ended by a result of its device.
func (c EndCause) isResult() bool {
	return c == BySuccess || c == ByFailure || c == ByReject || c == ByReturn
}

// EndedGrantFacts holds everything that decides the state of a task whose grant ends.
type EndedGrantFacts struct {
	Cause        EndCause
	CancelWhy    string // if not empty, the device was asked to stop
	Attempts     int    // Task.Attempts before this end
	Returned     int    // earlier ends whose NextTaskState.Returned was true, since the last retry by an operator
	MaxAttempts  int
	RetryOn      []string
	OnLost       string
	RetryBackoff time.Duration
	RetryAfter   time.Duration // requested by the device; only with ByReturn
}

// NextTaskState is the resulting state of a task whose grant ends.
type NextTaskState struct {
	State    TaskState     // Pending or a terminal state
	Delay    time.Duration // if State is Pending, the time from now for which the task is not granted again
	Counted  bool          // add 1 to Task.Attempts, which MaxAttempts limits
	Returned bool          // count the end as a return, not as an attempt; both are false after a return because of a pause
}

// DecideTaskState decides the state of a task whose grant ends, as decideNextTaskState of package dispatcher does. It is called inside the
// transaction that ends the grant, so it must not block. It must be safe for concurrent use.
type DecideTaskState func(EndedGrantFacts) NextTaskState

// taskColumns are the columns of task t, its batch b and its grant g. The columns of g are NULL if the task has no grant.
const taskColumns = `t.id, t.batch, t.pool, t.device, b.kind, coalesce(t.payload, b.payload), ` + taskPriority + `,
	CASE WHEN g.task IS NOT NULL THEN 'dispatched' ELSE t.state END, t.attempts, t.started, t.not_before, t.not_after, nullif(t.retry_at, t.not_before), b.created_at,
	t.finished_at, t.output, t.output_dropped, t.error`

const taskTables = `tasks t JOIN batches b ON b.id = t.batch LEFT JOIN grants g ON g.task = t.id`

func taskScanDest(task *Task) (scanDest []any) {
	return []any{
		&task.ID, &task.Batch, &task.Pool, &task.Device, &task.Kind, &task.Payload, &task.Priority, &task.State, &task.Attempts,
		&task.Started, &task.NotBefore, &task.NotAfter, &task.RetryAt, &task.CreatedAt, &task.FinishedAt, &task.Output, &task.Dropped,
		&task.Error,
	}
}

const attemptColumns = `token, task, number, device, pool, slot, lease, granted_at, ended_at, ended_by, output, output_dropped, error`

func attemptScanDest(attempt *Attempt) (scanDest []any) {
	return []any{
		&attempt.Token, &attempt.Task, &attempt.Number, &attempt.Device, &attempt.Pool, &attempt.Slot, &attempt.LeaseID, &attempt.GrantedAt,
		&attempt.EndedAt, &attempt.EndedBy, &attempt.Output, &attempt.Dropped, &attempt.Error,
	}
}

// Task returns a task, its grant, and its ended attempts, oldest first. The grant is nil if the task has none. Error: ErrNotFound.
func (s tasks) Task(ctx context.Context, id int64) (task Task, grant *Grant, endedAttempts []Attempt, err error) {
	type reading struct {
		Task
		grant Grant
	}
	r, err := queryOne(ctx, s.readSession(), func(r *reading) []any { return append(taskScanDest(&r.Task), grantScanDest(&r.grant)...) },
		`SELECT `+taskColumns+`, `+grantColumns+` FROM `+taskTables+` WHERE t.id = $1`, id)
	if err != nil {
		return Task{}, nil, nil, err
	}
	attempts, err := collect(ctx, s.readSession(), attemptScanDest, `SELECT `+attemptColumns+` FROM attempts WHERE task = $1 ORDER BY token`, id)
	if err != nil {
		return Task{}, nil, nil, err
	}
	if r.grant.Task == 0 {
		return r.Task, nil, attempts, nil
	}
	return r.Task, &r.grant, attempts, nil
}

// CancelTask cancels a waiting task, or asks the device of a running task to stop, and returns the task. A task that has ended stays
// unchanged. Error: ErrNotFound.
func (s tasks) CancelTask(ctx context.Context, actor string, id int64) (Task, error) {
	var task Task
	err := s.write(ctx, func(tx session) (err error) {
		if err := tx.cancelTasks(ctx, actor, []int64{id}, &BulkResult{}); err != nil {
			return err
		}
		task, err = queryOne(ctx, tx, taskScanDest, `SELECT `+taskColumns+` FROM `+taskTables+` WHERE t.id = $1`, id)
		return err
	})
	return task, err
}
