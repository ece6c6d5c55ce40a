package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/store"
)

// What a batch gets that is created without saying, or patched back.
const (
	defaultWeight      = 1
	defaultMaxAttempts = 3
)

type batchPatch struct {
	Priority    patch[int]             `json:"priority,omitzero" minimum:"-1000000" maximum:"1000000" doc:"Of its tasks without their own"`
	Weight      patch[int]             `json:"weight,omitzero" minimum:"1" maximum:"1000" doc:"In effect with the next report"`
	NotAfter    patch[time.Time]       `json:"not_after,omitzero" doc:"null: never. What has expired stays so"`
	Windows     patch[[]windowBody]    `json:"windows,omitzero" doc:"All of them; null or none: always open"`
	Limits      patch[[]limits.Policy] `json:"limits,omitzero" doc:"All of them, beside those of the pool; in effect with the next report"`
	MaxAttempts patch[int]             `json:"max_attempts,omitzero" minimum:"1" maximum:"100" doc:"From the next attempt that ends on"`
}

func (a *API) registerBatchLife(operations huma.API) {
	register(a, operations, operation("PATCH", "/v1/batches/{id}", "patchBatch", "Change a batch; absent fields stay, null asks for the default", roleOperator, 200), a.patchBatch)
	register(a, operations, operation("POST", "/v1/batches/{id}/pause", "pauseBatch", "Grant nothing more of a batch; what runs goes on", roleOperator, 200), a.pauseBatch)
	register(a, operations, operation("POST", "/v1/batches/{id}/resume", "resumeBatch", "End the pause of a batch", roleOperator, 200), a.resumeBatch)
	register(a, operations, operation("POST", "/v1/batches/{id}/cancel", "cancelBatch", "End a batch; devices that run a task of it are told to stop", roleOperator, 200), a.cancelBatch)
}

func (a *API) patchBatch(ctx context.Context, in *struct {
	BatchPath
	Body batchPatch
},
) (*body[batchChanged], error) {
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
		opens.to(&b.Windows, nil)
		limited.to(&b.Limits, nil)
		return in.Body.apply(b)
	})
	shown, err := a.startedBatch(b, neverStarts(err))
	if err != nil {
		return nil, err
	}
	return &body[batchChanged]{batchChanged{shown.Body, warned}}, nil
}

// batchChanged is a batch after a change of its settings.
type batchChanged struct {
	BatchBody
	Warned
}

// apply changes all but windows and limits.
func (p batchPatch) apply(b *store.Batch) error {
	p.Priority.to(&b.Priority, 0)
	p.Weight.to(&b.Weight, defaultWeight)
	p.MaxAttempts.to(&b.MaxAttempts, defaultMaxAttempts)
	if p.NotAfter.set {
		b.NotAfter = p.NotAfter.value
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
	Body *Reason
},
) (*body[BatchBody], error) {
	reason := ""
	if in.Body != nil {
		reason = in.Body.Reason
	}
	return a.stoppedBatch(a.store.PauseBatch(ctx, actor(ctx), in.ID, reason))
}

func (a *API) resumeBatch(ctx context.Context, in *BatchPath) (*body[BatchBody], error) {
	return a.startedBatch(a.store.ResumeBatch(ctx, actor(ctx), in.ID))
}

func (a *API) cancelBatch(ctx context.Context, in *BatchPath) (*body[BatchBody], error) {
	return a.stoppedBatch(a.store.CancelBatch(ctx, actor(ctx), in.ID))
}

// startedBatch is one of which something may start that could not before.
func (a *API) startedBatch(b store.Batch, err error) (*body[BatchBody], error) {
	if err == nil {
		a.options.Dispatcher.Waiters.Fill(b.Pool)
	}
	return shownBatch(b, err)
}

// stoppedBatch is one of which nothing starts any more.
func (a *API) stoppedBatch(b store.Batch, err error) (*body[BatchBody], error) {
	if err == nil {
		a.options.Dispatcher.Waiters.LeaveLine(b.Pool, b.ID)
	}
	return shownBatch(b, err)
}

func shownBatch(b store.Batch, err error) (*body[BatchBody], error) {
	if err != nil {
		return nil, err
	}
	return &body[BatchBody]{showBatch(b)}, nil
}
