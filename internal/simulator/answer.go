package simulator

import (
	"context"
	"net/http"
	"time"
)

// maxDelay is the maximum of the random delay that a device adds to the time of its next report. A short delay is enough, because the
// server already spreads the reports.
const maxDelay = 50 * time.Millisecond

// receive handles a message from the link to the server. A silent device ignores it.
func (d *device) receive(ctx context.Context, message linkMessage) {
	if d.silent {
		return
	}
	if message.garbage {
		d.countMalformedReportAnswer(message)
		return
	}
	s, wasSent := d.sent[message.id]
	switch {
	case wasSent && s.losesReplies: // the device loses this reply on purpose, and reports again after the re-send time
		return
	case message.kind == answered && message.id == "":
		d.handlePush(ctx, message.reply)
		return
	case message.kind == answered && !wasSent:
		d.countUnusedGrant(message.reply) // the report was sent before the last reboot
		d.removeAcknowledgedResults(message.reply.Acks)
		return
	}
	switch message.kind {
	case answered:
		d.failures, d.forbiddenAnswers = 0, 0
		d.handleReply(ctx, s, message)
	case refused:
		d.handleRefusal(s)
	case forbidden:
		d.fleet.count.add(&d.fleet.count.Refused, 1)
		d.setNextReport(d.randomBackoff(d.forbiddenAnswers, forbiddenFactor*d.fleet.config.FirstRetry, forbiddenMax))
		d.forbiddenAnswers++
	case failed:
		d.handleFailure(message.retryAfter)
	}
}

// countMalformedReportAnswer counts the answer to a malformed report: whether the server refused the report. It does not count
// the errors of a server that is busy or has no ledger.
func (d *device) countMalformedReportAnswer(message linkMessage) {
	switch {
	case message.kind == refused || message.kind == forbidden:
		d.fleet.count.add(&d.fleet.count.GarbageRefused, 1)
	case message.kind == answered || message.status == http.StatusInternalServerError:
		d.fleet.count.add(&d.fleet.count.GarbageAccepted, 1)
	}
}

// countUnusedGrant counts the grant in answer as a grant that the device does not use. It does nothing if answer contains no grant.
func (d *device) countUnusedGrant(answer reply) {
	if answer.Task != nil {
		d.fleet.count.add(&d.fleet.count.Dropped, 1)
	}
}

// handlePush handles a message that answers no report, such as the request to report now.
func (d *device) handlePush(ctx context.Context, pushed reply) {
	if pushed.Reason == reasonWake {
		d.woken = time.Now()
		d.sendReport(ctx)
		return
	}
	d.countUnusedGrant(pushed)
	d.fleet.count.recordViolation(d.id, "reply without re")
}

// handleReply handles the reply to a report that the device sent since its last reboot.
func (d *device) handleReply(ctx context.Context, sent sentReport, message linkMessage) {
	r := message.reply
	d.fleet.count.countReply(r.Reason)
	for _, v := range r.listViolations(sent.report) {
		d.fleet.count.recordViolation(d.id, v)
	}
	if sent.secondBody != nil {
		d.sendOverLink(ctx, outgoingReport{id: r.Re, body: sent.secondBody})
		sent.secondBody = nil
		d.sent[r.Re] = sent
	}
	d.recordReportAnswered()
	dropped := d.removeAcknowledgedResults(r.Acks)
	d.renewLease(sent, r)
	d.cancelTask(r.Cancel)
	resend := r.Task != nil && d.takeGrant(ctx, sent, r)
	if d.job == nil && (resend || d.journal.hasUnreportedResults() || d.journal.oneByOne && dropped > 0) {
		d.sendReport(ctx)
		return
	}
	d.scheduleReport(sent, message)
}

// recordReportAnswered records that the server has answered a report, and so knows the attributes of the device.
func (d *device) recordReportAnswered() {
	d.attributesSent = true
	if !d.everAnswered {
		d.everAnswered = true
		d.fleet.count.add(&d.fleet.count.Introduced, 1)
	}
}

