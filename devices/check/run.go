package check

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

const (
	replyPeriod = time.Second             // report_after_ms of ordinary replies
	tolerance   = 1500 * time.Millisecond // for the stop of a task, which checks once a second whether it must stop
	promptly    = 2500 * time.Millisecond // maximum time for what the device must do at once
	crossing    = 500 * time.Millisecond  // maximum time by which messages of two connections may arrive in the wrong order
	longEnough  = 15 * time.Second        // time limit for the result of a task of one second
	maxSilence  = 60 * time.Second        // longer than the longest wait of a correct device
)

// run is the state of one check. Only the goroutine of Run uses its fields, except inbox and done.
type run struct {
	Options
	system   string          // address of the external system
	inbox    chan func()     // functions that the goroutine of Run is to call
	done     <-chan struct{} // closed when the context of Run ends
	ended    func() error    // returns an error when the context of Run has ended
	findings []Finding       // one for each rule
	scenario string          // name of the current scenario
	fault    error           // why the check cannot go on

	answer      func(*exchange) // answers the reports of the scenario
	last        *exchange       // latest report
	ids         map[string]bool // report ids so far
	tasks       map[int64]*task // by token
	boot        int             // number of reboots
	isRebooting bool            // the device may be silent
	mayRepeat   bool            // the next report may come at once, to repeat a result
	pace        pace
	delayed     func()    // sends a delayed answer; nil: no answer is delayed
	delayedTo   time.Time // time at which delayed is called
}

// pace says when the device may send its next report.
type pace struct {
	rule     string    // "": no requirement
	from     time.Time // earliest time of the report
	isStrict bool      // applies even if the device has a new result
}

// newRun returns a run that has received nothing yet. systemAddr is the address of the external system.
func newRun(ctx context.Context, options Options, systemAddr string) *run {
	return &run{Options: options, system: systemAddr, inbox: make(chan func(), 256), done: ctx.Done(), ended: ctx.Err, findings: newFindings(options.ShiftClock != nil), ids: map[string]bool{}, tasks: map[int64]*task{}}
}

// runInLoop makes the goroutine of Run call do. After the end of Run, it does nothing.
func (r *run) runInLoop(do func()) {
	select {
	case r.inbox <- do:
	case <-r.done:
	}
}

func (r *run) isOver() bool { return r.fault != nil || r.ended() != nil }

// handleUntil handles reports and connections until isReached returns true, limit has passed, or the check cannot go on. It returns true if
// isReached returned true. answer answers the reports. If answer is nil, the reports are answered as by a server without tasks.
func (r *run) handleUntil(limit time.Duration, answer func(*exchange), isReached func() bool) (reached bool) {
	if r.answer = answer; answer == nil {
		r.answer = func(x *exchange) { r.sendReply(x, r.replyTo(x)) }
	}
	end := time.Now().Add(limit)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !r.isOver() {
		if isReached() {
			return true
		}
		select {
		case do := <-r.inbox:
			do()
		case now := <-ticker.C:
			if r.delayed != nil && now.After(r.delayedTo) {
				r.delayed()
				r.delayed = nil
			}
			if now.After(end) {
				return false
			}
			if r.last != nil && !r.isRebooting && now.Sub(r.last.at) > maxSilence {
				r.fault = fmt.Errorf("the device sent no report for %s; the scenario was: %s", maxSilence, r.scenario)
			}
		case <-r.done:
		}
	}
	return false
}

// handleFor handles reports and connections for duration. answer is as in handleUntil.
func (r *run) handleFor(duration time.Duration, answer func(*exchange)) {
	r.handleUntil(duration, answer, func() bool { return false })
}

// waitUntilIdle waits until the device runs no task and has no result of an earlier scenario left to send.
func (r *run) waitUntilIdle() {
	r.handleUntil(2*longEnough, nil, func() bool {
		for _, t := range r.tasks {
			if t.isInsideSystem() || t.isPending() && !t.isWithheld {
				return false
			}
		}
		return len(r.last.Running) == 0
	})
}

