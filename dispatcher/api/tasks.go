package api

import (
	"context"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

type taskStore interface {
	Tasks(ctx context.Context, filter store.TaskFilter) ([]store.Task, error)
	Task(ctx context.Context, id int64) (store.Task, *store.Grant, []store.Attempt, error)
	CancelTask(ctx context.Context, actor string, id int64) (store.Task, error)
	RetryTask(ctx context.Context, actor string, id int64) (store.Task, error)
	CancelTasks(ctx context.Context, actor string, filter store.TaskFilter, limit int) (store.BulkResult, error)
	RetryTasks(ctx context.Context, actor string, filter store.TaskFilter, limit int) (store.BulkResult, error)
	CountCancellable(ctx context.Context, filter store.TaskFilter) (int64, error)
	CountRetriable(ctx context.Context, filter store.TaskFilter) (int64, error)
}

// TaskBody is a task on the wire. (Embedded types are exported so that they are seen.)
type TaskBody struct {
	ID       int64      `json:"id"`
	Batch    int64      `json:"batch"`
	Pool     string     `json:"pool"`
	Device   string     `json:"device"`
	Kind     string     `json:"kind"`
	Payload  raw        `json:"payload"`
	Priority int        `json:"priority"`
	State    string     `json:"state" enum:"pending,dispatched,succeeded,failed,timed_out,cancelled,expired"`
	Counted  int        `json:"attempts_counted" doc:"Attempts that ended and count against max_attempts"`
	RetryAt  *timestamp `json:"retry_at" nullable:"true" doc:"Not granted before"`
	Created  timestamp  `json:"created_at"`
	Finished *timestamp `json:"finished_at" nullable:"true"`
	Output   raw        `json:"output"`
	Dropped  bool       `json:"output_dropped,omitempty" doc:"The device sent an output over 32 KiB, and it is not there"`
	Error    string     `json:"error"`
}

type taskDetail struct {
	TaskBody
	Grant    *grantBody    `json:"grant,omitempty" doc:"The slot it holds now; absent: none"`
	Attempts []attemptBody `json:"attempts" doc:"Attempts that ended, oldest first"`
}

type grantBody struct {
	Token       int64     `json:"token"`
	Pool        string    `json:"pool"`
	Slot        int       `json:"slot"`
	Attempt     int       `json:"attempt"`
	Granted     timestamp `json:"granted_at"`
	LeaseUntil  timestamp `json:"lease_until"`
	Redelivered int       `json:"redelivered"`
	Cancel      string    `json:"cancel,omitempty" doc:"Why the device is asked to stop"`
}

type attemptBody struct {
	Attempt int       `json:"attempt"`
	Token   int64     `json:"token"`
	Device  string    `json:"device"`
	Slot    int       `json:"slot"`
	Granted timestamp `json:"granted_at"`
	Ended   timestamp `json:"ended_at"`
	EndedBy string    `json:"ended_by" enum:"succeeded,failed,rejected,returned,lapsed,released"`
	Output  raw       `json:"output"`
	Dropped bool      `json:"output_dropped,omitempty" doc:"As of the task"`
	Error   string    `json:"error"`
}

type taskList struct {
	Tasks         []TaskBody `json:"tasks"`
	NextPageToken string     `json:"next_page_token,omitempty"`
}

type taskQuery struct {
	Page
	TaskSelection
}

func (q *taskQuery) page() *Page { return &q.Page }

// TaskSelection are the filters of tasks; all must match.
type TaskSelection struct {
	Device string `query:"device"`
	Batch  int64  `query:"batch" minimum:"0" maximum:"9007199254740991"`
	Pool   string `query:"pool"`
	State  string `query:"state" enum:"pending,dispatched,succeeded,failed,timed_out,cancelled,expired"`
	Kind   string `query:"kind" maxLength:"64"`
	Error  string `query:"error" maxLength:"4096" doc:"The whole error text; with * at its end, what it begins with"`
}

type taskID struct {
	ID int64 `path:"id" minimum:"1" maximum:"9007199254740991"`
}

func (a *API) registerTasks(operations huma.API) {
	registerList(a, operations, operation("GET", "/v1/tasks", "listTasks", "List tasks by number", roleViewer, 200), listing[taskQuery, taskList, TaskBody]{
		handle: a.listTasks, page: (*taskQuery).page,
		items: func(l taskList) ([]TaskBody, string) { return l.Tasks, l.NextPageToken },
	})
	register(a, operations, operation("GET", "/v1/tasks/{id}", "getTask", "Read a task and its attempts", roleViewer, 200), a.getTask)
	register(a, operations, operation("GET", "/v1/tasks/{id}/why", "explainTask", "Say why a task does not run, and what would change that", roleViewer, 200), a.explainTask)
	register(a, operations, operation("POST", "/v1/tasks/{id}/cancel", "cancelTask", "Cancel a task; one that runs is told to stop with its next report", roleOperator, 200), a.cancelTask)
	register(a, operations, operation("POST", "/v1/tasks/{id}/retry", "retryTask", "Try a task again that ended without success", roleOperator, 200), a.retryTask)
	register(a, operations, operation("POST", "/v1/tasks/cancel", "cancelTasks", "Cancel all tasks that match", roleOperator, 200), a.cancelTasks)
	register(a, operations, operation("POST", "/v1/tasks/retry", "retryTasks", "Try all tasks again that match and ended without success", roleOperator, 200), a.retryTasks)
}

func (a *API) listTasks(ctx context.Context, in *taskQuery) (*body[taskList], error) {
	after, err := in.afterNumber()
	if err != nil {
		return nil, err
	}
	filter, err := in.filter()
	if err != nil {
		return nil, err
	}
	filter.After = after
	tasks, more, err := inParts(in.Size, func(last *store.Task, limit int) ([]store.Task, error) {
		if filter.Limit = limit; last != nil {
			filter.After = last.ID
		}
		return a.store.Tasks(ctx, filter)
	}, func(t store.Task) int { return len(t.Payload) + len(t.Output) + len(t.Error) })
	if err != nil {
		return nil, err
	}
	list := taskList{Tasks: make([]TaskBody, len(tasks))}
	for i, t := range tasks {
		list.Tasks[i] = showTask(t)
		list.NextPageToken = nextPage(more, strconv.FormatInt(t.ID, 10))
	}
	return &body[taskList]{list}, nil
}

// filter refuses names that nothing can have.
func (in TaskSelection) filter() (store.TaskFilter, error) {
	if in.Device != "" {
		if _, err := devices.ParseID(in.Device); err != nil {
			return store.TaskFilter{}, err
		}
	}
	if in.Pool != "" {
		if err := devices.ParsePool(in.Pool); err != nil {
			return store.TaskFilter{}, err
		}
	}
	return store.TaskFilter{
		Device: in.Device, Batch: in.Batch, Pool: in.Pool, State: store.TaskState(in.State), Kind: in.Kind, Error: in.Error,
	}, nil
}

func (a *API) getTask(ctx context.Context, in *taskID) (*body[taskDetail], error) {
	t, grant, attempts, err := a.store.Task(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	detail := taskDetail{TaskBody: showTask(t), Attempts: make([]attemptBody, len(attempts))}
	if grant != nil {
		detail.Grant = showGrant(*grant)
	}
	for i, at := range attempts {
		detail.Attempts[i] = attemptBody{
			Attempt: at.Number, Token: at.Token, Device: at.Device, Slot: at.Slot, Granted: stamp(at.GrantedAt),
			Ended: stamp(at.EndedAt), EndedBy: string(at.EndedBy), Output: raw(at.Output), Dropped: at.Dropped, Error: at.Error,
		}
	}
	return &body[taskDetail]{detail}, nil
}

func (a *API) cancelTask(ctx context.Context, in *taskID) (*body[TaskBody], error) {
	t, err := a.store.CancelTask(ctx, actor(ctx), in.ID)
	if err != nil {
		return nil, err
	}
	return &body[TaskBody]{showTask(t)}, nil
}

func showTask(t store.Task) TaskBody {
	return TaskBody{
		ID: t.ID, Batch: t.Batch, Pool: t.Pool, Device: t.Device, Kind: t.Kind, Payload: raw(t.Payload),
		Priority: t.Priority, State: string(t.State), Counted: t.Attempts, RetryAt: stampPointer(t.RetryAt),
		Created: stamp(t.CreatedAt), Finished: stampPointer(t.FinishedAt), Output: raw(t.Output), Dropped: t.Dropped, Error: t.Error,
	}
}

func showGrant(g store.Grant) *grantBody {
	return &grantBody{
		Token: g.Token, Pool: g.Pool, Slot: g.Slot, Attempt: g.Attempt, Granted: stamp(g.GrantedAt),
		LeaseUntil: stamp(g.LeaseUntil), Redelivered: g.Redelivered, Cancel: g.CancelWhy,
	}
}