// scheduleReport sets the time of the next report after a reply. While a task runs, the device reports to renew the
// lease, when half of the lease has passed. If this reply did not renew the lease, the device reports again after
// resendWait. After a held reply (long poll) without report_after_ms, the device reports at once.
func (d *device) scheduleReport(sent sentReport, message linkMessage) {
	r := message.reply
	switch {
	case d.job != nil:
		wait := time.Until(d.job.lease.renewalTime())
		if wait <= 0 && len(sent.report.Running) > 0 {
			wait = d.resendWait()
		}
		d.setNextReport(wait)
	case d.kind == ViaPeriodic:
		d.setNextReport(d.fleet.config.Period - time.Since(d.started)%d.fleet.config.Period)
	case r.ReportAfterMS > 0:
		wait := time.Duration(r.ReportAfterMS) * time.Millisecond
		d.setNextReport(d.dice.randomBetween(wait, wait+min(wait/20, maxDelay)))
	case message.held:
		d.setNextReport(d.dice.randomBetween(0, maxDelay))
	default:
		d.setNextReport(d.dice.randomAround(d.fleet.config.Period))
	}
}

// removeAcknowledgedResults removes the acknowledged results from the journal and returns their number.
func (d *device) removeAcknowledgedResults(acks []ack) (removed int) {
	for _, a := range acks {
		k := grantKey{a.Task, a.Token}
		e := d.journal.findResult(k)
		if e == nil {
			continue // a repeated acknowledgement
		}
		d.journal.dropResult(k)
		d.fleet.results.recordOutcome(k, a.Outcome, !e.stripped)
		d.fleet.count.countOutcome(a.Outcome)
		removed++
	}
	return removed
}

// renewLease extends the lease of the running task if the answer renews it.
func (d *device) renewLease(sent sentReport, answer reply) {
	for _, n := range answer.Renewed {
		if d.isRunning(n.Task, n.Token) && d.job.lease.extend(sent.at, leaseEnd(sent, n.LeaseMS, answer.HeldMS)) {
			d.fleet.count.add(&d.fleet.count.Renewals, 1)
		}
	}
}

// cancelTask stops the running task if notices contain the task. The device then reports at once that the task has ended.
func (d *device) cancelTask(notices []cancelNotice) {
	for _, n := range notices {
		if d.isRunning(n.Task, n.Token) {
			d.fleet.count.add(&d.fleet.count.Cancels, 1)
			d.job.stop(errCancelled)
		}
	}
}

func (d *device) isRunning(task, token int64) bool {
	return d.job != nil && d.job.task == task && d.job.token == token
}

// leaseEnd returns the end of a lease of leaseMS. The lease begins heldMS after the report was first sent, because the server held the
// answer for heldMS.
func leaseEnd(sent sentReport, leaseMS, heldMS int64) time.Time {
	return sent.at.Add(time.Duration(leaseMS+heldMS) * time.Millisecond)
}

// takeGrant starts the granted task. mustResend is true if the journal already contains the result of this grant, so that the
// device must send the result again at once. mustResend is true only once for each grant: otherwise a result that the server
// never accepts would be sent without pause.
func (d *device) takeGrant(ctx context.Context, sent sentReport, answer reply) (mustResend bool) {
	until, k := leaseEnd(sent, answer.Task.LeaseMS, answer.HeldMS), grantKey{answer.Task.ID, answer.Task.Token}
	if d.fleet.results.wasRecordedBefore(k, sent.at) {
		d.fleet.count.recordViolation(d.id, "a grant was redelivered after its result was acknowledged as recorded")
	}
	switch {
	case d.isRunning(answer.Task.ID, answer.Task.Token):
		d.fleet.count.add(&d.fleet.count.Redeliveries, 1)
		d.job.lease.extend(sent.at, until)
	case d.journal.findResult(k) != nil:
		d.fleet.count.add(&d.fleet.count.Redeliveries, 1)
		isFirst := d.redelivered != k
		d.redelivered = k
		return isFirst
	case d.job != nil || time.Until(until) < minUse || answer.Task.Token <= d.highestToken:
		d.fleet.count.add(&d.fleet.count.Dropped, 1)
	default:
		d.startTask(ctx, sent, answer.Task, until)
	}
	return false
}

