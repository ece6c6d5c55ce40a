package simulator

import (
	"context"
	"net/http"
	"time"
)

// maxDelay is the largest delay that a device adds to the time that the server asked for: the server spreads devices itself.
const maxDelay = 50 * time.Millisecond

// receive handles an arrival. A silent device ignores it.
func (d *device) receive(ctx context.Context, a arrival) {
	if d.quiet {
		return
	}
	if a.garbage {
		d.judgeGarbage(a)
		return
	}
	s, known := d.sent[a.id]
	switch {
	case known && s.deaf: // the reply counts as lost; the device reports again after the re-send time
		return
	case a.verdict == answered && a.id == "":
		d.push(ctx, a.reply)
		return
	case a.verdict == answered && !known:
		d.fleet.count.add(&d.fleet.count.Dropped, grants(a.reply)) // the report was sent by another boot
		d.settle(a.reply.Acks)
		return
	}
	switch a.verdict {
	case answered:
		d.failures, d.forbids = 0, 0
		d.answer(ctx, s, a)
	case refused:
		d.refused(s)
	case forbidden:
		d.fleet.count.add(&d.fleet.count.Refused, 1)
		d.after(d.backoff(d.forbids, d.manners.forbidden, forbiddenMax))
		d.forbids++
	case failed:
		d.failed(a.wait)
	}
}

// judgeGarbage counts whether the server refused a malformed report, as it must. A server that is busy or has no ledger may answer with
// another error first, which counts as neither.
func (d *device) judgeGarbage(a arrival) {
	switch {
	case a.verdict == refused || a.verdict == forbidden:
		d.fleet.count.add(&d.fleet.count.GarbageRefused, 1)
	case a.verdict == answered || a.status == http.StatusInternalServerError:
		d.fleet.count.add(&d.fleet.count.GarbageAccepted, 1)
	}
}

func grants(r reply) int64 {
	if r.Task == nil {
		return 0
	}
	return 1
}

// push handles a message that does not answer a report.
func (d *device) push(ctx context.Context, r reply) {
	if r.Reason == reasonWake {
		d.woken = time.Now()
		d.report(ctx)
		return
	}
	d.fleet.count.add(&d.fleet.count.Dropped, grants(r))
	d.fleet.count.violation(d.id, "reply without re")
}

// answer handles the reply to a report of this boot.
func (d *device) answer(ctx context.Context, s sent, a arrival) {
	r := a.reply
	d.fleet.count.replied(r.Reason)
	for _, v := range r.violations(s.report) {
		d.fleet.count.violation(d.id, v)
	}
	if s.again != nil {
		d.post(ctx, parcel{id: r.Re, body: s.again})
		s.again = nil
		d.sent[r.Re] = s
	}
	d.meet()
	settled := d.settle(r.Acks)
	d.renew(s, r)
	d.cancel(r.Cancel)
	again := r.Task != nil && d.take(ctx, s, r)
	if d.job == nil && (again || d.journal.fresh() || d.journal.alone && settled > 0) {
		d.report(ctx)
		return
	}
	d.schedule(s, a)
}

// meet records that the server knows the device.
func (d *device) meet() {
	d.introduced = true
	if !d.met {
		d.met = true
		d.fleet.count.add(&d.fleet.count.Introduced, 1)
	}
}

// schedule sets the time of the next report. A running task renews at half of its lease, or after resendWait if the reply did not renew it.
// An idle device reports when the server asked it to, or when its period ends, or asks at once to be held again.
func (d *device) schedule(s sent, a arrival) {
	r := a.reply
	switch {
	case d.job != nil:
		wait := time.Until(d.job.lease.half())
		if wait <= 0 && len(s.report.Running) > 0 {
			wait = d.resendWait()
		}
		d.after(wait)
	case d.manners.periodic:
		d.after(d.manners.period - time.Since(d.started)%d.manners.period)
	case r.ReportAfterMS > 0:
		wait := time.Duration(r.ReportAfterMS) * time.Millisecond
		d.after(d.dice.between(wait, wait+min(wait/20, maxDelay)))
	case a.held:
		d.after(d.dice.between(0, maxDelay))
	default:
		d.after(d.dice.around(d.manners.period))
	}
}

// settle drops the results with an outcome in acks, and returns how many it dropped.
func (d *device) settle(acks []ack) (settled int) {
	for _, a := range acks {
		k := key{a.Task, a.Token}
		e := d.journal.find(k)
		if e == nil {
			continue // a repeated acknowledgement
		}
		d.journal.settle(k)
		d.fleet.ledger.settle(k, a.Outcome, !e.stripped)
		d.fleet.count.outcome(a.Outcome)
		settled++
	}
	return settled
}

func (d *device) renew(s sent, r reply) {
	for _, n := range r.Renewed {
		if d.runs(n.Task, n.Token) && d.job.lease.extend(s.at, leaseEnd(s, n.LeaseMS, r.HeldMS)) {
			d.fleet.count.add(&d.fleet.count.Renewals, 1)
		}
	}
}

