package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// renewRunningTasks renews the lease of each running task of the report. For each, it adds one entry to `renewed` or to `cancel` of the reply.
func (h *reportHandling) renewRunningTasks(ctx context.Context) error {
	var valid []store.Renewal
	for _, r := range h.report.Running {
		h.mentioned[grantKey{r.Task, r.Token}] = true
		switch {
		case r.Invalid != "":
			h.d.log.WarnContext(ctx, "invalid entry of running: the device is asked to stop its task", "device", h.reporter.caller.Device, "task", r.Task, "code", r.Invalid)
			h.addCancelToReply(r.Task, r.Token, devices.CancelStale)
		case h.reporter.view.Device.Blocked:
			h.addCancelToReply(r.Task, r.Token, devices.CancelBlocked)
		default:
			valid = append(valid, store.Renewal{Task: r.Task, Token: r.Token, Device: string(h.reporter.caller.Device), Lease: r.Lease})
		}
	}
	if len(valid) == 0 {
		return nil
	}
	outcomes, err := h.d.config.Store.Renew(ctx, valid)
	if err != nil {
		return fmt.Errorf("%w: renewing: %w", devices.ErrUnavailable, err)
	}
	var failed error
	for i, outcome := range outcomes {
		failed = errors.Join(failed, h.answerRenewal(ctx, valid[i], outcome))
	}
	return failed
}

func (h *reportHandling) answerRenewal(ctx context.Context, renewal store.Renewal, outcome store.RenewalOutcome) error {
	usable := h.d.usableLeaseTime(outcome.Grant)
	why := cancelReason(outcome, usable < h.d.config.LeaseMin)
	if why == "" {
		h.reply.Renewed = append(h.reply.Renewed, devices.Renewed{Task: renewal.Task, Token: renewal.Token, LeaseMS: usable.Milliseconds()})
		return nil
	}
	h.addCancelToReply(renewal.Task, renewal.Token, why)
	if why != devices.CancelMaxRun {
		return nil
	}
	// The reason is stored with the grant, so that the task ends and is not retried if the device reports a failure later.
	if err := h.d.config.Store.AskCancel(ctx, renewal.Task, renewal.Token, why); err != nil {
		return fmt.Errorf("%w: recording the reason to stop a task: %w", devices.ErrUnavailable, err)
	}
	return nil
}

func (h *reportHandling) addCancelToReply(taskID, fencingToken int64, reason string) {
	h.mustStop = true
	h.reply.Cancel = append(h.reply.Cancel, devices.Cancel{Task: taskID, Token: fencingToken, Why: reason})
}

// cancelReason returns why a running task must stop, given the outcome of its renewal, or "" if it may continue. isLeaseSpent means that the
// lease has too little usable time left.
func cancelReason(outcome store.RenewalOutcome, isLeaseSpent bool) string {
	switch {
	case outcome.Superseded:
		return devices.CancelStale
	case !outcome.Found:
		return devices.CancelExpired
	case outcome.Grant.CancelWhy != "":
		return outcome.Grant.CancelWhy
	case isLeaseSpent && !outcome.Grant.LeaseUntil.Before(outcome.Grant.MaxUntil):
		return devices.CancelMaxRun
	case isLeaseSpent:
		return devices.CancelExpired
	}
	return ""
}

// usableLeaseTime returns the time for which a device may use grant from now on: the remaining time minus the margin, which is at most a fifth
// of the lease.
func (d *Dispatcher) usableLeaseTime(grant store.Grant) time.Duration {
	margin := min(d.config.LeaseMargin, grant.LeaseLength/5)
	return min(grant.Remaining, grant.LeaseLength) - margin
}
