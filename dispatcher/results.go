package dispatcher

import (
	"context"
	"fmt"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// recordResults commits every result of the report and frees the slots of the ended grants. A late result is a result
// of a grant that has ended. Its outcome has the State store.Dispatched if a newer grant of the task is in force. The
// acknowledgements are in the order of the results. If it returns an error, the results that could not be committed
// are not acknowledged, and the device sends them again.
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
	var failed error
	for _, r := range h.report.Results {
		if r.Invalid != "" {
			h.d.log.WarnContext(ctx, "invalid result rejected", "device", h.reporter.caller.Device, "task", r.Task, "code", r.Invalid)
			h.addAck(devices.Ack{Task: r.Task, Token: r.Token, Outcome: devices.OutcomeRejected, Code: r.Invalid})
			continue
		}
		outcome := outcomes[0]
		outcomes = outcomes[1:]
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

func (h *reportHandling) addAck(ack devices.Ack) {
	h.d.metrics.results.WithLabelValues(string(ack.Outcome)).Inc()
	h.reply.Acks = append(h.reply.Acks, ack)
}

// endCause returns the ledger's end cause for a status of the wire. It is empty for an unknown status.
func endCause(s devices.Status) store.EndCause {
	switch s {
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

func ledgerResult(device devices.ID, r devices.Result) store.Result {
	return store.Result{
		Device: string(device), Task: r.Task, Token: r.Token, Cause: endCause(r.Status),
		Output: r.Output, Dropped: r.OutputDropped, Error: r.Error, RetryAfter: r.RetryAfter,
	}
}

func ackCode(r devices.Result) string {
	if r.OutputDropped {
		return devices.CodeOutputDropped
	}
	return ""
}
