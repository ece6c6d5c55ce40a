package check

import (
	"bytes"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// receive checks and answers one report of the examined device. Reports of other devices get no answer.
func (r *run) receive(x *exchange) {
	if r.Device == "" {
		r.Device = x.device
	}
	if x.device != r.Device {
		return
	}
	isResent := r.pace.rule == "" && r.last != nil && bytes.Equal(x.body, r.last.body) // an HTTP library repeats a request when the connection breaks
	if r.last = x; !isResent {
		r.check("report-valid", x.err == nil, x, "the report is not valid: %v", x.err)
		r.check("report-id", x.ID != "" && !r.ids[x.ID] || x.err != nil, x, "the id %q is empty or was used before", x.ID)
		r.ids[x.ID] = true
		r.watchPace(x)
	}
	if x.isHTTP {
		r.checkToken(x, x.token)
	}
	for _, t := range r.tasks {
		if x.listsAsRunning(t) {
			r.watchRunning(x, t)
		}
		r.watchResult(x, t)
	}
	r.answer(x)
}

// checkToken checks the token of the device. x is the report that has the token; it is nil if the token opened a session.
func (r *run) checkToken(x *exchange, token string) {
	r.check("credential", token != "" && (r.Token == "" || token == r.Token), x, "the device sent no token, or another token than that of --token-file")
}

func (r *run) watchPace(x *exchange) {
	hasNews := r.mayRepeat || len(x.Running) > 0 || x.Attributes != nil
	for _, result := range x.Results {
		t := r.tasks[result.Token]
		hasNews = hasNews || t == nil || t.reported.IsZero()
	}
	if early := r.pace.from.Sub(x.at); r.pace.rule != "" {
		r.check(r.pace.rule, early <= 0 || hasNews && !r.pace.isStrict, x, "the report arrived %s too early", early.Round(time.Millisecond))
	}
	r.mayRepeat = false
}

// watchRunning checks whether the device may work on t, which the report lists as running.
func (r *run) watchRunning(x *exchange, t *task) {
	t.isStarted = true
	r.checkLease(t, x.at, x)
	if t.forbidden != "" {
		r.check(t.forbidden, false, x, "the device lists task %d with token %d as running", t.ID, t.Token)
	}
	if late := x.at.Sub(t.cancelled); !t.cancelled.IsZero() && late > promptly {
		r.check("cancel", false, x, "the device works on task %d %s after the cancel", t.ID, late.Round(time.Millisecond))
	}
}

// checkLease checks whether the lease of t allows the device to work on t at the time at. x is the report that lists t as running, or nil.
func (r *run) checkLease(t *task, at time.Time, x *exchange) {
	if late := at.Sub(t.end); !t.end.IsZero() && late > tolerance {
		r.check(t.leaseRule, false, x, "task %d: the device works %s after the end of its lease", t.ID, late.Round(time.Millisecond))
	}
}

// watchResult checks whether the report must have, may have or must not have the result of t.
func (r *run) watchResult(x *exchange, t *task) {
	keeps := map[bool]string{false: "results-repeated", true: "refused-keeps"}[r.pace.rule == "refused-waits"]
	switch result := x.resultOf(t); {
	case result == nil && t.isAcked():
		r.check("outcome-final", true, x, "")
	case result == nil && t.isPending() && !t.isWithheld:
		r.check(keeps, false, x, "the report lacks the result of task %d, which got no outcome yet", t.ID)
	case result == nil:
	case t.isAcked():
		r.check("outcome-final", x.at.Before(t.acked.Add(replyPeriod*3/4)), x, "the report repeats the result of task %d after its outcome %q", t.ID, t.outcome)
	case t.isPending():
		r.check(keeps, true, x, "")
	default:
		t.reported, t.result = x.at, *result
		if t.forbidden != "" {
			r.check(t.forbidden, result.Status == devices.StatusRejected, x, "the device sent a result of task %d with token %d", t.ID, t.Token)
		}
	}
}

// watchEntry checks whether the device may enter the external system for t. t is nil if no task has the token that the device sent.
func (r *run) watchEntry(t *task, at time.Time) {
	if t == nil {
		return
	}
	if t.starts > 0 { // after a reboot the task is started anew, unless the journal has its result
		r.check("started-once", t.boot != r.boot && t.reported.IsZero(), nil, "task %d with token %d was started again", t.ID, t.Token)
	}
	if t.forbidden != "" {
		r.check(t.forbidden, false, nil, "the device started task %d with token %d", t.ID, t.Token)
	}
	t.isStarted, t.entered, t.left, t.boot = true, at, time.Time{}, r.boot
	t.starts++
	r.checkLease(t, at, nil)
}

// watchExit checks whether the device left the external system in time. t is nil if no task has the token that the device sent.
func (r *run) watchExit(t *task, at time.Time) {
	if t == nil || !t.isInside() {
		return
	}
	t.left = at
	r.checkLease(t, at, nil)
	if late := at.Sub(t.reported); t.boot == r.boot && !t.reported.Before(t.entered) {
		r.check("leave-first", late < crossing, nil, "the result of task %d arrived %s before the device left the external system", t.ID, late.Round(time.Millisecond))
	} else if t.reported.IsZero() {
		r.check("leave-first", true, nil, "")
	}
}