// startTask decides at random which faults the device has during the granted task, and starts the task.
func (d *device) startTask(ctx context.Context, sent sentReport, granted *grant, leaseUntil time.Time) {
	j := &runningTask{visit: visit{task: granted.ID, token: granted.Token, slot: granted.Slot, device: d.id}, leases: d.fleet.leases}
	j.work = d.randomWorkTime(granted)
	switch {
	case d.dice.happens(d.fleet.config.Silent):
		d.becomeSilent(j)
	case d.dice.happens(d.fleet.config.Gone):
		j.gone = true
		d.becomeSilent(j)
	case d.dice.happens(d.fleet.config.Reboot):
		j.rebootAt = max(d.dice.randomBetween(j.work/10, j.work), 1)
	}
	d.job, d.highestToken = j, granted.Token
	if d.fleet.results.hasResult(grantKey{granted.ID, granted.Token}) {
		d.fleet.count.recordViolation(d.id, "a device started a task that it had ended")
	}
	d.fleet.results.recordStart(Start{Task: granted.ID, Token: granted.Token, Woken: sent.woken, Asked: sent.at, Granted: time.Now(), Gone: j.gone})
	d.fleet.count.add(&d.fleet.count.Grants, 1)
	d.fleet.count.add(&d.fleet.count.Working, 1)
	j.start(ctx, sent.at, leaseUntil, d.fleet.externalAddr(granted.Pool))
}

// becomeSilent makes the device silent: it keeps the slot of its task, and sends no report before the reboot that ends the silence.
func (d *device) becomeSilent(task *runningTask) {
	task.silent, d.silent = true, true
	d.fleet.count.add(&d.fleet.count.Silent, 1)
}

func (d *device) randomWorkTime(granted *grant) time.Duration {
	work, isSet := parseWorkTime(granted.Payload)
	if !isSet {
		work = d.dice.randomAround(d.fleet.config.Work)
	}
	if d.dice.happens(d.fleet.config.Slow) {
		l := time.Duration(granted.LeaseMS) * time.Millisecond
		work = max(work, d.dice.randomBetween(l*6/10, l*15/10))
	}
	return work
}

// handleRefusal handles an answer that refuses the whole report. sent is this report. The device never sends the same bytes again.
func (d *device) handleRefusal(sent sentReport) {
	d.fleet.count.add(&d.fleet.count.Refused, 1)
	if e := d.journal.handleRefusedResults(sent.report.Results); e != nil {
		d.fleet.count.add(&d.fleet.count.Discarded, 1)
		d.fleet.results.recordOutcome(e.grantKey, "discarded", false)
	}
	d.waitAfterFailure(0)
}

// handleFailure handles a report without a usable answer. The results stay in the journal, and a running task continues.
func (d *device) handleFailure(serverWait time.Duration) {
	d.fleet.count.add(&d.fleet.count.Errors, 1)
	d.waitAfterFailure(serverWait)
}

// waitAfterFailure schedules the next report after serverWait. If serverWait is 0, it chooses a backoff of at most one
// report period.
func (d *device) waitAfterFailure(serverWait time.Duration) {
	if serverWait <= 0 {
		serverWait = d.randomBackoff(d.failures, d.fleet.config.FirstRetry, max(d.fleet.config.Period, d.fleet.config.FirstRetry))
	}
	d.failures++
	d.setNextReport(serverWait)
}

// randomBackoff returns a random wait. The maximum of the wait is firstMax, doubled for each earlier consecutive failure, but at most
// `limit`.
func (d *device) randomBackoff(failures int, firstMax, limit time.Duration) time.Duration {
	wait := limit
	if failures < maxDoublings {
		wait = min(firstMax<<failures, limit)
	}
	return d.dice.randomBetween(0, wait) + time.Millisecond
}
