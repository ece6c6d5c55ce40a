package operators

import (
	"context"
	"encoding/json"
	"time"
)

// The states of a task.
const (
	Pending    = "pending"
	Dispatched = "dispatched"
	Succeeded  = "succeeded"
	Failed     = "failed"
	TimedOut   = "timed_out"
	Cancelled  = "cancelled"
	Expired    = "expired"
	Suppressed = "suppressed"
)

// TaskStates returns all states, in the order of a task's life.
func TaskStates() []string {
	return []string{Pending, Dispatched, Succeeded, Failed, TimedOut, Cancelled, Expired, Suppressed}
}

// Task has the settings, the state and the result of a task.
type Task struct {
	ID              int64           `json:"id"`
	Batch           int64           `json:"batch"`
	Pool            string          `json:"pool"`
	Device          string          `json:"device"`
	Kind            string          `json:"kind"`
	Payload         json.RawMessage `json:"payload"`
	Priority        int             `json:"priority"`
	State           string          `json:"state" enum:"pending,dispatched,succeeded,failed,timed_out,cancelled,expired,suppressed"`
	CountedAttempts int             `json:"attempts_counted" doc:"Attempts that ended and count against max_attempts"`
	NotBefore       *Time           `json:"not_before" nullable:"true" doc:"The task's own time, in addition to that of its batch"`
	NotAfter        *Time           `json:"not_after" nullable:"true" doc:"The task's own time, in addition to that of its batch: it expires then, unless it is dispatched"`
	RetryAt         *Time           `json:"retry_at" nullable:"true" doc:"End of the backoff, after which it may be tried again; null: no backoff"`
	Created         Time            `json:"created_at"`
	Finished        *Time           `json:"finished_at" nullable:"true"`
	Output          json.RawMessage `json:"output"`
	Dropped         bool            `json:"output_dropped,omitempty" doc:"true: the device sent an output over 32 KiB, which was dropped"`
	Error           string          `json:"error"`
	LastError       string          `json:"last_error,omitempty" doc:"Only in lists, of a pending task with counted attempts: the error of its last attempt. Absent also if the lease ended"`

	DeviceTags map[string]string `json:"device_tags" nullable:"true" doc:"Only in lists: the tags that its device has now; null: the device is not registered"`
}

// WillBeTriedAgain reports whether the task waits for another attempt.
func (t Task) WillBeTriedAgain() bool { return t.State == Pending && t.CountedAttempts > 0 }

// LastErrorText returns the error of the last attempt of a task that will be tried again, in words.
func (t Task) LastErrorText() string { return RecentError{Error: t.LastError}.Words() }

// IsOpen reports whether the task is pending or dispatched.
func (t Task) IsOpen() bool { return t.State == Pending || t.State == Dispatched }

// TaskDetail is a task with its grant and its attempts.
type TaskDetail struct {
	Task

	Grant    *Grant    `json:"grant,omitempty" doc:"The grant that the task has now; absent: none"`
	Attempts []Attempt `json:"attempts" doc:"Attempts that ended, oldest first"`
}

// Grant is a slot that a task holds.
type Grant struct {
	Token       int64  `json:"token"`
	Pool        string `json:"pool"`
	Slot        int    `json:"slot"`
	Attempt     int    `json:"attempt"`
	Granted     Time   `json:"granted_at"`
	LeaseUntil  Time   `json:"lease_until"`
	Redelivered int    `json:"redelivered"`
	Cancel      string `json:"cancel,omitempty" doc:"Why the device is asked to stop"`
}

// Attempt is one attempt that has ended.
type Attempt struct {
	Attempt int             `json:"attempt"`
	Token   int64           `json:"token"`
	Device  string          `json:"device"`
	Slot    int             `json:"slot"`
	Granted Time            `json:"granted_at"`
	Ended   Time            `json:"ended_at"`
	EndedBy string          `json:"ended_by" enum:"succeeded,failed,rejected,returned,lapsed,released"`
	Output  json.RawMessage `json:"output"`
	Dropped bool            `json:"output_dropped,omitempty" doc:"true: the device sent an output over 32 KiB, which was dropped"`
	Error   string          `json:"error"`
}

// TaskList is a page of tasks.
type TaskList struct {
	Tasks         []Task `json:"tasks"`
	NextPageToken string `json:"next_page_token,omitempty"`
}

// TaskFilter selects the tasks that match all fields that are set.
type TaskFilter struct {
	Device string `query:"device" flag:"only tasks of this device"`
	Batch  int64  `query:"batch" minimum:"0" maximum:"9007199254740991" flag:"only tasks of this batch"`
	Pool   string `query:"pool" flag:"only tasks of this pool"`
	State  string `query:"state" enum:"pending,dispatched,succeeded,failed,timed_out,cancelled,expired,suppressed" flag:"only tasks in this state: pending, dispatched, succeeded, failed, timed_out, cancelled, expired, suppressed"`
	Kind   string `query:"kind" maxLength:"64" flag:"only tasks of this kind"`
	Error  string `query:"error" maxLength:"4096" doc:"The whole error text, or the beginning of it followed by *" flag:"only tasks with this error; if it ends with *: whose error begins with the text before it"`

	Retrying bool `query:"retrying" doc:"true: only pending tasks with counted attempts: they will be tried again" flag:"only tasks that will be tried again: they wait, and an attempt has failed"`

	Since time.Time `query:"since" doc:"Only tasks that ended at this time or later, such as 2026-11-21T14:00:00Z" flag:"only tasks that ended at or after this time: 2h or 1d (ago), or 2026-11-21T14:00:00Z"`
	Until time.Time `query:"until" doc:"Only tasks that ended before this time" flag:"only tasks that ended before this time: 2h or 1d (ago), or 2026-11-21T14:00:00Z"`
}

