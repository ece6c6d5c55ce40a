package api

import (
	"context"
	"net/http"

	"github.com/fleetslots/dispatcher/store"
)

// bulkLimit bounds what one request changes, so that it ends.
const bulkLimit = 20_000

type bulkQuery struct {
	TaskSelection
	DryRun bool `query:"dry_run" doc:"Count only: nothing is changed"`
}

type bulkBody struct {
	Tasks int64 `json:"tasks" doc:"Changed now; in a dry run: would be, the running ones included"`
	Asked int64 `json:"asked" doc:"Run now: their devices are told to stop with the next report"`
	More  bool  `json:"more" doc:"true: there may be more; send the same again"`
}

func (a *API) cancelTasks(ctx context.Context, in *bulkQuery) (*body[bulkBody], error) {
	return a.bulk(ctx, in, a.store.CancelTasks, a.store.CountCancellable)
}

func (a *API) retryTasks(ctx context.Context, in *bulkQuery) (*body[bulkBody], error) {
	done, err := a.bulk(ctx, in, a.store.RetryTasks, a.store.CountRetriable)
	if err == nil && !in.DryRun {
		a.options.Dispatcher.Waiters.FillAnew()
	}
	return done, err
}

func (a *API) bulk(
	ctx context.Context, in *bulkQuery,
	change func(context.Context, string, store.TaskFilter, int) (store.BulkResult, error),
	count func(context.Context, store.TaskFilter) (int64, error),
) (*body[bulkBody], error) {
	filter, err := in.filter()
	if err != nil {
		return nil, err
	}
	if filter == (store.TaskFilter{}) {
		return nil, problem(http.StatusUnprocessableEntity, codeInvalidField, "device, batch, pool, state, kind, error: at least one of them")
	}
	if in.DryRun {
		n, err := count(ctx, filter)
		return &body[bulkBody]{bulkBody{Tasks: n}}, err
	}
	done, err := change(ctx, actor(ctx), filter, bulkLimit)
	if err != nil {
		return nil, err
	}
	return &body[bulkBody]{bulkBody(done)}, nil
}

func (a *API) retryTask(ctx context.Context, in *taskID) (*body[TaskBody], error) {
	t, err := a.store.RetryTask(ctx, actor(ctx), in.ID)
	if err != nil {
		return nil, err
	}
	a.options.Dispatcher.Waiters.Fill(t.Pool)
	return &body[TaskBody]{showTask(t)}, nil
}
