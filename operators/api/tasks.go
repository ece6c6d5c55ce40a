package api

import (
	"context"
	"maps"
	"slices"

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
	DevicesByID(ctx context.Context, ids []string) ([]store.Device, error)
	CountCancellable(ctx context.Context, filter store.TaskFilter) (int64, error)
	CountRetriable(ctx context.Context, filter store.TaskFilter) (int64, error)
}

type taskOperations struct {
	ledger  taskStore
	recent  recentAttemptsReader
	waiters *waiters.Notifier
	explain func(ctx context.Context, task int64) (decision.Explanation, error)
}

func (t *taskOperations) register(r *routes) {
	registerList[operators.TaskList](r, r.describeOperation("listTasks"), t.list)
	register(r, r.describeOperation("getTask"), t.get)
	register(r, r.describeOperation("explainTask"), t.explainTask)
	register(r, r.describeOperation("cancelTask"), t.cancel)
	register(r, r.describeOperation("retryTask"), t.retry)
	register(r, r.describeOperation("cancelTasks"), t.cancelAll)
	register(r, r.describeOperation("retryTasks"), t.retryAll)
}

func (t *taskOperations) list(ctx context.Context, in *struct {
	NumberPage
	operators.TaskFilter
	Order string `query:"order" enum:"newest,oldest" default:"oldest" doc:"Sort order, by number"`
},
) (page listPage[operators.Task], err error) {
	filter, err := taskFilter(in.TaskFilter)
	if err != nil {
		return page, err
	}
	filter.Newest = in.Order == "newest"
	filter.ContinueAfter(in.afterNumber)
	bound, err := t.ledger.TaskSearchBound(ctx, filter)
	if err != nil {
		return page, err
	}
	filter.LimitTo(bound)
	found, more, err := readInParts(in.Size, func(last *store.Task, limit int) ([]store.Task, error) {
		if filter.Limit = limit; last != nil {
			filter.ContinueAfter(last.ID)
		}
		return t.ledger.Tasks(ctx, filter)
	}, func(t store.Task) int { return len(t.Payload) + len(t.Output) + len(t.Error) })
	page = newPage(found, more, toAPITask, func(t store.Task) string { return formatDecimal(t.ID) }).continueAfter(bound)
	if err == nil {
		err = t.addDeviceTags(ctx, page.entries)
	}
	return page, err
}

// addDeviceTags adds to each of listed the tags of its device.
func (t *taskOperations) addDeviceTags(ctx context.Context, listed []operators.Task) error {
	tags := map[string]map[string]string{}
	for _, one := range listed {
		tags[one.Device] = nil
	}
	found, err := t.ledger.DevicesByID(ctx, slices.Collect(maps.Keys(tags)))
	for _, device := range found {
		tags[device.ID] = toAPIDevice(device).Tags
	}
	for i := range listed {
		listed[i].DeviceTags = tags[listed[i].Device]
	}
	return err
}

// taskFilter converts requested to a filter of the ledger. It returns an error for invalid names.
func taskFilter(requested operators.TaskFilter) (store.TaskFilter, error) {
	if err := checkDeviceAndPoolNames(requested.Device, requested.Pool); err != nil {
		return store.TaskFilter{}, err
	}
	if requested.Retrying && requested.State == "" {
		requested.State = string(store.Pending) // a retrying task is pending; with the state, the ledger can use its index
	}
	return store.TaskFilter{
		Device: requested.Device, Batch: requested.Batch, Pool: requested.Pool, State: store.TaskState(requested.State), Kind: requested.Kind, Error: requested.Error,
		EndedSince: requested.Since, EndedBefore: requested.Until, Retrying: requested.Retrying,
	}, nil
}

// maxHolderName is the maximum length in bytes of @CALLER/HOLDER, the name of a caller's holder: the name of a token has at most 200
// characters of at most 4 bytes, and the name of a holder has at most 64 bytes.
const maxHolderName = 1 + 4*200 + 1 + 64

// checkDeviceAndPoolNames returns an error for an invalid device id or pool name in a filter. An empty name is not checked.
func checkDeviceAndPoolNames(device, pool string) error {
	if store.IsCaller(device) {
		if len(device) > maxHolderName {
			return invalidProblem("device: at most %d bytes", maxHolderName)
		}
	} else if device != "" {
		if _, err := devices.ParseID(device); err != nil {
			return err
		}
	}
	if pool != "" {
		return devices.CheckPoolName(pool)
	}
	return nil
}

func (t *taskOperations) get(ctx context.Context, in *IDPath) (detail operators.TaskDetail, err error) {
	found, grant, attempts, err := t.ledger.Task(ctx, in.ID)
	if err != nil {
		return detail, err
	}
	detail = operators.TaskDetail{Task: toAPITask(found), Attempts: make([]operators.Attempt, len(attempts))}
	if grant != nil {
		detail.Grant = toAPIGrant(*grant)
	}
	for i, at := range attempts {
		detail.Attempts[i] = operators.Attempt{
			Attempt: at.Number, Token: at.Token, Device: at.Device, Slot: at.Slot, Granted: apiTime(at.GrantedAt),
			Ended: apiTime(at.EndedAt), EndedBy: string(at.EndedBy), Output: at.Output, Dropped: at.Dropped, Error: at.Error,
		}
	}
	return detail, nil
}

