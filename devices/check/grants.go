package check

import (
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

// playRepeatedGrant sends the same grant again in three situations: while the task runs, when the device has the result, and after the
// result was acknowledged.
func playRepeatedGrant(r *run) {
	const repeats = 4 // replies with the grant instead of the outcome
	t := r.newTask(taskPlan{seconds: 3})
	t.isWithheld = true
	reports := 0 // number of reports with the result
	grantAgain := func(x *exchange) {
		if x.resultOf(t) != nil {
			reports++
		}
		t.isWithheld = reports < repeats
		r.sendReply(x, r.replyTo(x).withGrant(t))
	}
	r.grant(t, r.sendReply)
	r.handleUntil(2*longEnough, grantAgain, t.isAcked)
	if r.handleFor(3*replyPeriod, grantAgain); t.isEnded() {
		r.check("started-once", true, nil, "") // keeps the failure that a second start has recorded
	}
}

// checkForbiddenStart calls sendGrant with the grant of toGrant, which the device must not start because of rule. When the duration `wait`
// has passed, it checks that the device has not started the task.
func (r *run) checkForbiddenStart(toGrant *task, rule string, wait time.Duration, sendGrant func(*exchange, answer)) {
	toGrant.forbidden, toGrant.leaseRule = rule, rule
	r.grant(toGrant, sendGrant)
	r.handleFor(wait, nil)
	r.check(rule, true, nil, "") // keeps the failure that a start of the task has recorded
	if toGrant.forbidden = ""; !toGrant.isStarted && rule != "old-token" {
		r.grantAndWaitForResult(toGrant, "lost-reply", r.sendReply) // the same grant in an ordinary reply
	}
}

// playOldToken grants a task whose token is lower than the token of the previous task.
func playOldToken(r *run) {
	newer, t := r.newTask(taskPlan{}), r.newTask(taskPlan{})
	r.grantAndWaitForResult(newer, "starts", r.sendReply)
	delete(r.tasks, t.Token)
	t.Token = newer.Token - 1
	r.tasks[t.Token] = t
	if newer.isStarted { // a device that did not start the newer task may not know its token
		r.checkForbiddenStart(t, "old-token", 3*replyPeriod, r.sendReply)
	}
}

// playUnsentReport answers with a grant that names a report which the device never sent.
func playUnsentReport(r *run) {
	r.checkForbiddenStart(r.newTask(taskPlan{}), "unsent-report", 2*replyPeriod, func(x *exchange, a answer) {
		a.Re = "never-sent-1"
		r.sendReply(x, a)
	})
}

// playLateGrant sends a grant after its lease has ended.
func playLateGrant(r *run) {
	const delay = 4 * time.Second
	r.checkForbiddenStart(r.newTask(taskPlan{lease: 2 * time.Second}), "late-grant", delay+2*replyPeriod, r.sendAfter(delay))
}

// playParkedReport parks a report for longer than the lease that its answer grants.
func playParkedReport(r *run) {
	const parked = 3 * time.Second
	t := r.newTask(taskPlan{lease: 2 * time.Second})
	t.leaseRule = "held"
	r.grantAndWaitForResult(t, "held", func(x *exchange, a answer) {
		a.HeldMS = parked.Milliseconds()
		r.sendAfter(parked)(x, a)
	})
}

func playCancel(r *run) {
	t := r.newTask(taskPlan{seconds: 25, lease: longEnough, reportAfter: 3 * replyPeriod / 2})
	r.grant(t, r.sendReply)
	r.handleUntil(longEnough, func(x *exchange) {
		a := r.replyTo(x)
		if x.listsAsRunning(t) && t.cancelled.IsZero() {
			a.Renewed, a.Cancel = nil, []devices.Cancel{{Task: t.ID, Token: t.Token, Why: devices.CancelCancelled}}
		}
		r.sendReply(x, a)
	}, t.isEnded)
	if limit := t.cancelled.Add(promptly); !t.cancelled.IsZero() {
		r.check("cancel", t.isEnded() && t.left.Before(limit) && t.reported.Before(limit), nil,
			"task %d: within %s after the cancel, the device did not leave the external system and send a result", t.ID, promptly)
	}
}

// playRenewals runs a task that takes longer than its lease. The replies ask for the next report only after the lease has ended. So the
// device must report earlier by itself, to renew the lease.
func playRenewals(r *run) {
	const mostReports = 10 // a correct device needs 4
	t := r.newTask(taskPlan{seconds: 9, lease: 4 * time.Second, reportAfter: time.Minute})
	reports := 0
	r.grant(t, r.sendReply)
	r.handleUntil(2*longEnough, func(x *exchange) {
		if x.listsAsRunning(t) {
			reports++
		}
		r.sendReply(x, r.replyTo(x))
	}, t.isEnded)
	if t.isStarted && t.isEnded() {
		r.check("renews", t.result.Status == devices.StatusSucceeded && reports <= mostReports, nil,
			"%d reports listed task %d, each renewed its lease, and the result is %q", reports, t.ID, t.result.Status)
	}
}

// playLeaseEnd lets a lease end while the task runs.
func playLeaseEnd(r *run) {
	r.checkWorkEndsWithLease(5*time.Second, "lease-end", r.sendReply, func() {})
}

// playSlowReply sends a grant late, but within its lease, and lets the lease end.
func playSlowReply(r *run) {
	r.checkWorkEndsWithLease(7*time.Second, "lease-start", r.sendAfter(4*time.Second), func() {})
}

// playClockSetBack lets a lease end after the wall clock of the device was set back.
func playClockSetBack(r *run) {
	r.checkWorkEndsWithLease(7*time.Second, "clock", r.sendReply, func() { r.startDeviceChange("the clock of the device", r.ShiftClock) })
}

// checkWorkEndsWithLease calls sendGrant with the grant of a task that takes longer than its lease, and does not renew the lease. It calls
// onStart when the device has started the task.
func (r *run) checkWorkEndsWithLease(lease time.Duration, rule string, sendGrant func(*exchange, answer), onStart func()) {
	t := r.newTask(taskPlan{seconds: 40, lease: lease})
	t.leaseRule, t.isLapsing = rule, true
	r.grant(t, sendGrant)
	r.handleUntil(longEnough, nil, func() bool { return t.isStarted || t.isEnded() })
	if !t.isStarted {
		return
	}
	onStart()
	r.handleUntil(lease+longEnough, nil, t.isEnded)
	early := t.end.Sub(t.reported)
	r.check(rule, t.isEnded() && -early < promptly, nil, "task %d: the device did not leave the external system and send a result within %s after the end of the lease", t.ID, promptly)
	if !t.isEnded() {
		return
	}
	r.check("continues", early < 2*time.Second, nil, "task %d: the result arrived %s before the end of the lease", t.ID, early.Round(time.Millisecond))
}

// startDeviceChange starts change, a function that changes the device. *isDone becomes true when change has ended. If change fails, the check
// ends. subject names the change in the error.
func (r *run) startDeviceChange(subject string, change func() error) (isDone *bool) {
	isDone = new(bool)
	rescue.Async(func() error {
		err := change()
		r.runInLoop(func() {
			if *isDone = true; err != nil {
				r.fault = fmt.Errorf("%s: %w", subject, err)
			}
		})
		return nil
	})
	return isDone
}

// rebootDevice reboots the device, and waits until it has reported again. answerFirst answers the first report after the reboot.
func (r *run) rebootDevice(answerFirst func(*exchange)) {
	const commandLimit, bootLimit = time.Hour, 5 * time.Minute // a person may carry out the command
	isDone := r.startDeviceChange("the reboot of the device", r.Reboot)
	r.isRebooting, r.pace = true, pace{}
	r.handleUntil(commandLimit, func(x *exchange) { r.sendReply(x, answer{isLost: true}) }, func() bool { return *isDone })
	for _, t := range r.tasks {
		if t.isInsideSystem() { // a device without power closes no connection
			t.left = time.Now()
		}
	}
	r.boot++
	before := r.last
	r.handleUntil(bootLimit, answerFirst, func() bool { return r.last != before })
	r.isRebooting = false
}

// playRebootAtWork reboots the device while a task runs. If the device does not report after the reboot that the task failed, it gets the
// same grant again, now with a short task.
func playRebootAtWork(r *run) {
	t := r.newTask(taskPlan{seconds: 600, lease: 20 * time.Minute})
	r.grant(t, r.sendReply)
	if !r.handleUntil(longEnough, nil, func() bool { return t.isStarted }) {
		return
	}
	before := t.starts
	r.rebootDevice(func(x *exchange) {
		a := r.replyTo(x)
		if !t.isEnded() {
			t.Payload = r.payload(taskPlan{seconds: 1})
			a = a.withGrant(t)
		}
		r.sendReply(x, a)
	})
	r.handleUntil(longEnough, nil, t.isEnded)
	r.check("reboot-restart", t.isEnded(), nil, "task %d: neither failed nor started again within %s after its grant was sent again", t.ID, longEnough)
	r.check("reboot-restart", t.result.Status != devices.StatusSucceeded || before == 0 || t.starts > before, nil, "task %d: succeeded, but was not started again after the reboot", t.ID)
}

// playRebootWithResult reboots the device after the device has reported a result and before this report is answered. Then it sends the
// grant again.
func playRebootWithResult(r *run) {
	t := r.newTask(taskPlan{lease: 20 * time.Minute})
	t.isWithheld = true
	r.grant(t, r.sendReply)
	if !r.handleUntil(longEnough, func(x *exchange) {
		if x.resultOf(t) == nil {
			r.sendReply(x, r.replyTo(x))
		}
	}, t.isEnded) {
		return
	}
	r.rebootDevice(func(x *exchange) {
		kept := x.resultOf(t)
		r.check("reboot-journal", kept != nil && kept.Status == t.result.Status, x, "the first report after the reboot lacks the result %q of task %d, which got no outcome", t.result.Status, t.ID)
		r.sendReply(x, r.replyTo(x).withGrant(t)) // the device has the result, and must not start the task
	})
	t.isWithheld = false
	r.handleUntil(longEnough, nil, t.isAcked)
}
