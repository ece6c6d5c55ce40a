package dispatcher

import (
	"context"
	"fmt"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// recordResults commits every result of the report and frees their places.
// Results that could not be committed are not acknowledged: the device sends
// them again. An error means that none was.
func (d *Dispatcher) recordResults(ctx context.Context, h *handling) error {
	var valid []store.Result
	for _, r := range h.report.Results {
		h.mentioned[grantKey{r.Task, r.Token}] = true
		if r.Invalid != "" {
			d.ack(h, devices.Ack{Task: r.Task, Token: r.Token, Outcome: devices.OutcomeRejected, Code: r.Invalid})
			continue
		}
		valid = append(valid, ledgerResult(h.caller.Device, r))
	}
	if len(valid) == 0 {
		return nil
	}
	dropped := droppedOutputs(h.report.Results)
	var failed error
	for i, outcome := range d.store.RecordResults(ctx, valid, d.settle) {
		if outcome.Err != nil {
			failed = outcome.Err
			continue
		}
		if outcome.Ended != nil {
			d.ended(ctx, *outcome.Ended, valid[i].Cause)
		}
		ack := devices.Ack{Task: valid[i].Task, Token: valid[i].Token, Outcome: devices.Outcome(outcome.Kind)}
		if dropped[grantKey{ack.Task, ack.Token}] {
			ack.Code = "output_dropped"
		}
		d.ack(h, ack)
	}
	if failed != nil {
		h.stopping = true // its grant may still be in force: nothing new now
		return d.unavailable(h, fmt.Errorf("%w: recording a result: %w", ErrUnavailable, failed))
	}
	return nil
}

func (d *Dispatcher) ack(h *handling, ack devices.Ack) {
	d.metrics.results.WithLabelValues(string(ack.Outcome)).Inc()
	h.reply.Acks = append(h.reply.Acks, ack)
}

// ended frees the place of a grant that is gone from the ledger. When the
// semaphore cannot be reached the reconciler frees it later.
func (d *Dispatcher) ended(ctx context.Context, g store.Grant, cause store.EndCause) {
	held := g.LeaseUntil.Add(-g.Remaining).Sub(g.GrantedAt)
	d.holds.add(g.Pool, held)
	d.metrics.hold.WithLabelValues(g.Pool, string(cause)).Observe(held.Seconds())
	d.release(ctx, g.Pool, g.Lease)
}

func (d *Dispatcher) release(ctx context.Context, pool string, leases ...string) {
	if _, err := d.semaphore.Release(ctx, pool, leases); err != nil {
		d.log.WarnContext(ctx, "a slot stays reserved until it is reconciled", "pool", pool, "leases", len(leases), "err", err)
	}
}

func ledgerResult(device devices.ID, r devices.Result) store.Result {
	causes := map[devices.Status]store.EndCause{
		devices.StatusSucceeded: store.BySuccess,
		devices.StatusFailed:    store.ByFailure,
		devices.StatusRejected:  store.ByReject,
		devices.StatusReturned:  store.ByReturn,
	}
	return store.Result{
		Device: string(device), Task: r.Task, Token: r.Token, Cause: causes[r.Status],
		Output: r.Output, Error: r.Error, RetryAfter: r.RetryAfter,
	}
}

func droppedOutputs(results []devices.Result) map[grantKey]bool {
	dropped := make(map[grantKey]bool)
	for _, r := range results {
		if r.OutputDropped {
			dropped[grantKey{r.Task, r.Token}] = true
		}
	}
	return dropped
}
