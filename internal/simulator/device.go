package simulator

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strconv"
	"time"
)

// maxSent is the maximum number of sent reports that a device remembers since its last boot.
const maxSent = 128

// maxSilence is longer than any server keeps a slot after the end of the device's lease.
const maxSilence = 20 * time.Second

// Limits of the waits that double after each failure.
const (
	forbiddenFactor = 600 // the first wait after a forbidden report (see answerKind), in units of Config.FirstRetry
	forbiddenMax    = 6 * time.Hour
	maxDoublings    = 20 // maximum number of doublings; no wait needs more
)

// device is one simulated device. Only the goroutine of run may use its state.
type device struct {
	fleet *Fleet
	id    string
	link  serverLink
	kind  Via
	dice  dice

	inbox        chan linkMessage
	timer        *time.Timer // fires at the time of the next report
	journal      journal
	started      time.Time // a periodic device reports at this time plus whole periods
	everAnswered bool      // has received an answer
	memory
}

// memory is the part of a device's state that a reboot clears.
type memory struct {
	boot             string
	woken            time.Time // when a push requested a report; zero without a push
	sequence         int
	sent             map[string]sentReport
	attributesSent   bool // the server has received the attributes of this boot
	job              *runningTask
	highestToken     int64    // highest token of a started task; a grant with a token that is not higher is outdated
	redelivered      grantKey // the last grant that was redelivered while its result was in the journal
	silent           bool     // silent until the next reboot
	failures         int      // consecutive failures
	forbiddenAnswers int      // consecutive forbidden reports
}

type sentReport struct {
	at           time.Time     // when it was first sent
	woken        time.Time     // when the push that requested the report arrived; zero without a push
	holdTime     time.Duration // how long the server may hold the answer; 0 means not at all
	report       report
	secondBody   []byte // the body to send a second time after the first reply; nil means not at all
	losesReplies bool   // the device ignores the replies to this report, as if they were lost
	number       int
}

// run simulates the device until ctx ends and the device has left the external system.
func (d *device) run(ctx context.Context, firstReport time.Duration) {
	d.inbox = make(chan linkMessage, 4)
	d.started = time.Now().Add(firstReport)
	d.timer = time.NewTimer(firstReport)
	defer d.timer.Stop()
	select {
	case <-d.timer.C:
	case <-ctx.Done():
		return
	}
	defer d.link.open(ctx, d.inbox)()
	d.setNextReport(0)
	d.reboot()
	for {
		select {
		case <-ctx.Done():
			d.shutdown()
			return
		case <-d.timer.C:
			d.onReportTime(ctx)
		case a := <-d.inbox:
			d.receive(ctx, a)
		case e := <-d.taskEndChannel():
			d.fleet.count.recordOverstay(e.late)
			d.handleTaskEnd(ctx, e.cause)
		}
	}
}

func (d *device) taskEndChannel() <-chan taskEnd {
	if d.job == nil {
		return nil
	}
	return d.job.done
}

// shutdown waits until the device has left the external system.
func (d *device) shutdown() {
	if d.job != nil {
		<-d.job.done // the context of the task ended with the context of the device
		d.fleet.count.add(&d.fleet.count.Working, -1)
		d.job = nil
	}
}

// reboot clears the state of the device except the journal.
func (d *device) reboot() {
	d.memory = memory{boot: strconv.FormatInt(time.Now().UnixNano(), 36), sent: map[string]sentReport{}, highestToken: d.journal.highestToken()}
}

// onReportTime is called when the device's timer for the next report fires.
func (d *device) onReportTime(ctx context.Context) {
	switch {
	case d.silent && d.job != nil: // a silent device at work does not report
		return
	case d.silent:
		d.reboot()
	}
	d.sendReport(ctx)
}

