package api

import (
	"context"
	"net/http"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// bulkLimit bounds what one request changes, so that it ends.
const bulkLimit = 20_000

type bulkQuery struct {
	operators.TaskFilter
	DryRun bool `query:"dry_run" doc:"Count only: nothing is changed"`
}

func (a *API) cancelTasks(ctx context.Context, in *bulkQuery) (*body[operators.Bulk], error) {
	return a.bulk(ctx, in, a.store.CancelTasks, a.store.CountCancellable)
}

func (a *API) retryTasks(ctx context.Context, in *bulkQuery) (*body[operators.Bulk], error) {
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
) (*body[operators.Bulk], error) {
	filter, err := taskFilter(in.TaskFilter)
	if err != nil {
		return nil, err
	}
	if filter == (store.TaskFilter{}) {
		return nil, problem(http.StatusUnprocessableEntity, codeInvalidField, "device, batch, pool, state, kind, error: at least one of them")
	}
	if in.DryRun {
		n, err := count(ctx, filter)
		return &body[operators.Bulk]{operators.Bulk{Tasks: n}}, err
	}
	done, err := change(ctx, actor(ctx), filter, bulkLimit)
	if err != nil {
		return nil, err
	}
	return &body[operators.Bulk]{operators.Bulk(done)}, nil
}

func (a *API) retryTask(ctx context.Context, in *taskID) (*body[operators.Task], error) {
	t, err := a.store.RetryTask(ctx, actor(ctx), in.ID)
	if err != nil {
		return nil, err
	}
	a.options.Dispatcher.Waiters.Fill(t.Pool)
	return &body[operators.Task]{showTask(t)}, nil
}
