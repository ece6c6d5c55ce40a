package api

import (
	"context"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/operators"
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

type taskQuery struct {
	Page
	operators.TaskFilter
}

func (q *taskQuery) page() *Page { return &q.Page }

type taskID struct {
	ID int64 `path:"id" minimum:"1" maximum:"9007199254740991"`
}

func (a *API) registerTasks(operations huma.API) {
	registerList(a, operations, operation("GET", "/v1/tasks", "listTasks", "List tasks by number", roleViewer, 200), listing[taskQuery, operators.TaskList, operators.Task]{
		handle: a.listTasks, page: (*taskQuery).page,
		items: func(l operators.TaskList) ([]operators.Task, string) { return l.Tasks, l.NextPageToken },
	})
	register(a, operations, operation("GET", "/v1/tasks/{id}", "getTask", "Read a task and its attempts", roleViewer, 200), a.getTask)
	register(a, operations, operation("GET", "/v1/tasks/{id}/why", "explainTask", "Say why a task does not run, and what would change that", roleViewer, 200), a.explainTask)
	register(a, operations, operation("POST", "/v1/tasks/{id}/cancel", "cancelTask", "Cancel a task; one that runs is told to stop with its next report", roleOperator, 200), a.cancelTask)
	register(a, operations, operation("POST", "/v1/tasks/{id}/retry", "retryTask", "Try a task again that ended without success", roleOperator, 200), a.retryTask)
	register(a, operations, operation("POST", "/v1/tasks/cancel", "cancelTasks", "Cancel all tasks that match", roleOperator, 200), a.cancelTasks)
	register(a, operations, operation("POST", "/v1/tasks/retry", "retryTasks", "Try all tasks again that match and ended without success", roleOperator, 200), a.retryTasks)
}

func (a *API) listTasks(ctx context.Context, in *taskQuery) (*body[operators.TaskList], error) {
	after, err := in.afterNumber()
	if err != nil {
		return nil, err
	}
	filter, err := taskFilter(in.TaskFilter)
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
	list := operators.TaskList{Tasks: make([]operators.Task, len(tasks))}
	for i, t := range tasks {
		list.Tasks[i] = showTask(t)
		list.NextPageToken = nextPage(more, strconv.FormatInt(t.ID, 10))
	}
	return &body[operators.TaskList]{list}, nil
}

// taskFilter refuses names that nothing can have.
func taskFilter(in operators.TaskFilter) (store.TaskFilter, error) {
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

func (a *API) getTask(ctx context.Context, in *taskID) (*body[operators.TaskDetail], error) {
	t, grant, attempts, err := a.store.Task(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	detail := operators.TaskDetail{Task: showTask(t), Attempts: make([]operators.Attempt, len(attempts))}
	if grant != nil {
		detail.Grant = showGrant(*grant)
	}
	for i, at := range attempts {
		detail.Attempts[i] = operators.Attempt{
			Attempt: at.Number, Token: at.Token, Device: at.Device, Slot: at.Slot, Granted: stamp(at.GrantedAt),
			Ended: stamp(at.EndedAt), EndedBy: string(at.EndedBy), Output: at.Output, Dropped: at.Dropped, Error: at.Error,
		}
	}
	return &body[operators.TaskDetail]{detail}, nil
}

func (a *API) cancelTask(ctx context.Context, in *taskID) (*body[operators.Task], error) {
	t, err := a.store.CancelTask(ctx, actor(ctx), in.ID)
	if err != nil {
		return nil, err
	}
	return &body[operators.Task]{showTask(t)}, nil
}

func showTask(t store.Task) operators.Task {
	return operators.Task{
		ID: t.ID, Batch: t.Batch, Pool: t.Pool, Device: t.Device, Kind: t.Kind, Payload: t.Payload,
		Priority: t.Priority, State: string(t.State), Counted: t.Attempts, RetryAt: stampPointer(t.RetryAt),
		Created: stamp(t.CreatedAt), Finished: stampPointer(t.FinishedAt), Output: t.Output, Dropped: t.Dropped, Error: t.Error,
	}
}

func showGrant(g store.Grant) *operators.Grant {
	return &operators.Grant{
		Token: g.Token, Pool: g.Pool, Slot: g.Slot, Attempt: g.Attempt, Granted: stamp(g.GrantedAt),
		LeaseUntil: stamp(g.LeaseUntil), Redelivered: g.Redelivered, Cancel: g.CancelWhy,
	}
}
