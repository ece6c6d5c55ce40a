package dispatcher

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const (
	maxDelayAfterPark = 250 * time.Millisecond // a device whose wait ended without a task reports again within this time
	maxDelayAfterStop = 5 * time.Second        // a device whose replica stops reports again within this time
)

// HandleWaiting handles a report as HandleReport does, but lets an answer without a task wait for at most wait.
// Results are committed before the wait, and acknowledged in the answer. HandleWaiting calls onPark when the wait
// begins: from then on the report does not count as in progress, and the answer comes within wait plus
// devices.AnswerAfterWait. couldWait reports whether the answer could wait, even if it was given at once. It is false if there
// was no room, or if Redis did not confirm that the report is the newest of its device.
//
// The wait ends with a grant, with a refusal that waiting cannot change, with the end of ctx (the device is
// gone, and nothing is granted), with a newer report of the device, or with the stop of this process.
func (d *Dispatcher) HandleWaiting(ctx context.Context, caller devices.Caller, report devices.Report, wait time.Duration, onPark func()) (reply devices.Reply, couldWait bool, err error) {
	h, couldWait, err := d.handleWithWait(ctx, caller, report, wait, onPark)
	if err != nil {
		return devices.Reply{}, false, err
	}
	return h.reply, couldWait, nil
}

// handleWithWait does the work of HandleWaiting, and returns the handling of the report.
func (d *Dispatcher) handleWithWait(ctx context.Context, caller devices.Caller, report devices.Report, wait time.Duration, onPark func()) (handling *reportHandling, couldWait bool, err error) {
	park := waiters.NewParkedReport(string(caller.Device), wait)
	defer d.Waiters.Parks.Leave(park)
	handling, err = d.handle(ctx, caller, report, park)
	if err != nil {
		return nil, false, err
	}
	couldWait = handling.reporter.park != nil
	if couldWait && handling.mayWait() {
		couldWait = (&parkedHandling{d: d, h: handling, park: park}).holdAnswer(ctx, onPark)
	}
	switch {
	case handling.reply.Task != nil:
		d.leaveWithTask(ctx, handling, park)
	case handling.reply.Task == nil && handling.reporter.park != nil && ctx.Err() != nil:
		d.Waiters.Departures.Add(park)
	}
	d.metrics.countDenial(handling)
	return handling, couldWait, nil
}

// leaveWithTask ends the wait of a report that got a task. It gives back an offer that came too late for the decision, because no other
// part of the dispatcher knows that this report was notified of the offer.
func (d *Dispatcher) leaveWithTask(ctx context.Context, h *reportHandling, park *waiters.ParkedReport) {
	if d.Waiters.Parks.Leave(park) == waiters.Superseded {
		h.reporter.wakeNewer(ctx)
	}
	_, unread := d.Waiters.Parks.Poll(park)
	d.Waiters.Offers.Update(park.Device, slots.WaiterPassedOver, unread.Offered)
}

// mayWait reports whether the answer may wait because the device may still get a task. An answer with a credential is sent at once. If
// policies may drop more tasks of the device, the answer does not wait either: the device reports again soon.
func (h *reportHandling) mayWait() bool {
	if h.mayHaveMoreDrops && h.reply.Reason == devices.ReasonLimited {
		return false
	}
	return decision.WaitRuleFor(h.reply.Reason).MayPark && h.reply.Task == nil && h.reply.Credential == ""
}

// parkedHandling is a report whose answer waits for a task. Whenever it is woken, it makes another attempt.
type parkedHandling struct {
	d    *Dispatcher
	h    *reportHandling
	park *waiters.ParkedReport
}

