package api

import (
	"cmp"
	"math"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	rateSpan    = 5 * time.Minute  // the length of the period whose ended tasks Batch.Recent counts
	minRateSpan = 10 * time.Second // minimum period for endedTasksPerMinute
	maxETA      = 10 * 365 * 24 * time.Hour
)

// batchState returns the state of a batch, which it derives from the counts of the batch. A batch has ended when none of its tasks is open.
func batchState(batch store.Batch) (state string) {
	open := countOpenTasks(batch) > 0
	switch {
	case batch.CancelledAt != nil && open:
		return "cancelling"
	case batch.CancelledAt != nil:
		return "cancelled"
	case !open:
		return "finished"
	case batch.Paused:
		return "paused"
	case batch.NotBefore != nil && batch.ReadAt.Before(*batch.NotBefore):
		return "scheduled"
	}
	return "running"
}

// batchCondition returns the state of a batch. If the state is running, the result also depends on the windows of the batch and on its
// pool: it can be scheduled or held_up.
func batchCondition(batch store.Batch) (condition string) {
	state, poolState := batchState(batch), batch.PoolSettings
	lease := cmp.Or(batch.Lease, poolState.Lease)
	switch {
	case state != "running":
		return state
	case poolState.Paused || poolState.Capacity == 0:
		return "held_up"
	case decision.ForbidsStart(batch.Opening, lease, batch.FinishInside, batch.ReadAt), decision.ForbidsStart(poolState.Opening, lease, batch.FinishInside, batch.ReadAt):
		return "scheduled"
	}
	return state
}

func countOpenTasks(batch store.Batch) int64 {
	return batch.Counts[store.Pending] + batch.Counts[store.Dispatched]
}

// endedTasksPerMinute returns the number of tasks of the batch that ended per minute in the last rateSpan, or since the earliest start if
// that was later. The period is at least minRateSpan. The result is nil if the batch has not begun.
func endedTasksPerMinute(batch store.Batch) *float64 {
	began := earliestStart(batch)
	if batch.ReadAt.Before(began) {
		return nil
	}
	rate := float64(batch.Recent) / min(max(batch.ReadAt.Sub(began), minRateSpan), rateSpan).Minutes()
	return &rate
}

// earliestStart returns the earliest time at which tasks of the batch could start: its not_before, or its creation if that was later.
func earliestStart(batch store.Batch) time.Time {
	if batch.NotBefore != nil && batch.NotBefore.After(batch.CreatedAt) {
		return *batch.NotBefore
	}
	return batch.CreatedAt
}

// expectedEnd returns the time at which the last task of the batch ends if tasksPerMinute tasks end per minute. If the time is unknown, it
// returns nil.
func expectedEnd(batch store.Batch, tasksPerMinute *float64) *operators.Time {
	if tasksPerMinute == nil || *tasksPerMinute == 0 || batchCondition(batch) != "running" {
		return nil
	}
	left := math.Round(float64(countOpenTasks(batch)) / *tasksPerMinute * float64(time.Minute))
	if left > float64(maxETA) {
		return nil
	}
	at := batch.ReadAt.Add(time.Duration(left))
	if o := batch.Opening; !o.Until.IsZero() && (o.From.After(batch.ReadAt) || o.Until.Before(at)) { // the rest of the batch must wait for a window
		return nil
	}
	return apiTimeIfSet(at)
}