func (t *taskOperations) cancel(ctx context.Context, in *IDPath) (operators.Task, error) {
	cancelled, err := t.ledger.CancelTask(ctx, operatorName(ctx), in.ID)
	return toAPITask(cancelled), err
}

func (t *taskOperations) retry(ctx context.Context, in *IDPath) (operators.Task, error) {
	again, err := t.ledger.RetryTask(ctx, operatorName(ctx), in.ID)
	if err == nil {
		t.waiters.Filler.FillPool(again.Pool)
	}
	return toAPITask(again), err
}

func toAPITask(task store.Task) operators.Task {
	return operators.Task{
		ID: task.ID, Batch: task.Batch, Pool: task.Pool, Device: task.Device, Kind: task.Kind, Payload: task.Payload,
		Priority: task.Priority, State: string(task.State), CountedAttempts: task.Attempts, NotBefore: apiTimePointer(task.NotBefore), NotAfter: apiTimePointer(task.NotAfter), RetryAt: apiTimePointer(task.RetryAt),
		Created: apiTime(task.CreatedAt), Finished: apiTimePointer(task.FinishedAt), Output: task.Output, Dropped: task.Dropped, Error: task.Error, LastError: task.LastError,
	}
}

func toAPIGrant(grant store.Grant) *operators.Grant {
	return &operators.Grant{
		Token: grant.Token, Pool: grant.Pool, Slot: grant.Slot, Attempt: grant.Attempt, Granted: apiTime(grant.GrantedAt),
		LeaseUntil: apiTime(grant.LeaseUntil), Redelivered: grant.Redelivered, Cancel: grant.CancelWhy,
	}
}

// bulkLimit is the maximum number of tasks that one request changes, so that its time is limited.
const bulkLimit = 20_000

type bulkQuery struct {
	operators.TaskFilter
	DryRun bool `query:"dry_run" doc:"Count only: nothing is changed"`
}

func (t *taskOperations) cancelAll(ctx context.Context, in *bulkQuery) (operators.Bulk, error) {
	return changeTasks(ctx, in, t.ledger.CancelTasks, t.ledger.CountCancellable)
}

func (t *taskOperations) retryAll(ctx context.Context, in *bulkQuery) (operators.Bulk, error) {
	done, err := changeTasks(ctx, in, t.ledger.RetryTasks, t.ledger.CountRetriable)
	if err == nil && !in.DryRun {
		t.waiters.Pools.RestartSearches()
	}
	return done, err
}

// changeTasks calls change, which changes the tasks that match the filter of request. In a dry run, it calls count instead, which only
// counts these tasks. change gets the actor, the filter and the maximum number of tasks.
func changeTasks(
	ctx context.Context, request *bulkQuery,
	change func(context.Context, string, store.TaskFilter, int) (store.BulkResult, error),
	count func(context.Context, store.TaskFilter) (int64, error),
) (operators.Bulk, error) {
	filter, err := taskFilter(request.TaskFilter)
	if err != nil {
		return operators.Bulk{}, err
	}
	if filter == (store.TaskFilter{}) {
		return operators.Bulk{}, invalidProblem("device, batch, pool, state, kind, error, since, until: at least one is required")
	}
	if request.DryRun {
		n, err := count(ctx, filter)
		return operators.Bulk{Tasks: n}, err
	}
	done, err := change(ctx, operatorName(ctx), filter, bulkLimit)
	return operators.Bulk(done), err
}

func (t *taskOperations) explainTask(ctx context.Context, in *IDPath) (operators.Why, error) {
	e, err := t.explain(ctx, in.ID)
	if err != nil {
		return operators.Why{}, err
	}
	reasons, err := toAPIReasons(ctx, t.recent, e.Causes)
	return operators.Why{State: string(e.State), Reasons: reasons, Mark: (*operators.Mark)(e.Mark)}, err
}

// toAPIReasons converts causes to the form of the API. If many attempts in a pool fail, it omits the advice to raise the capacity of the
// pool. attemptsReader reads the attempts.
func toAPIReasons(ctx context.Context, attemptsReader recentAttemptsReader, causes []decision.Cause) (shown []operators.Reason, err error) {
	shown = make([]operators.Reason, len(causes))
	for i, c := range causes {
		if c.AdvisesHigherCapacity() {
			advice := capacityAdviceFilter{ledger: attemptsReader, scope: store.TaskScope{Pool: c.Actions[0].ID}}
			if c, err = advice.removeAdvice(ctx, c); err != nil {
				return shown, err
			}
		}
		shown[i] = toAPIReason(c)
	}
	return shown, nil
}

func toAPIActions(actions []decision.Action) []operators.Action {
	shown := make([]operators.Action, len(actions))
	for i, a := range actions {
		shown[i] = operators.Action{Action: string(a.Act), Subject: string(a.Subject), ID: a.ID, Command: a.Command}
	}
	return shown
}

func toAPIReason(cause decision.Cause) operators.Reason {
	shown := operators.Reason{
		Code: string(cause.Code), Detail: cause.Detail, Until: apiTimeIfSet(cause.Until), EstimatedStart: apiTimeIfSet(cause.EstimatedStart), Remedy: cause.Remedy, Actions: toAPIActions(cause.Actions),
	}
	if cause.Position > 0 {
		shown.Position = &cause.Position
	}
	return shown
}
