package check

import (
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// playTask grants a task. The reply asks for the next report late, so that the check can tell whether the device sends the result at once.
func playTask(r *run) {
	t := r.newTask(taskPlan{reportAfter: 6 * time.Second})
	if r.grantAndWaitForResult(t, "starts", r.sendReply); t.isEnded() && t.isStarted {
		late := t.reported.Sub(t.left)
		r.check("report-at-once", late < promptly, nil, "the result of task %d arrived %s after its end", t.ID, late.Round(time.Millisecond))
	}
	r.handleFor(2*replyPeriod, nil) // time for the device to remove the acknowledged result
}

// playUnknownValues answers with unknown reasons, fields and outcomes.
func playUnknownValues(r *run) {
	t := r.newTask(taskPlan{})
	t.outcome = "postponed"
	sendUnknown := func(x *exchange, a answer) {
		if a.hasUnknown = true; a.Task == nil {
			a.Reason = "snowed_in"
		}
		r.sendReply(x, a)
	}
	answerUnknown := func(x *exchange) { sendUnknown(x, r.replyTo(x)) }
	r.handleFor(2*replyPeriod, answerUnknown)
	r.grantAndWaitForResult(t, "unknown-ignored", sendUnknown)
	r.handleFor(2*replyPeriod, answerUnknown)
}

// playLargeReply grants a task with the largest payload.
func playLargeReply(r *run) {
	const others = 120 // bytes of the members besides the padding
	r.grantAndWaitForResult(r.newTask(taskPlan{padding: 32<<10 - others}), "large-reply", r.sendReply)
}

// playLostReplies drops the reply with the grant, and then several successive replies that acknowledge the result.
func playLostReplies(r *run) {
	const losses, least = 5, 200 * time.Millisecond // the sum of four random pauses is below least in only one of 10,000 runs
	t := r.newTask(taskPlan{})
	r.grant(t, func(x *exchange, _ answer) { r.sendReply(x, answer{isLost: true}) })
	r.grant(t, r.sendReply)
	lost := 0
	r.handleUntil(2*longEnough, func(x *exchange) {
		if x.resultOf(t) == nil || lost == losses {
			r.sendReply(x, r.replyTo(x))
			return
		}
		lost++
		r.sendReply(x, answer{isLost: true})
	}, t.isAcked)
	r.check("lost-reply", t.isAcked(), nil, "task %d: its grant was sent again, and no result came with an answer", t.ID)
	if total := r.last.at.Sub(t.reported); t.isAcked() {
		r.check("pause", total >= least, nil, "%d reports within %s, although each connection broke", losses+1, total.Round(time.Millisecond))
	}
}

// playBusyServer refuses a report while a task runs, and two reports with a result.
func playBusyServer(r *run) {
	const status, after = http.StatusServiceUnavailable, 3 * time.Second
	t := r.newTask(taskPlan{seconds: 4})
	atWork, withResult := []answer{{status: status, after: replyPeriod}}, []answer{{status: status, after: after, isBare: true}, {status: status, after: after}}
	r.grant(t, r.sendReply)
	r.handleUntil(2*longEnough, func(x *exchange) {
		switch {
		case x.listsAsRunning(t) && len(atWork) > 0:
			r.sendReply(x, atWork[0])
			atWork = nil
		case x.resultOf(t) != nil && len(withResult) > 0:
			r.sendReply(x, withResult[0])
			withResult = withResult[1:]
		default:
			r.sendReply(x, r.replyTo(x))
		}
	}, t.isAcked)
	if atWork == nil && t.isEnded() {
		r.check("refused-continues", t.result.Status == devices.StatusSucceeded, nil, "task %d ended with %q after a report was refused while it ran", t.ID, t.result.Status)
	}
}

// playReportTooLarge refuses a report with two results as too large. Then it refuses one of the results until the device drops that result. A
// device whose journal holds one result does not start the second task.
func playReportTooLarge(r *run) {
	bad, good := r.newTask(taskPlan{output: 500}), r.newTask(taskPlan{output: 500})
	for _, t := range []*task{bad, good} {
		t.isWithheld = true
		r.grant(t, r.sendReply)
		r.handleUntil(longEnough/2, nil, t.isEnded)
	}
	if bad.result.Output == nil { // the device does not run the lab task, which has an output
		bad.isWithheld, good.isWithheld = false, false
		return
	}
	together, alone, without := 0, 0, 0 // refused reports: with both results, with one, with one without output
	refuse := func(x *exchange, count *int, isRight bool, fault string) {
		r.check("too-large", isRight, x, "%s", fault)
		*count++
		r.sendReply(x, answer{status: http.StatusRequestEntityTooLarge, after: replyPeriod})
	}
	r.handleUntil(2*longEnough, func(x *exchange) {
		switch result := x.resultOf(bad); {
		case len(x.Results) > 1:
			refuse(x, &together, together == 0, "the device sent its results together again")
		case result == nil || without > 0:
			good.isWithheld = good.isWithheld && x.resultOf(good) == nil
			r.check("too-large", result == nil, x, "the device did not drop the result that was refused without output")
			r.sendReply(x, r.replyTo(x))
		case result.Output != nil:
			refuse(x, &alone, alone == 0, "the device sent the result again with its output")
		default:
			refuse(x, &without, alone > 0, "the device dropped the output before the result was refused alone")
		}
	}, func() bool {
		return without > 0 && good.isAcked() == good.isEnded() && len(r.last.Results) == 0
	})
	r.check("too-large", without == 1, nil, "refused reports: %d with both results, %d with one, %d with one without output", together, alone, without)
}

// playNoReply leaves the first report with a result without a reply.
func playNoReply(r *run) {
	const timeout, spread, latency = 10 * time.Second, 20 * time.Second, 5 * time.Second
	t := r.newTask(taskPlan{})
	var silent *exchange
	r.grant(t, r.sendReply)
	r.handleUntil(2*maxSilence, func(x *exchange) {
		if silent == nil && x.resultOf(t) != nil {
			silent, r.pace = x, pace{}
			return
		}
		r.sendReply(x, r.replyTo(x))
	}, func() bool { return silent != nil && r.last != silent })
	if silent != nil {
		waited, from := r.last.at.Sub(silent.at), silent.wait+timeout
		r.check("no-reply", waited >= from*9/10 && waited <= from+spread+latency, silent, "the next report came %s after this report, which got no reply", waited.Round(time.Millisecond))
	}
}