// Bulk is the result of one operation on many tasks.
type Bulk struct {
	Tasks       int64 `json:"tasks" doc:"Number of tasks that were changed; in a dry run, that would be, including dispatched tasks"`
	AskedToStop int64 `json:"asked" doc:"Number of dispatched tasks: their devices are asked to stop with the next report"`
	More        bool  `json:"more" doc:"true: there may be more; repeat the request"`
}

// Why lists the reasons why a task does not run.
type Why struct {
	State   string   `json:"state" enum:"pending,dispatched,succeeded,failed,timed_out,cancelled,expired,suppressed"`
	Reasons []Reason `json:"reasons" doc:"At least one; the first is the reason in the reply to the device"`
	Mark    *Mark    `json:"mark,omitempty" doc:"The mark of its device; absent without Redis"`
}

// Reason is one reason why a task does not run.
type Reason struct {
	Code           string   `json:"code" doc:"Stable name, for programs; listed in the docs, and more can be added"`
	Detail         string   `json:"detail" doc:"For people"`
	Until          *Time    `json:"until" nullable:"true" doc:"When the reason ends by itself; null: unknown"`
	Position       *int     `json:"position" nullable:"true" doc:"Position in the queue of its pool; 1 is next; null: not in the queue"`
	EstimatedStart *Time    `json:"estimated_start" nullable:"true" doc:"When the task is expected to start; null: unknown"`
	Remedy         string   `json:"remedy" doc:"Remedy, for people"`
	Actions        []Action `json:"actions" doc:"Actions of the remedy that are possible now; can be empty"`
}

// Action is something that an operator can do so that a task can start.
type Action struct {
	Action  string `json:"action" doc:"Stable name, for programs; listed in the docs, and more can be added"`
	Subject string `json:"subject" doc:"Object of the action: device, pool, batch, profile or task"`
	ID      string `json:"id" doc:"Name, id or number of the subject"`
	Command string `json:"command" doc:"The command line of the action; replace the words in capitals"`
}

// Tasks has the calls about tasks.
type Tasks struct {
	client *Client

	List   List[TaskFilter, Task]  `op:"GET /v1/tasks" id:"listTasks" scope:"input" role:"viewer" doc:"List tasks by number"`
	Get    Call[int64, TaskDetail] `op:"GET /v1/tasks/{id}" id:"getTask" role:"viewer" doc:"Read a task and its attempts"`
	Why    Call[int64, Why]        `op:"GET /v1/tasks/{id}/why" id:"explainTask" role:"viewer" doc:"Explain why a task does not run, and how to change that"`
	Cancel Call[int64, Task]       `op:"POST /v1/tasks/{id}/cancel" id:"cancelTask" role:"operator" doc:"Cancel a task; the device of a dispatched task is asked to stop with its next report"`
	Retry  Call[int64, Task]       `op:"POST /v1/tasks/{id}/retry" id:"retryTask" role:"operator" doc:"Retry a task that ended without success"`

	_ struct{} `op:"POST /v1/tasks/cancel" id:"cancelTasks" scope:"input" role:"operator" doc:"Cancel all tasks that match"`
	_ struct{} `op:"POST /v1/tasks/retry" id:"retryTasks" scope:"input" role:"operator" doc:"Retry all tasks that match and ended without success"`
}

// CancelAll cancels the tasks that match filter, at most as many as the server allows in one request. If Bulk.More is true, the caller
// calls it again. filter must have at least one field. If dryRun is true, CancelAll only counts the tasks.
func (c Tasks) CancelAll(ctx context.Context, filter TaskFilter, dryRun bool) (Bulk, error) {
	return c.changeTasks(ctx, "cancelTasks", filter, dryRun)
}

// RetryAll makes tasks pending again: those that match filter and ended without success, at most as many as the server allows in one
// request. If Bulk.More is true, the caller calls it again. filter must have at least one field. If dryRun is true, RetryAll only counts
// the tasks.
func (c Tasks) RetryAll(ctx context.Context, filter TaskFilter, dryRun bool) (Bulk, error) {
	return c.changeTasks(ctx, "retryTasks", filter, dryRun)
}

// changeTasks sends the request of operationID, an operation on all tasks that match filter.
func (c Tasks) changeTasks(ctx context.Context, operationID string, filter TaskFilter, dryRun bool) (Bulk, error) {
	query := queryParams(filter)
	if dryRun {
		query.Set("dry_run", "true")
	}
	return callJSON[Bulk](ctx, c.client, c.client.prepareRequest(ctx, operationID, query))
}
