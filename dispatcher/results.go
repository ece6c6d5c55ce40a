package dispatcher

import (
	"context"
	"fmt"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// recordResults commits every result of the report, frees the slots of the ended grants, and adds the acknowledgements to the reply in the
// order of the results. A result that could not be committed is not acknowledged, so that the device sends it again.
func (h *reportHandling) recordResults(ctx context.Context) error {
	var valid []store.Result
	for _, r := range h.report.Results {
		h.mentioned[grantKey{r.Task, r.Token}] = true
		if r.Invalid == "" {
			valid = append(valid, toLedgerResult(h.reporter.caller.Device, r))
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
			h.d.freeGrantSlot(ctx, *outcome.Ended, endCauseOfStatus(r.Status))
		}
		h.addAck(devices.Ack{Task: r.Task, Token: r.Token, Outcome: devices.Outcome(outcome.Kind), Code: ackCode(r)})
	}
	return failed
}

func (h *reportHandling) addAck(ack devices.Ack) {
	h.d.metrics.results.WithLabelValues(string(ack.Outcome)).Inc()
	h.reply.Acks = append(h.reply.Acks, ack)
}

func endCauseOfStatus(status devices.Status) store.EndCause {
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

func toLedgerResult(device devices.ID, result devices.Result) store.Result {
	return store.Result{
		Device: string(device), Task: result.Task, Token: result.Token, Cause: endCauseOfStatus(result.Status),
		Output: result.Output, Dropped: result.OutputDropped, Error: result.Error, RetryAfter: result.RetryAfter,
	}
}

func ackCode(result devices.Result) string {
	if result.OutputDropped {
		return devices.CodeOutputDropped
	}
	return ""
}
