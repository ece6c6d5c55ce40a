package api

import (
	"cmp"
	"math"
	"time"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	rateSpan = 5 * time.Minute  // that the ledger's Recent looks back
	shortest = 10 * time.Second // less is too short to be a rate
	etaMax   = 10 * 365 * 24 * time.Hour
)

// batchState derives the state: a batch has ended when none of its tasks is
// open.
func batchState(b store.Batch) string {
	open := openTasks(b) > 0
	switch {
	case b.CancelledAt != nil && open:
		return "cancelling"
	case b.CancelledAt != nil:
		return "cancelled"
	case !open:
		return "finished"
	case b.Paused:
		return "paused"
	case b.NotBefore != nil && b.ReadAt.Before(*b.NotBefore):
		return "scheduled"
	}
	return "running"
}

func openTasks(b store.Batch) int64 { return b.Counts[store.Pending] + b.Counts[store.Dispatched] }

// ratePerMinute is how many tasks of the batch were done a minute lately; nil:
// it has not begun.
func ratePerMinute(b store.Batch) *float64 {
	began := b.CreatedAt
	if b.NotBefore != nil && b.NotBefore.After(began) {
		began = *b.NotBefore
	}
	if b.ReadAt.Before(began) {
		return nil
	}
	rate := float64(b.Recent) / min(max(b.ReadAt.Sub(began), shortest), rateSpan).Minutes()
	return &rate
}

// eta is when the last task ends if all goes on as lately; nil: unknown.
func eta(b store.Batch, rate *float64) *operators.Time {
	if rate == nil || *rate == 0 || batchState(b) != "running" {
		return nil
	}
	left := math.Round(float64(openTasks(b)) / *rate * float64(time.Minute))
	if left > float64(etaMax) {
		return nil
	}
	at := b.ReadAt.Add(time.Duration(left))
	if o := b.Opening; !o.Until.IsZero() && (o.From.After(b.ReadAt) || o.Until.Before(at)) { // it will wait for a window
		return nil
	}
	return stampSet(at)
}

// abortRule is that of a request; nil: none.
func abortRule(a *operators.Abort) *store.Abort {
	if a == nil {
		return nil
	}
	return &store.Abort{Failure: a.Failure, Min: cmp.Or(a.Min, 1)}
}

func showAbort(rule *store.Abort) *operators.Abort {
	if rule == nil {
		return nil
	}
	return &operators.Abort{Failure: rule.Failure, Min: rule.Min}
}
