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
	maxReturns = 10        // number of returned attempts of a task that do not count as attempts
	maxBackoff = time.Hour // maximum delay between two attempts, unless the backoff of the batch is longer
)

// settle decides the next state of a task whose grant ended. It is pure except for the
// jitter of the backoff.
func (d *Dispatcher) settle(e store.SettleInput) store.Settlement {
	return settlement(e, d.config.Jitter)
}

func settlement(e store.SettleInput, jitter func() float64) store.Settlement {
	if e.Cause == store.BySuccess {
		return store.Settlement{State: store.Succeeded, Counted: true}
	}
	if endsCancelled(e) {
		return store.Settlement{State: store.Cancelled, Counted: true}
	}
	switch e.Cause {
	case store.ByReject:
		return store.Settlement{State: store.Failed, Counted: true}
	case store.ByReturn:
		return settleReturn(e, jitter)
	case store.ByLapse, store.ByOperator:
		return settleLost(e, jitter)
	default:
		return retryOrEnd(store.Failed, slices.Contains(e.RetryOn, string(store.Failed)), e, jitter)
	}
}

// endsCancelled reports whether the task ends as cancelled. After a cancel request, every result
// except a success ends the task. If the lease lapsed or the slot was released by force, the task
// ends only if an operator cancelled the task itself. A task whose device was blocked or took too
// long may be tried again.
func endsCancelled(e store.SettleInput) bool {
	if e.Cause == store.ByLapse || e.Cause == store.ByOperator {
		return e.CancelWhy == devices.CancelCancelled
	}
	return e.CancelWhy != ""
}

func settleReturn(e store.SettleInput, jitter func() float64) store.Settlement {
	if e.Returned >= maxReturns {
		return retryOrEnd(store.Failed, slices.Contains(e.RetryOn, string(store.Failed)), e, jitter)
	}
	delay := e.RetryAfter
	if delay == 0 {
		delay = backoff(e.RetryBackoff, e.Returned, jitter)
	}
	return store.Settlement{State: store.Pending, Delay: delay, Returned: true}
}

func settleLost(e store.SettleInput, jitter func() float64) store.Settlement {
	retry := e.OnLost != "fail" && slices.Contains(e.RetryOn, string(store.TimedOut))
	return retryOrEnd(store.TimedOut, retry, e, jitter)
}

// retryOrEnd gives the task another attempt if retry is true and attempts are left. Otherwise the task ends in the
// state endState.
func retryOrEnd(endState store.TaskState, retry bool, e store.SettleInput, jitter func() float64) store.Settlement {
	if !retry || e.Attempts+1 >= e.MaxAttempts {
		return store.Settlement{State: endState, Counted: true}
	}
	return store.Settlement{State: store.Pending, Counted: true, Delay: backoff(e.RetryBackoff, e.Attempts, jitter)}
}

// backoff returns the delay before the next attempt: base x 2^earlier, at most maxBackoff, or base
// if base is longer than maxBackoff. The second half of the delay is random, so that devices that
// failed at the same time do not retry at the same time.
func backoff(base time.Duration, earlier int, jitter func() float64) time.Duration {
	full := min(float64(base)*math.Exp2(float64(min(earlier, 30))), float64(max(base, maxBackoff)))
	return time.Duration(full * (0.5 + jitter()/2))
}

// ForceRelease takes a slot back from its holder and returns its grant. If f.AtOnce is true, the slot is free
// at once, even if its device still works. It returns store.ErrNotFound if nobody holds the slot.
func (d *Dispatcher) ForceRelease(ctx context.Context, pool string, slot int, f store.ForcedRelease) (store.Grant, error) {
	g, err := d.config.Store.ForceRelease(ctx, pool, slot, f, d.settle)
	if err != nil {
		return store.Grant{}, fmt.Errorf("releasing slot %d of pool %s by force: %w", slot, pool, err)
	}
	if f.AtOnce {
		d.metrics.forced.WithLabelValues(pool).Inc()
		d.freeGrantSlot(ctx, g, store.ByOperator)
		d.Waiters.Filler.Fill(pool)
	}
	return g, nil
}

// freeGrantSlot frees the slot of a grant that the ledger has deleted. If the semaphore cannot be reached,
// reconciliation frees the slot later.
func (d *Dispatcher) freeGrantSlot(ctx context.Context, g store.Grant, cause store.EndCause) {
	held := g.LeaseUntil.Add(-g.Remaining).Sub(g.GrantedAt)
	d.Waiters.Pools.RecordHold(g.Pool, g.Kind, held)
	d.metrics.hold.WithLabelValues(g.Pool, string(cause)).Observe(held.Seconds())
	d.Waiters.Slots.Return(ctx, g.Pool, g.LeaseID)
	if store.IsCaller(g.Device) {
		d.Waiters.Relay.WakeCallers(g.Pool)
	}
}