// holdAnswer holds the answer back until the wait ends, and calls onPark when the wait begins. It returns false at once if Redis did not
// confirm that the report is the newest of its device. Then the caller answers the report without a wait.
func (p *parkedHandling) holdAnswer(ctx context.Context, onPark func()) bool {
	if err := p.d.Waiters.Relay.Park(ctx, p.park, p.park.Wait+devices.AnswerAfterWait); err != nil {
		p.d.log.WarnContext(ctx, "report not parked", "err", err)
		return false
	}
	seen, began := p.h.reporter.seenAt(), p.d.config.Now()
	p.h.reporter.recordParked(seen)
	onPark()
	p.shrink()
	timer, period := time.NewTimer(p.park.Wait), time.NewTicker(p.d.config.ReportPeriod)
	defer timer.Stop()
	defer period.Stop()
	for last := false; ; {
		select {
		case <-ctx.Done():
			return true
		case <-timer.C:
			last = true
		case <-period.C:
			p.h.reporter.recordParked(seen.Add(p.d.config.Now().Sub(began)))
			continue
		case <-p.park.Signal():
		}
		// This is measured before the attempt, because the lease of a grant begins later.
		p.h.reply.HeldMS = p.d.config.Now().Sub(began).Milliseconds()
		state, wake := p.d.Waiters.Parks.Poll(p.park)
		if state != waiters.Parked {
			p.endWait(state)
			return true
		}
		if wake.Woken && p.attemptAgain(ctx, wake) {
			return true
		}
		if last {
			p.endWait(waiters.Parked)
			return true
		}
	}
}

// shrink drops the data of the report that another attempt does not need. This saves memory, because many reports are parked.
func (p *parkedHandling) shrink() {
	p.h.report = devices.Report{ID: p.h.report.ID, Accept: p.h.report.Accept}
	p.h.mentioned = nil
	p.h.reporter.storedPool, p.h.reporter.view = p.h.reporter.oldestPool(), store.DeviceView{}
}

// endWait writes the answer of a report that was granted nothing. state is the reason for which Parks ended the wait, or Parked if the wait
// ended for another reason.
func (p *parkedHandling) endWait(state waiters.WaitState) {
	switch state {
	case waiters.Superseded:
		p.h.refuse(decision.Choice{Reason: devices.ReasonNone}, 0)
	case waiters.Stopping:
		p.h.reply.ReportAfterMS = int64(p.d.config.Jitter() * float64(maxDelayAfterStop.Milliseconds()))
	default:
		p.h.reply.ReportAfterMS = int64(p.d.config.Jitter() * float64(maxDelayAfterPark.Milliseconds()))
	}
}

// attemptAgain makes another attempt to get the device a task, after the report was woken by wake. final is false if the report continues
// to wait.
func (p *parkedHandling) attemptAgain(ctx context.Context, wake waiters.WakeCall) (final bool) {
	done, ok := p.d.Waiters.Parks.BeginDecision(ctx)
	if !ok {
		return true
	}
	defer done()
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), handleLimit)
	defer cancel()
	defer p.shrink()
	p.h.reporter.storedPool = ""
	steps := p.d.Waiters.Handoffs.Steps(work, wake.FreedAt)
	steps.Done("called", wake.WokenAt)
	steps.Done("woken", p.d.config.Now())
	switch admitted, err := p.h.reporter.isStillAdmitted(work); {
	case err != nil:
		p.d.log.WarnContext(ctx, "nothing granted because of an error", "err", err)
		p.h.refuse(decision.Choice{Reason: devices.ReasonUnavailable}, 0)
		return true
	case !admitted:
		p.h.refuse(decision.Choice{Reason: devices.ReasonNone}, 0) // the next report is refused with the reason
		return true
	case ctx.Err() != nil: // the device is gone
		return true
	}
	steps.Done("read", p.d.config.Now())
	p.h.tryNextTask(work, wake.Offered, steps)
	if t := p.h.reply.Task; t != nil && t.Pool == wake.Pool && !wake.FreedAt.IsZero() {
		p.d.Waiters.Handoffs.Record(wake.Pool, p.d.config.Now().Sub(wake.FreedAt))
		steps.Log(wake.Pool, "park")
	}
	if !p.h.mayWait() {
		return true
	}
	p.h.reporter.recordParked(p.h.reporter.seenAt())
	return false
}
