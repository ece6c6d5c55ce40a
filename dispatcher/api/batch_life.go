package api

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// Defaults of a batch whose request omits the field or patches it to null.
const (
	defaultWeight      = 1
	defaultMaxAttempts = 3
)

func (b *batches) patch(ctx context.Context, in *struct {
	Numbered
	Body operators.BatchPatch
},
) (changed operators.BatchChanged, err error) {
	opens, err := readPatch(in.Body.Windows, readWindows)
	if err != nil {
		return changed, err
	}
	limited, err := readPatch(in.Body.Limits, readLimits)
	if err != nil {
		return changed, err
	}
	if changed.Warned, err = b.warn.ofChange(ctx, in.Body.Limits); err != nil {
		return changed, err
	}
	batch, err := b.ledger.ChangeBatch(ctx, actor(ctx), in.ID, func(batch *store.Batch) error {
		apply(opens, &batch.Windows, nil)
		apply(limited, &batch.Limits, nil)
		return applyPatch(in.Body, batch)
	})
	changed.Batch, err = b.started(batch, neverStarts(err))
	return changed, err
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
		return invalid("not_after: must be later than not_before")
	}
	return nil
}

func (b *batches) pause(ctx context.Context, in *struct {
	Numbered
	Body *operators.PauseReason
},
) (operators.Batch, error) {
	return b.stopped(b.ledger.PauseBatch(ctx, actor(ctx), in.ID, reasonOf(in.Body)))
}

func (b *batches) resume(ctx context.Context, in *Numbered) (operators.Batch, error) {
	return b.started(b.ledger.ResumeBatch(ctx, actor(ctx), in.ID))
}

func (b *batches) cancel(ctx context.Context, in *Numbered) (operators.Batch, error) {
	return b.stopped(b.ledger.CancelBatch(ctx, actor(ctx), in.ID))
}

// started shows a batch of which something may start that could not before.
func (b *batches) started(batch store.Batch, err error) (operators.Batch, error) {
	if err == nil {
		b.waiters.Fill(batch.Pool)
	}
	return showBatch(batch), err
}

// stopped shows a batch of which nothing starts any more.
func (b *batches) stopped(batch store.Batch, err error) (operators.Batch, error) {
	if err == nil {
		b.waiters.LeaveQueue(batch.Pool, batch.ID)
	}
	return showBatch(batch), err
}