// sendReport sends a report with the pending results and the running task. If no answer comes, the device reports again after resendWait.
func (d *device) sendReport(ctx context.Context) {
	if d.dice.happens(d.fleet.config.Garbage) {
		d.fleet.count.add(&d.fleet.count.GarbageSent, 1)
		d.sendOverLink(ctx, outgoingReport{body: d.dice.newMalformedReport()})
	}
	d.sequence++
	r := report{ID: d.boot + "-" + strconv.Itoa(d.sequence), Results: d.journal.nextResults()}
	if d.job != nil {
		r.Running = []running{{Task: d.job.task, Token: d.job.token, Progress: d.job.progress()}}
	}
	if !d.attributesSent {
		r.Attributes = json.RawMessage(`{"firmware":"simulator"}`)
	}
	s := sentReport{at: time.Now(), woken: d.woken, report: r, number: d.sequence, losesReplies: d.dice.happens(d.fleet.config.LostReplies)}
	d.woken = time.Time{}
	if d.kind == ViaLongPoll && d.job == nil && len(r.Results) == 0 { // a held answer would delay the outcome of a result
		s.holdTime = longPollWait
	}
	p := outgoingReport{id: r.ID, body: r.encode(), holdTime: s.holdTime}
	if s.losesReplies {
		d.fleet.count.add(&d.fleet.count.LostReplies, 1)
		p.closeEarly = d.dice.happens(0.5)
	}
	copies := 0
	if d.dice.happens(d.fleet.config.Duplicate) {
		if copies = d.dice.IntN(2); copies == 0 {
			s.secondBody = p.body
		}
	}
	d.rememberSent(r.ID, s)
	for range 1 + copies {
		d.sendOverLink(ctx, p)
	}
	d.setNextReport(s.holdTime + d.resendWait())
}

func (d *device) sendOverLink(ctx context.Context, outgoing outgoingReport) {
	d.fleet.count.add(&d.fleet.count.Reports, 1)
	d.link.send(ctx, outgoing, d.inbox)
}

// rememberSent records a report that was sent, under its id, and forgets old ones.
func (d *device) rememberSent(id string, sent sentReport) {
	d.sent[id] = sent
	if len(d.sent) > maxSent {
		maps.DeleteFunc(d.sent, func(_ string, old sentReport) bool { return old.number <= sent.number-maxSent/2 })
	}
}

// resendWait returns how long to wait for a reply before the report is sent again. While a task runs, the wait is at most
// half of the remaining lease, but at least minUse.
func (d *device) resendWait() time.Duration {
	wait := d.dice.randomBetween(d.fleet.config.ResendAfter, 3*d.fleet.config.ResendAfter)
	if d.job != nil {
		wait = min(wait, max(d.job.lease.remaining()/2, minUse))
	}
	return wait
}

func (d *device) setNextReport(wait time.Duration) { d.timer.Reset(max(wait, 0)) }

// handleTaskEnd handles the end of the running task, after the device has left the external system. cause is nil if the
// work was completed.
func (d *device) handleTaskEnd(ctx context.Context, cause error) {
	j := d.job
	d.job = nil
	d.fleet.count.add(&d.fleet.count.Working, -1)
	if errors.Is(cause, errLeaseOver) {
		d.fleet.count.add(&d.fleet.count.LeasesEnded, 1)
	}
	switch {
	case ctx.Err() != nil:
	case errors.Is(cause, errRebooted):
		d.fleet.count.add(&d.fleet.count.Reboots, 1)
		d.reboot()
		d.setNextReport(d.dice.randomAround(d.fleet.config.FirstRetry))
	case j.silent:
		d.scheduleRebootAfterSilence(j)
	default:
		d.recordResult(j, cause)
		d.sendReport(ctx)
	}
}

// scheduleRebootAfterSilence schedules a reboot of the silent device for a time at which its grant must have ended. With the probability
// Faults.Late, the journal then contains the result of the task. A device that is gone never reports again.
func (d *device) scheduleRebootAfterSilence(task *runningTask) {
	if task.gone {
		d.timer.Stop()
		return
	}
	if d.dice.happens(d.fleet.config.Late) {
		d.recordResult(task, nil)
	}
	d.setNextReport(min(task.lease.length(), maxSilence) + d.dice.randomAround(d.fleet.config.Period))
}

// recordResult writes the result of a task into the journal. cause is the reason why the task ended.
func (d *device) recordResult(task *runningTask, cause error) {
	e := &journalEntry{grantKey: grantKey{task.task, task.token}, status: statusSucceeded}
	if cause == nil {
		e.output = d.dice.randomOutput(task.task, time.Since(task.started))
	} else {
		e.status, e.err = statusFailed, cause.Error()
	}
	d.journal.add(e)
	d.fleet.results.add(e)
	d.fleet.count.add(&d.fleet.count.Results, 1)
}
