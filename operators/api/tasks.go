package api

import (
	"context"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type taskStore interface {
	Tasks(ctx context.Context, filter store.TaskFilter) ([]store.Task, error)
	TaskSearchBound(ctx context.Context, filter store.TaskFilter) (store.SearchBound, error)
	Task(ctx context.Context, id int64) (store.Task, *store.Grant, []store.Attempt, error)
	CancelTask(ctx context.Context, actor string, id int64) (store.Task, error)
	RetryTask(ctx context.Context, actor string, id int64) (store.Task, error)
	CancelTasks(ctx context.Context, actor string, filter store.TaskFilter, limit int) (store.BulkResult, error)
	RetryTasks(ctx context.Context, actor string, filter store.TaskFilter, limit int) (store.BulkResult, error)
	CountCancellable(ctx context.Context, filter store.TaskFilter) (int64, error)
	CountRetriable(ctx context.Context, filter store.TaskFilter) (int64, error)
}

// tasks has the operations on tasks.
type tasks struct {
	ledger  taskStore
	waiters *waiters.Notifier
	explain func(ctx context.Context, task int64) (decision.Explanation, error)
}

type taskQuery struct {
	Page
	operators.TaskFilter
	Order string `query:"order" enum:"newest,oldest" default:"oldest" doc:"Sort order, by number"`
}

func (t *tasks) register(r *routes) {
	registerList(r, newOperation("GET", "/v1/tasks", "listTasks", "List tasks by number", roleViewer, 200), t.list,
		func(p listPage[operators.Task]) operators.TaskList {
			return operators.TaskList{Tasks: p.entries, NextPageToken: p.next}
		})
	register(r, newOperation("GET", "/v1/tasks/{id}", "getTask", "Read a task and its attempts", roleViewer, 200), t.get)
	register(r, newOperation("GET", "/v1/tasks/{id}/why", "explainTask", "Explain why a task does not run, and how to change that", roleViewer, 200), t.why)
	register(r, newOperation("POST", "/v1/tasks/{id}/cancel", "cancelTask", "Cancel a task; the device of a running task is asked to stop with its next report", roleOperator, 200), t.cancel)
	register(r, newOperation("POST", "/v1/tasks/{id}/retry", "retryTask", "Retry a task that ended without success", roleOperator, 200), t.retry)
	register(r, newOperation("POST", "/v1/tasks/cancel", "cancelTasks", "Cancel all tasks that match", roleOperator, 200), t.cancelAll)
	register(r, newOperation("POST", "/v1/tasks/retry", "retryTasks", "Retry all tasks that match and ended without success", roleOperator, 200), t.retryAll)
}

func (t *tasks) list(ctx context.Context, in *taskQuery) (page listPage[operators.Task], err error) {
	after, err := in.afterNumber()
	if err != nil {
		return page, err
	}
	filter, err := taskFilter(in.TaskFilter)
	if err != nil {
		return page, err
	}
	filter.Newest = in.Order == "newest"
	filter.ContinueAfter(after)
	stretch, err := t.ledger.TaskSearchBound(ctx, filter)
	if err != nil {
		return page, err
	}
	filter.LimitTo(stretch)
	found, more, err := readInParts(in.Size, func(last *store.Task, limit int) ([]store.Task, error) {
		if filter.Limit = limit; last != nil {
			filter.ContinueAfter(last.ID)
		}
		return t.ledger.Tasks(ctx, filter)
	}, func(t store.Task) int { return len(t.Payload) + len(t.Output) + len(t.Error) })
	return newPage(found, more, showTask, func(t store.Task) string { return decimal(t.ID) }).continueAfter(stretch), err
}

// taskFilter converts the filter, and refuses invalid names.
func taskFilter(in operators.TaskFilter) (store.TaskFilter, error) {
	if err := checkNames(in.Device, in.Pool); err != nil {
		return store.TaskFilter{}, err
	}
	return store.TaskFilter{
		Device: in.Device, Batch: in.Batch, Pool: in.Pool, State: store.TaskState(in.State), Kind: in.Kind, Error: in.Error,
	}, nil
}

// checkNames refuses an invalid device id or pool name in a filter. An empty name is not checked.
func checkNames(device, pool string) error {
	if device != "" && !store.IsCaller(device) {
		if _, err := devices.ParseID(device); err != nil {
			return err
		}
	}
	if pool != "" {
		return devices.CheckPoolName(pool)
	}
	return nil
}

func (t *tasks) get(ctx context.Context, in *IDPath) (detail operators.TaskDetail, err error) {
	found, grant, attempts, err := t.ledger.Task(ctx, in.ID)
	if err != nil {
		return detail, err
	}
	detail = operators.TaskDetail{Task: showTask(found), Attempts: make([]operators.Attempt, len(attempts))}
	if grant != nil {
		detail.Grant = showGrant(*grant)
	}
	for i, at := range attempts {
		detail.Attempts[i] = operators.Attempt{
			Attempt: at.Number, Token: at.Token, Device: at.Device, Slot: at.Slot, Granted: apiTime(at.GrantedAt),
			Ended: apiTime(at.EndedAt), EndedBy: string(at.EndedBy), Output: at.Output, Dropped: at.Dropped, Error: at.Error,
		}
	}
	return detail, nil
}

func (t *tasks) cancel(ctx context.Context, in *IDPath) (operators.Task, error) {
	cancelled, err := t.ledger.CancelTask(ctx, actor(ctx), in.ID)
	return showTask(cancelled), err
}

func (t *tasks) retry(ctx context.Context, in *IDPath) (operators.Task, error) {
	again, err := t.ledger.RetryTask(ctx, actor(ctx), in.ID)
	if err == nil {
		t.waiters.Filler.Fill(again.Pool)
	}
	return showTask(again), err
}

func showTask(t store.Task) operators.Task {
	return operators.Task{
		ID: t.ID, Batch: t.Batch, Pool: t.Pool, Device: t.Device, Kind: t.Kind, Payload: t.Payload,
		Priority: t.Priority, State: string(t.State), CountedAttempts: t.Attempts, NotBefore: apiTimePointer(t.NotBefore), NotAfter: apiTimePointer(t.NotAfter), RetryAt: apiTimePointer(t.RetryAt),
		Created: apiTime(t.CreatedAt), Finished: apiTimePointer(t.FinishedAt), Output: t.Output, Dropped: t.Dropped, Error: t.Error,
	}
}

func showGrant(g store.Grant) *operators.Grant {
	return &operators.Grant{
		Token: g.Token, Pool: g.Pool, Slot: g.Slot, Attempt: g.Attempt, Granted: apiTime(g.GrantedAt),
		LeaseUntil: apiTime(g.LeaseUntil), Redelivered: g.Redelivered, Cancel: g.CancelWhy,
	}
}

// bulkLimit is the maximum number of tasks that one request changes, so that its time is limited.
const bulkLimit = 20_000

type bulkQuery struct {
	operators.TaskFilter
	DryRun bool `query:"dry_run" doc:"Count only: nothing is changed"`
}

func (t *tasks) cancelAll(ctx context.Context, in *bulkQuery) (operators.Bulk, error) {
	return changeTasks(ctx, in, t.ledger.CancelTasks, t.ledger.CountCancellable)
}

func (t *tasks) retryAll(ctx context.Context, in *bulkQuery) (operators.Bulk, error) {
	done, err := changeTasks(ctx, in, t.ledger.RetryTasks, t.ledger.CountRetriable)
	if err == nil && !in.DryRun {
		t.waiters.Pools.RestartSearches()
	}
	return done, err
}

func changeTasks(
	ctx context.Context, in *bulkQuery,
	change func(context.Context, string, store.TaskFilter, int) (store.BulkResult, error),
	count func(context.Context, store.TaskFilter) (int64, error),
) (operators.Bulk, error) {
	filter, err := taskFilter(in.TaskFilter)
	if err != nil {
		return operators.Bulk{}, err
	}
	if filter == (store.TaskFilter{}) {
		return operators.Bulk{}, invalid("device, batch, pool, state, kind, error: at least one is required")
	}
	if in.DryRun {
		n, err := count(ctx, filter)
		return operators.Bulk{Tasks: n}, err
	}
	done, err := change(ctx, actor(ctx), filter, bulkLimit)
	return operators.Bulk(done), err
}

func (t *tasks) why(ctx context.Context, in *IDPath) (operators.Why, error) {
	e, err := t.explain(ctx, in.ID)
	shown := operators.Why{State: string(e.State), Reasons: make([]operators.Reason, len(e.Causes)), Mark: (*operators.Mark)(e.Mark)}
	for i, r := range e.Causes {
		shown.Reasons[i] = showCause(r)
	}
	return shown, err
}

func showActions(all []decision.Action) []operators.Action {
	shown := make([]operators.Action, len(all))
	for i, a := range all {
		shown[i] = operators.Action{Action: string(a.Act), Subject: string(a.Subject), ID: a.ID, Command: a.Command}
	}
	return shown
}

func showCause(r decision.Cause) operators.Reason {
	shown := operators.Reason{
		Code: string(r.Code), Detail: r.Detail, Until: apiTimeIfSet(r.Until), EstimatedStart: apiTimeIfSet(r.EstimatedStart), Remedy: r.Remedy, Actions: showActions(r.Actions),
	}
	if r.Position > 0 {
		shown.Position = &r.Position
	}
	return shown
}
