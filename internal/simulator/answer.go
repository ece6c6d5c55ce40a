package simulator

import (
	"context"
	"net/http"
	"time"
)

// maxDelay is the maximum of the random delay that a device adds to the time at which the server asked it to report.
// It is short because the server itself spreads the reports of devices.
const maxDelay = 50 * time.Millisecond

// receive handles a message from the link. A silent device ignores it.
func (d *device) receive(ctx context.Context, a linkMessage) {
	if d.silent {
		return
	}
	if a.garbage {
		d.countGarbageAnswer(a)
		return
	}
	s, wasSent := d.sent[a.id]
	switch {
	case wasSent && s.losesReplies: // the device loses this reply on purpose, and reports again after the re-send time
		return
	case a.kind == answered && a.id == "":
		d.handlePush(ctx, a.reply)
		return
	case a.kind == answered && !wasSent:
		d.fleet.count.add(&d.fleet.count.Dropped, grantCount(a.reply)) // the report was sent before the last reboot
		d.applyAcks(a.reply.Acks)
		return
	}
	switch a.kind {
	case answered:
		d.failures, d.forbiddenAnswers = 0, 0
		d.handleReply(ctx, s, a)
	case refused:
		d.handleRefusal(s)
	case forbidden:
		d.fleet.count.add(&d.fleet.count.Refused, 1)
		d.setNextReport(d.backoff(d.forbiddenAnswers, d.timing.forbidden, forbiddenMax))
		d.forbiddenAnswers++
	case failed:
		d.handleFailure(a.retryAfter)
	}
}

// countGarbageAnswer counts whether the server refused a malformed report, as it must. A server that is busy or has no ledger may answer with
// another error first, which counts as neither.
func (d *device) countGarbageAnswer(a linkMessage) {
	switch {
	case a.kind == refused || a.kind == forbidden:
		d.fleet.count.add(&d.fleet.count.GarbageRefused, 1)
	case a.kind == answered || a.status == http.StatusInternalServerError:
		d.fleet.count.add(&d.fleet.count.GarbageAccepted, 1)
	}
}

func grantCount(r reply) int64 {
	if r.Task == nil {
		return 0
	}
	return 1
}

// handlePush handles a message of the server that is not the answer to a report, such as a request
// to report now.
func (d *device) handlePush(ctx context.Context, r reply) {
	if r.Reason == reasonWake {
		d.woken = time.Now()
		d.report(ctx)
		return
	}
	d.fleet.count.add(&d.fleet.count.Dropped, grantCount(r))
	d.fleet.count.recordViolation(d.id, "reply without re")
}

// handleReply handles the reply to a report of this boot.
func (d *device) handleReply(ctx context.Context, s sentReport, a linkMessage) {
	r := a.reply
	d.fleet.count.countReply(r.Reason)
	for _, v := range r.violations(s.report) {
		d.fleet.count.recordViolation(d.id, v)
	}
	if s.secondBody != nil {
		d.post(ctx, outgoingReport{id: r.Re, body: s.secondBody})
		s.secondBody = nil
		d.sent[r.Re] = s
	}
	d.recordAnswer()
	dropped := d.applyAcks(r.Acks)
	d.renewLease(s, r)
	d.cancelTask(r.Cancel)
	resend := r.Task != nil && d.takeGrant(ctx, s, r)
	if d.job == nil && (resend || d.journal.hasUnreported() || d.journal.oneByOne && dropped > 0) {
		d.report(ctx)
		return
	}
	d.scheduleReport(s, a)
}

// recordAnswer records that the device has received its first answer, so that the server knows the
// device.
func (d *device) recordAnswer() {
	d.attributesSent = true
	if !d.everAnswered {
		d.everAnswered = true
		d.fleet.count.add(&d.fleet.count.Introduced, 1)
	}
}

// scheduleReport sets the time of the next report. A running task renews at half of its lease, or after resendWait if
// the reply did not renew it. An idle device reports at the time that the server asked for, or else when its report
// period ends. If the server held the answer (long poll), the device reports again at once.
func (d *device) scheduleReport(s sentReport, a linkMessage) {
	r := a.reply
	switch {
	case d.job != nil:
		wait := time.Until(d.job.lease.renewAt())
		if wait <= 0 && len(s.report.Running) > 0 {
			wait = d.resendWait()
		}
		d.setNextReport(wait)
	case d.timing.periodic:
		d.setNextReport(d.timing.period - time.Since(d.started)%d.timing.period)
	case r.ReportAfterMS > 0:
		wait := time.Duration(r.ReportAfterMS) * time.Millisecond
		d.setNextReport(d.dice.between(wait, wait+min(wait/20, maxDelay)))
	case a.held:
		d.setNextReport(d.dice.between(0, maxDelay))
	default:
		d.setNextReport(d.dice.around(d.timing.period))
	}
}

// applyAcks removes from the journal the results that acks acknowledge, and returns the number of
// removed results.
func (d *device) applyAcks(acks []ack) (dropped int) {
	for _, a := range acks {
		k := key{a.Task, a.Token}
		e := d.journal.find(k)
		if e == nil {
			continue // a repeated acknowledgement
		}
		d.journal.dropResult(k)
		d.fleet.results.recordOutcome(k, a.Outcome, !e.stripped)
		d.fleet.count.countOutcome(a.Outcome)
		dropped++
	}
	return dropped
}

