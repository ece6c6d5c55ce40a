package dispatcher

import (
	"context"
	"fmt"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// recordResults commits every result of the report and frees the slots of the ended grants. The outcome of a late result (a result of a
// grant that has ended) has the State store.Dispatched if a newer grant of the task is in force. The acknowledgements are in the order of
// the results. If recordResults returns an error, it has not acknowledged the results that could not be committed, and the device sends
// them again.
func (h *reportHandling) recordResults(ctx context.Context) error {
	var valid []store.Result
	for _, r := range h.report.Results {
		h.mentioned[grantKey{r.Task, r.Token}] = true
		if r.Invalid == "" {
			valid = append(valid, ledgerResult(h.reporter.caller.Device, r))
		}
	}
	var outcomes []store.ResultOutcome
	if len(valid) > 0 {
		var err error
		if outcomes, err = h.d.ledgerCalls.results.Do(ctx, struct{}{}, valid); err != nil {
			return fmt.Errorf("%w: recording results: %w", devices.ErrUnavailable, err)
		}
	}
	h.endedLastTask = true
	var failed error
	for _, r := range h.report.Results {
		if r.Invalid != "" {
			h.d.log.WarnContext(ctx, "invalid result rejected", "device", h.reporter.caller.Device, "task", r.Task, "code", r.Invalid)
			h.addAck(devices.Ack{Task: r.Task, Token: r.Token, Outcome: devices.OutcomeRejected, Code: r.Invalid})
			continue
		}
		outcome := outcomes[0]
		outcomes = outcomes[1:]
		h.endedLastTask = h.endedLastTask && outcome.Last
		if rescue.PanicHandler(h.d.Panicked).Report("recording a result", outcome.Err) != nil {
			failed = fmt.Errorf("%w: recording a result: %w", devices.ErrUnavailable, outcome.Err)
			continue
		}
		if outcome.Ended != nil {
			h.d.freeGrantSlot(ctx, *outcome.Ended, endCause(r.Status))
		}
		h.addAck(devices.Ack{Task: r.Task, Token: r.Token, Outcome: devices.Outcome(outcome.Kind), Code: ackCode(r)})
	}
	return failed
}

// addAck adds an acknowledgement to the reply and counts it.
func (h *reportHandling) addAck(ack devices.Ack) {
	h.d.metrics.results.WithLabelValues(string(ack.Outcome)).Inc()
	h.reply.Acks = append(h.reply.Acks, ack)
}

// endCause returns the ledger's end cause for status, the status of a result in a report. It is empty for an unknown status.
func endCause(status devices.Status) store.EndCause {
	switch status {
	case devices.StatusSucceeded:
		return store.BySuccess
	case devices.StatusFailed:
		return store.ByFailure
	case devices.StatusRejected:
		return store.ByReject
	case devices.StatusReturned:
		return store.ByReturn
	}
	return ""
}

// ledgerResult converts result, an entry of a report of device, to the form of the ledger.
func ledgerResult(device devices.ID, result devices.Result) store.Result {
	return store.Result{
		Device: string(device), Task: result.Task, Token: result.Token, Cause: endCause(result.Status),
		Output: result.Output, Dropped: result.OutputDropped, Error: result.Error, RetryAfter: result.RetryAfter,
	}
}

// ackCode returns the code in the acknowledgement of result. It is empty if nothing was wrong with the result.
func ackCode(result devices.Result) string {
	if result.OutputDropped {
		return devices.CodeOutputDropped
	}
	return ""
}
