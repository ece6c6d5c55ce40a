package dispatcher

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

const (
	maxReturns = 10        // number of returns of a task that do not count as attempts
	maxBackoff = time.Hour // maximum delay between two attempts, unless the backoff of the batch is longer
)

func (d *Dispatcher) decideTaskState(facts store.EndedGrantFacts) store.NextTaskState {
	return decideNextTaskState(facts, d.config.Jitter)
}

// decideNextTaskState decides the next state of a task whose grant ended. jitter returns a number in [0,1).
func decideNextTaskState(facts store.EndedGrantFacts, jitter func() float64) store.NextTaskState {
	if facts.Cause == store.BySuccess {
		return store.NextTaskState{State: store.Succeeded, Counted: true}
	}
	if mustEndAsCancelled(facts) {
		return store.NextTaskState{State: store.Cancelled, Counted: true}
	}
	switch facts.Cause {
	case store.ByReject:
		return store.NextTaskState{State: store.Failed, Counted: true}
	case store.ByReturn:
		return decideReturnedTaskState(facts, jitter)
	case store.ByLapse, store.ByOperator:
		return decideLostTaskState(facts, jitter)
	default:
		return retryOrEnd(store.Failed, slices.Contains(facts.RetryOn, string(store.Failed)), facts, jitter)
	}
}

// mustEndAsCancelled reports whether a task whose grant ended without success ends as cancelled. If the device was asked to stop and has sent a
// result, the task ends as cancelled, unless the stop came from a pause of its pool. If the grant was lost, the task ends as cancelled only
// if an operator cancelled the task itself.
func mustEndAsCancelled(facts store.EndedGrantFacts) bool {
	if facts.Cause == store.ByLapse || facts.Cause == store.ByOperator {
		return facts.CancelWhy == devices.CancelCancelled
	}
	return facts.CancelWhy != "" && facts.CancelWhy != devices.CancelPaused
}

// decideReturnedTaskState decides the next state of a task that its device gave back without a result. If the device gave it back because of a
// pause of the pool, the return is not counted.
func decideReturnedTaskState(facts store.EndedGrantFacts, jitter func() float64) store.NextTaskState {
	if facts.CancelWhy == devices.CancelPaused {
		return store.NextTaskState{State: store.Pending}
	}
	if facts.Returned >= maxReturns {
		return retryOrEnd(store.Failed, slices.Contains(facts.RetryOn, string(store.Failed)), facts, jitter)
	}
	delay := facts.RetryAfter
	if delay == 0 {
		delay = backoffDelay(facts.RetryBackoff, facts.Returned, jitter)
	}
	return store.NextTaskState{State: store.Pending, Delay: delay, Returned: true}
}

// decideLostTaskState decides the next state of a task whose lease lapsed or whose slot an operator released.
func decideLostTaskState(facts store.EndedGrantFacts, jitter func() float64) store.NextTaskState {
	retry := facts.OnLost != "fail" && slices.Contains(facts.RetryOn, string(store.TimedOut))
	return retryOrEnd(store.TimedOut, retry, facts, jitter)
}

// retryOrEnd gives the task another attempt if mayRetry is true and attempts are left. Otherwise the task ends in endState.
func retryOrEnd(endState store.TaskState, mayRetry bool, facts store.EndedGrantFacts, jitter func() float64) store.NextTaskState {
	if !mayRetry || facts.Attempts+1 >= facts.MaxAttempts {
		return store.NextTaskState{State: endState, Counted: true}
	}
	return store.NextTaskState{State: store.Pending, Counted: true, Delay: backoffDelay(facts.RetryBackoff, facts.Attempts, jitter)}
}

// backoffDelay returns the delay before the next attempt: base x 2^earlierDelays, but at most maxBackoff, or base if base is longer. The
// delay is reduced at random by up to a half, so that devices that failed at the same time do not retry at the same time.
func backoffDelay(base time.Duration, earlierDelays int, jitter func() float64) time.Duration {
	full := min(float64(base)*math.Exp2(float64(min(earlierDelays, 30))), float64(max(base, maxBackoff)))
	return time.Duration(full * (0.5 + jitter()/2))
}

// ForceRelease takes a slot back from its holder and returns the holder's grant. With release.AtOnce the slot is free at once, even if the
// device still works. ForceRelease returns store.ErrNotFound if nobody holds the slot.
func (d *Dispatcher) ForceRelease(ctx context.Context, pool string, slot int, release store.ForcedRelease) (released store.Grant, err error) {
	g, err := d.config.Store.ForceRelease(ctx, pool, slot, release, d.decideTaskState)
	if err != nil {
		return store.Grant{}, fmt.Errorf("releasing slot %d of pool %s by force: %w", slot, pool, err)
	}
	if release.AtOnce {
		d.metrics.forced.WithLabelValues(pool).Inc()
		d.freeGrantSlot(ctx, g, store.ByOperator)
		d.Waiters.Filler.FillPool(pool)
	}
	return g, nil
}

// freeGrantSlot frees the slot of grant after the ledger has deleted the grant because of cause. If the semaphore does not answer,
// reconciliation frees the slot later.
func (d *Dispatcher) freeGrantSlot(ctx context.Context, grant store.Grant, cause store.EndCause) {
	held := grant.LeaseUntil.Add(-grant.Remaining).Sub(grant.GrantedAt)
	d.Waiters.Pools.RecordHoldTime(grant.Pool, grant.Kind, held)
	d.metrics.hold.WithLabelValues(grant.Pool, string(cause)).Observe(held.Seconds())
	d.Waiters.Slots.ReleaseEndedLeases(ctx, grant.Pool, grant.LeaseID)
	if store.IsCaller(grant.Device) {
		d.Waiters.Relay.WakeCallers(grant.Pool)
	}
}