// cancel stops the running task. Its end is reported at once.
func (d *device) cancel(notices []cancelled) {
	for _, n := range notices {
		if d.runs(n.Task, n.Token) {
			d.fleet.count.add(&d.fleet.count.Cancels, 1)
			d.job.stop(errCancelled)
		}
	}
}

func (d *device) runs(task, token int64) bool {
	return d.job != nil && d.job.task == task && d.job.token == token
}

// leaseEnd returns the end of a lease that counts from when its report was first sent.
func leaseEnd(s sent, leaseMS, heldMS int64) time.Time {
	return s.at.Add(time.Duration(leaseMS+heldMS) * time.Millisecond)
}

// take starts a granted task. It returns true if the task has already ended, so that its result must be sent again at once. It does so only
// the first time: otherwise a result that is never accepted would be sent without a pause.
func (d *device) take(ctx context.Context, s sent, r reply) (resend bool) {
	until, k := leaseEnd(s, r.Task.LeaseMS, r.HeldMS), key{r.Task.ID, r.Task.Token}
	if d.fleet.ledger.recordedBefore(k, s.at) {
		d.fleet.count.violation(d.id, "a grant came again after its result was acknowledged as recorded")
	}
	switch {
	case d.runs(r.Task.ID, r.Task.Token):
		d.fleet.count.add(&d.fleet.count.Redeliveries, 1)
		d.job.lease.extend(s.at, until)
	case d.journal.find(k) != nil:
		d.fleet.count.add(&d.fleet.count.Redeliveries, 1)
		first := d.told != k
		d.told = k
		return first
	case d.job != nil || time.Until(until) < minUse || r.Task.Token <= d.top:
		d.fleet.count.add(&d.fleet.count.Dropped, 1)
	default:
		d.begin(ctx, s, r.Task, until)
	}
	return false
}

// begin draws the faults of the task, and starts it.
func (d *device) begin(ctx context.Context, s sent, g *grant, until time.Time) {
	j := &job{visit: visit{task: g.ID, token: g.Token, slot: g.Slot, device: d.id}, leases: d.fleet.leases}
	j.work = d.workFor(g)
	switch {
	case d.dice.chance(d.fleet.config.Silent):
		d.fallSilent(j)
	case d.dice.chance(d.fleet.config.Gone):
		j.gone = true
		d.fallSilent(j)
	case d.dice.chance(d.fleet.config.Reboot):
		j.rebootAt = max(d.dice.between(j.work/10, j.work), 1)
	}
	d.job, d.top = j, g.Token
	if d.fleet.ledger.ended(key{g.ID, g.Token}) {
		d.fleet.count.violation(d.id, "a device started what it had ended")
	}
	d.fleet.ledger.began(Start{Task: g.ID, Token: g.Token, Woken: s.woken, Asked: s.at, Granted: time.Now(), Gone: j.gone})
	d.fleet.count.add(&d.fleet.count.Grants, 1)
	d.fleet.count.add(&d.fleet.count.Working, 1)
	j.start(ctx, s.at, until, d.fleet.systemOf(g.Pool))
}

func (d *device) fallSilent(j *job) {
	j.silent, d.quiet = true, true
	d.fleet.count.add(&d.fleet.count.Silent, 1)
}

func (d *device) workFor(g *grant) time.Duration {
	work, asked := workTime(g.Payload)
	if !asked {
		work = d.dice.around(d.manners.work)
	}
	if d.dice.chance(d.fleet.config.Slow) {
		l := time.Duration(g.LeaseMS) * time.Millisecond
		work = max(work, d.dice.between(l*6/10, l*15/10))
	}
	return work
}

// refused handles a report that was refused: the same bytes are never sent again.
func (d *device) refused(s sent) {
	d.fleet.count.add(&d.fleet.count.Refused, 1)
	if e := d.journal.refuse(s.report.Results); e != nil {
		d.fleet.count.add(&d.fleet.count.Discarded, 1)
		d.fleet.ledger.settle(e.key, "discarded", false)
	}
	d.pause(0)
}

// failed handles a report without a usable answer. Its results stay in the journal, and a running task continues.
func (d *device) failed(wait time.Duration) {
	d.fleet.count.add(&d.fleet.count.Errors, 1)
	d.pause(wait)
}

// pause waits as long as the server asked, or else with a backoff up to the period.
func (d *device) pause(wait time.Duration) {
	if wait <= 0 {
		wait = d.backoff(d.failures, d.manners.retry, max(d.manners.period, d.manners.retry))
	}
	d.failures++
	d.after(wait)
}

// backoff returns a wait that doubles with times from first up to limit, with full jitter.
func (d *device) backoff(times int, first, limit time.Duration) time.Duration {
	wait := limit
	if times < fullyDoubled {
		wait = min(first<<times, limit)
	}
	return d.dice.between(0, wait) + time.Millisecond
}
