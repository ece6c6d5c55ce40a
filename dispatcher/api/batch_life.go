package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// Defaults of a batch whose request omits the field or patches it to null.
const (
	defaultWeight      = 1
	defaultMaxAttempts = 3
)

func (a *API) registerBatchLife(operations huma.API) {
	register(a, operations, operation("PATCH", "/v1/batches/{id}", "patchBatch", "Change a batch; absent fields stay, null asks for the default", roleOperator, 200), a.patchBatch)
	register(a, operations, operation("POST", "/v1/batches/{id}/pause", "pauseBatch", "Grant nothing more of a batch; what runs goes on", roleOperator, 200), a.pauseBatch)
	register(a, operations, operation("POST", "/v1/batches/{id}/resume", "resumeBatch", "End the pause of a batch", roleOperator, 200), a.resumeBatch)
	register(a, operations, operation("POST", "/v1/batches/{id}/cancel", "cancelBatch", "End a batch; devices that run a task of it are told to stop", roleOperator, 200), a.cancelBatch)
}

func (a *API) patchBatch(ctx context.Context, in *struct {
	BatchPath
	Body operators.BatchPatch
},
) (*body[operators.BatchChanged], error) {
	opens, err := readPatch(in.Body.Windows, readWindows)
	if err != nil {
		return nil, err
	}
	limited, err := readPatch(in.Body.Limits, readLimits)
	if err != nil {
		return nil, err
	}
	warned, err := a.patchWarnings(ctx, in.Body.Limits)
	if err != nil {
		return nil, err
	}
	b, err := a.store.ChangeBatch(ctx, actor(ctx), in.ID, func(b *store.Batch) error {
		apply(opens, &b.Windows, nil)
		apply(limited, &b.Limits, nil)
		return applyPatch(in.Body, b)
	})
	shown, err := a.startedBatch(b, neverStarts(err))
	if err != nil {
		return nil, err
	}
	return &body[operators.BatchChanged]{operators.BatchChanged{Batch: shown.Body, Warned: warned}}, nil
}

// applyPatch changes all but windows and limits.
func applyPatch(p operators.BatchPatch, b *store.Batch) error {
	apply(p.Priority, &b.Priority, 0)
	apply(p.Weight, &b.Weight, defaultWeight)
	apply(p.MaxAttempts, &b.MaxAttempts, defaultMaxAttempts)
	if p.NotAfter.Said {
		b.NotAfter = p.NotAfter.To
	}
	return checkSpan(b.NotBefore, b.NotAfter)
}

func checkSpan(from, to *time.Time) error {
	if from != nil && to != nil && !to.After(*from) {
		return problem(http.StatusUnprocessableEntity, codeInvalidField, "not_after: must be later than not_before")
	}
	return nil
}

func (a *API) pauseBatch(ctx context.Context, in *struct {
	BatchPath
	Body *operators.PauseReason
},
) (*body[operators.Batch], error) {
	reason := ""
	if in.Body != nil {
		reason = in.Body.Reason
	}
	return a.stoppedBatch(a.store.PauseBatch(ctx, actor(ctx), in.ID, reason))
}

func (a *API) resumeBatch(ctx context.Context, in *BatchPath) (*body[operators.Batch], error) {
	return a.startedBatch(a.store.ResumeBatch(ctx, actor(ctx), in.ID))
}

func (a *API) cancelBatch(ctx context.Context, in *BatchPath) (*body[operators.Batch], error) {
	return a.stoppedBatch(a.store.CancelBatch(ctx, actor(ctx), in.ID))
}

// startedBatch is one of which something may start that could not before.
func (a *API) startedBatch(b store.Batch, err error) (*body[operators.Batch], error) {
	if err == nil {
		a.options.Dispatcher.Waiters.Fill(b.Pool)
	}
	return shownBatch(b, err)
}

// stoppedBatch is one of which nothing starts any more.
func (a *API) stoppedBatch(b store.Batch, err error) (*body[operators.Batch], error) {
	if err == nil {
		a.options.Dispatcher.Waiters.LeaveQueue(b.Pool, b.ID)
	}
	return shownBatch(b, err)
}

func shownBatch(b store.Batch, err error) (*body[operators.Batch], error) {
	if err != nil {
		return nil, err
	}
	return &body[operators.Batch]{showBatch(b)}, nil
}