// replyTo returns the reply to report that a server without tasks would send. The reply acknowledges the results and renews the leases in
// report.
func (r *run) replyTo(report *exchange) answer {
	a := answer{Reply: devices.Reply{Reason: devices.ReasonNone, ReportAfterMS: replyPeriod.Milliseconds()}}
	for _, result := range report.Results {
		ack := devices.Ack{Task: result.Task, Token: result.Token, Outcome: devices.OutcomeUnknown}
		t := r.tasks[result.Token]
		if t != nil {
			ack.Outcome = t.outcome
		}
		if t == nil || !t.isWithheld {
			a.Acks = append(a.Acks, ack)
		}
	}
	for _, running := range report.Running {
		a.Reason = devices.ReasonBusy
		switch t := r.tasks[running.Token]; {
		case t == nil || time.Now().After(t.end.Add(longEnough)):
			a.Cancel = append(a.Cancel, devices.Cancel{Task: running.Task, Token: running.Token, Why: devices.CancelExpired})
		case !t.isLapsing:
			a.Renewed = append(a.Renewed, devices.Renewed{Task: t.ID, Token: t.Token, LeaseMS: t.LeaseMS})
			a.ReportAfterMS = t.reportAfter.Milliseconds()
		}
	}
	return a
}

// withGrant returns the reply a, with the grant of the task toGrant added.
func (a answer) withGrant(toGrant *task) answer {
	granted := toGrant.Task
	a.Task, a.Reason, a.ReportAfterMS = &granted, devices.ReasonGranted, toGrant.reportAfter.Milliseconds()
	toGrant.Redelivered++
	return a
}

// grant waits for a report without running tasks. Then it calls sendGrant with this report and the reply that grants toGrant. sendGrant must
// send the reply, for example by r.send.
func (r *run) grant(toGrant *task, sendGrant func(*exchange, answer)) {
	isGiven := false
	r.handleUntil(2*longEnough, func(x *exchange) {
		if isGiven || len(x.Running) > 0 || !x.Accept {
			r.sendReply(x, r.replyTo(x))
			return
		}
		isGiven = true
		sendGrant(x, r.replyTo(x).withGrant(toGrant))
	}, func() bool { return isGiven })
}

// grantAndWaitForResult grants toGrant with sendGrant, and waits for the result. If no result comes, the device has broken the rule named
// rule.
func (r *run) grantAndWaitForResult(toGrant *task, rule string, sendGrant func(*exchange, answer)) {
	r.grant(toGrant, sendGrant)
	r.handleUntil(longEnough, nil, toGrant.isEnded)
	r.check(rule, toGrant.isEnded(), nil, "task %d: no result within %s of its grant", toGrant.ID, longEnough)
}

func (r *run) sendReply(report *exchange, reply answer) {
	if report.transmit == nil {
		return
	}
	reply.Re = cmp.Or(reply.Re, report.ID)
	from := func(d time.Duration) time.Time { return time.Now().Add(d * 9 / 10) } // the clock of the device may be a little fast
	switch {
	case reply.isLost:
		r.pace = pace{}
	case reply.status != 0:
		r.pace = pace{map[int]string{413: "too-large-waits", 503: "refused-waits"}[reply.status], from(reply.after), true}
	default:
		r.recordReply(report, reply)
		r.pace = pace{"paced", from(time.Duration(reply.ReportAfterMS) * time.Millisecond), false}
	}
	report.transmit(reply)
	report.transmit = nil
}

// sendAfter returns a function that sends an answer to a report after delay.
func (r *run) sendAfter(delay time.Duration) (sendGrant func(*exchange, answer)) {
	return func(x *exchange, a answer) {
		r.delayedTo, r.delayed = time.Now().Add(delay), func() { r.sendReply(x, a) }
	}
}

// recordReply updates the tasks with the acknowledgements, renewals, cancels and the grant in reply, which answers report. A lease begins
// when report arrived, even if the reply is sent later.
func (r *run) recordReply(report *exchange, reply answer) {
	extend := func(t *task, leaseMS int64) {
		if end := report.at.Add(time.Duration(reply.HeldMS+leaseMS) * time.Millisecond); end.After(t.end) {
			t.end = end
		}
	}
	for _, ack := range reply.Acks {
		if t := r.tasks[ack.Token]; t != nil && !t.isAcked() {
			t.acked = time.Now()
		}
	}
	for _, renewed := range reply.Renewed {
		extend(r.tasks[renewed.Token], renewed.LeaseMS)
	}
	for _, cancel := range reply.Cancel {
		if t := r.tasks[cancel.Token]; t != nil && t.cancelled.IsZero() {
			t.cancelled = time.Now()
		}
	}
	if reply.Task != nil {
		t := r.tasks[reply.Task.Token]
		extend(t, reply.Task.LeaseMS)
		r.mayRepeat, t.isGrantRepeated = t.isPending() && !t.isGrantRepeated, t.isPending()
	}
}
