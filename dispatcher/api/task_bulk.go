package api

import (
	"context"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// bulkLimit bounds what one request changes, so that it ends.
const bulkLimit = 20_000

type bulkQuery struct {
	operators.TaskFilter
	DryRun bool `query:"dry_run" doc:"Count only: nothing is changed"`
}

func (t *tasks) cancelAll(ctx context.Context, in *bulkQuery) (operators.Bulk, error) {
	return bulk(ctx, in, t.ledger.CancelTasks, t.ledger.CountCancellable)
}

func (t *tasks) retryAll(ctx context.Context, in *bulkQuery) (operators.Bulk, error) {
	done, err := bulk(ctx, in, t.ledger.RetryTasks, t.ledger.CountRetriable)
	if err == nil && !in.DryRun {
		t.waiters.FillAnew()
	}
	return done, err
}

func bulk(
	ctx context.Context, in *bulkQuery,
	change func(context.Context, string, store.TaskFilter, int) (store.BulkResult, error),
	count func(context.Context, store.TaskFilter) (int64, error),
) (operators.Bulk, error) {
	filter, err := taskFilter(in.TaskFilter)
	if err != nil {
		return operators.Bulk{}, err
	}
	if filter == (store.TaskFilter{}) {
		return operators.Bulk{}, invalid("device, batch, pool, state, kind, error: at least one of them")
	}
	if in.DryRun {
		n, err := count(ctx, filter)
		return operators.Bulk{Tasks: n}, err
	}
	done, err := change(ctx, actor(ctx), filter, bulkLimit)
	return operators.Bulk(done), err
}
