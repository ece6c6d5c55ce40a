package check

import (
	"bytes"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// checkReport checks and answers one report of the examined device. Reports of other devices get no answer.
func (r *run) checkReport(report *exchange) {
	if r.Device == "" {
		r.Device = report.device
	}
	if report.device != r.Device || r.isGivenUp(report) {
		return
	}
	isResent := r.pace.rule == "" && r.last != nil && bytes.Equal(report.body, r.last.body) // an HTTP library repeats a request when the connection breaks
	if r.last = report; !isResent {
		r.check("report-valid", report.err == nil, report, "the report is not valid: %v", report.err)
		r.check("report-id", report.ID != "" && !r.ids[report.ID] || report.err != nil, report, "the id %q is empty or was used before", report.ID)
		r.ids[report.ID] = true
		r.watchPace(report)
	}
	if report.isHTTP {
		r.checkToken(report, report.token)
	}
	for _, t := range r.tasks {
		if report.listsAsRunning(t) {
			r.watchRunning(report, t)
		}
		r.watchResult(report, t)
	}
	r.answer(report)
}

// isGivenUp reports whether report is older than the latest report. A device may close the connection of a report to send a result at once
// over another connection. If the check is busy at that moment, it receives the result first.
func (r *run) isGivenUp(report *exchange) bool {
	return r.last != nil && report.conn < r.last.conn && report.at.Sub(r.last.at) < crossing
}

// checkToken checks the token of the device. report is the report that has the token. It is nil if the token opened a session.
func (r *run) checkToken(report *exchange, token string) {
	r.check("credential", token != "" && (r.Token == "" || token == r.Token), report, "the device sent no token, or another token than that of --token-file")
}

func (r *run) watchPace(report *exchange) {
	hasNews := r.mayRepeat || len(report.Running) > 0 || report.Attributes != nil
	for _, result := range report.Results {
		t := r.tasks[result.Token]
		hasNews = hasNews || t == nil || t.reported.IsZero()
	}
	if early := r.pace.from.Sub(report.at); r.pace.rule != "" {
		r.check(r.pace.rule, early <= 0 || hasNews && !r.pace.isStrict, report, "the report arrived %s too early", early.Round(time.Millisecond))
	}
	r.mayRepeat = false
}

// watchRunning checks whether the device may work on granted, a task that report lists as running.
func (r *run) watchRunning(report *exchange, granted *task) {
	granted.isStarted = true
	r.checkLease(granted, report.at, report)
	if granted.forbidden != "" {
		r.check(granted.forbidden, false, report, "the device lists task %d with token %d as running", granted.ID, granted.Token)
	}
	if late := report.at.Sub(granted.cancelled); !granted.cancelled.IsZero() && late > promptly {
		r.check("cancel", false, report, "the device works on task %d %s after the cancel", granted.ID, late.Round(time.Millisecond))
	}
}

// checkLease checks whether the lease of granted allows the device to work on the task at a point in time (at). report is the report that lists
// the task as running, or nil.
func (r *run) checkLease(granted *task, at time.Time, report *exchange) {
	if late := at.Sub(granted.end); !granted.end.IsZero() && late > tolerance {
		r.check(granted.leaseRule, false, report, "task %d: the device works %s after the end of its lease", granted.ID, late.Round(time.Millisecond))
	}
}

// watchResult checks whether report must have, may have or must not have the result of granted.
func (r *run) watchResult(report *exchange, granted *task) {
	keeps := map[bool]string{false: "results-repeated", true: "refused-keeps"}[r.pace.rule == "refused-waits"]
	switch result := report.resultOf(granted); {
	case result == nil && granted.isAcked():
		r.check("outcome-final", true, report, "")
	case result == nil && granted.isPending() && !granted.isWithheld:
		r.check(keeps, false, report, "the report lacks the result of task %d, which got no outcome yet", granted.ID)
	case result == nil:
	case granted.isAcked():
		r.check("outcome-final", report.at.Before(granted.acked.Add(replyPeriod*3/4)), report, "the report repeats the result of task %d after its outcome %q", granted.ID, granted.outcome)
	case granted.isPending():
		r.check(keeps, true, report, "")
	default:
		granted.reported, granted.result = report.at, *result
		if granted.forbidden != "" {
			r.check(granted.forbidden, result.Status == devices.StatusRejected, report, "the device sent a result of task %d with token %d", granted.ID, granted.Token)
		}
	}
}

// watchEntry checks whether the device may enter the external system for granted, which is nil if no task has the token that the device
// sent.
func (r *run) watchEntry(granted *task, at time.Time) {
	if granted == nil {
		return
	}
	if granted.starts > 0 { // after a reboot the task is started anew, unless the journal has its result
		r.check("started-once", granted.boot != r.boot && granted.reported.IsZero(), nil, "task %d with token %d was started again", granted.ID, granted.Token)
	}
	if granted.forbidden != "" {
		r.check(granted.forbidden, false, nil, "the device started task %d with token %d", granted.ID, granted.Token)
	}
	granted.isStarted, granted.entered, granted.left, granted.boot = true, at, time.Time{}, r.boot
	granted.starts++
	r.checkLease(granted, at, nil)
}

// watchExit checks whether the device left the external system in time. granted is nil if no task has the token that the device sent.
func (r *run) watchExit(granted *task, at time.Time) {
	if granted == nil || !granted.isInsideSystem() {
		return
	}
	granted.left = at
	r.checkLease(granted, at, nil)
	if late := at.Sub(granted.reported); granted.boot == r.boot && !granted.reported.Before(granted.entered) {
		r.check("leave-first", late < crossing, nil, "the result of task %d arrived %s before the device left the external system", granted.ID, late.Round(time.Millisecond))
	} else if granted.reported.IsZero() {
		r.check("leave-first", true, nil, "")
	}
}