func (d *device) renewLease(s sentReport, r reply) {
	for _, n := range r.Renewed {
		if d.isRunning(n.Task, n.Token) && d.job.lease.extend(s.at, leaseEnd(s, n.LeaseMS, r.HeldMS)) {
			d.fleet.count.add(&d.fleet.count.Renewals, 1)
		}
	}
}

// cancelTask stops the running task. Its end is reported at once.
func (d *device) cancelTask(notices []cancelled) {
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

// leaseEnd returns the end of a lease. The lease counts from the time at which the report s was
// first sent, plus the time heldMS for which the server held the answer.
func leaseEnd(s sentReport, leaseMS, heldMS int64) time.Time {
	return s.at.Add(time.Duration(leaseMS+heldMS) * time.Millisecond)
}

// takeGrant starts a granted task. It returns true if the task has already ended and its result must be sent again at
// once. For the same grant it returns true only once: otherwise the device would send a result that is never accepted
// again and again without a pause.
func (d *device) takeGrant(ctx context.Context, s sentReport, r reply) (resend bool) {
	until, k := leaseEnd(s, r.Task.LeaseMS, r.HeldMS), key{r.Task.ID, r.Task.Token}
	if d.fleet.results.recordedBefore(k, s.at) {
		d.fleet.count.recordViolation(d.id, "a grant was redelivered after its result was acknowledged as recorded")
	}
	switch {
	case d.isRunning(r.Task.ID, r.Task.Token):
		d.fleet.count.add(&d.fleet.count.Redeliveries, 1)
		d.job.lease.extend(s.at, until)
	case d.journal.find(k) != nil:
		d.fleet.count.add(&d.fleet.count.Redeliveries, 1)
		isFirst := d.redelivered != k
		d.redelivered = k
		return isFirst
	case d.job != nil || time.Until(until) < minUse || r.Task.Token <= d.highestToken:
		d.fleet.count.add(&d.fleet.count.Dropped, 1)
	default:
		d.startTask(ctx, s, r.Task, until)
	}
	return false
}

// startTask decides at random which faults the device has during the task, and starts the task.
func (d *device) startTask(ctx context.Context, s sentReport, g *grant, until time.Time) {
	j := &job{visit: visit{task: g.ID, token: g.Token, slot: g.Slot, device: d.id}, leases: d.fleet.leases}
	j.work = d.drawWork(g)
	switch {
	case d.dice.chance(d.fleet.config.Silent):
		d.fallSilent(j)
	case d.dice.chance(d.fleet.config.Gone):
		j.gone = true
		d.fallSilent(j)
	case d.dice.chance(d.fleet.config.Reboot):
		j.rebootAt = max(d.dice.between(j.work/10, j.work), 1)
	}
	d.job, d.highestToken = j, g.Token
	if d.fleet.results.hasResult(key{g.ID, g.Token}) {
		d.fleet.count.recordViolation(d.id, "a device started a task that it had ended")
	}
	d.fleet.results.recordStart(Start{Task: g.ID, Token: g.Token, Woken: s.woken, Asked: s.at, Granted: time.Now(), Gone: j.gone})
	d.fleet.count.add(&d.fleet.count.Grants, 1)
	d.fleet.count.add(&d.fleet.count.Working, 1)
	j.start(ctx, s.at, until, d.fleet.externalAddr(g.Pool))
}

func (d *device) fallSilent(j *job) {
	j.silent, d.silent = true, true
	d.fleet.count.add(&d.fleet.count.Silent, 1)
}

func (d *device) drawWork(g *grant) time.Duration {
	work, isSet := workTime(g.Payload)
	if !isSet {
		work = d.dice.around(d.timing.work)
	}
	if d.dice.chance(d.fleet.config.Slow) {
		l := time.Duration(g.LeaseMS) * time.Millisecond
		work = max(work, d.dice.between(l*6/10, l*15/10))
	}
	return work
}

// handleRefusal handles the refusal of a whole report. The device never sends the same bytes again.
func (d *device) handleRefusal(s sentReport) {
	d.fleet.count.add(&d.fleet.count.Refused, 1)
	if e := d.journal.refuse(s.report.Results); e != nil {
		d.fleet.count.add(&d.fleet.count.Discarded, 1)
		d.fleet.results.recordOutcome(e.key, "discarded", false)
	}
	d.waitAfterFailure(0)
}

// handleFailure handles a report without a usable answer. Its results stay in the journal, and a running task continues.
func (d *device) handleFailure(wait time.Duration) {
	d.fleet.count.add(&d.fleet.count.Errors, 1)
	d.waitAfterFailure(wait)
}

// waitAfterFailure waits as long as the server asked, or else with a backoff up to the period.
func (d *device) waitAfterFailure(wait time.Duration) {
	if wait <= 0 {
		wait = d.backoff(d.failures, d.timing.retry, max(d.timing.period, d.timing.retry))
	}
	d.failures++
	d.setNextReport(wait)
}

// backoff returns a wait that doubles with failures from first up to limit, with full jitter.
func (d *device) backoff(failures int, first, limit time.Duration) time.Duration {
	wait := limit
	if failures < maxDoublings {
		wait = min(first<<failures, limit)
	}
	return d.dice.between(0, wait) + time.Millisecond
}
