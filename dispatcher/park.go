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

// HandleWaiting handles a report as HandleReport does, but delays an answer without a task by at most wait. It commits results before the
// wait. It calls onPark when the wait begins. The answer comes within wait plus devices.AnswerAfterWait. The transport names wait to its client
// (Preference-Applied), so only the transport may limit wait. couldWait is false if there was no room to park the report, if the limit of
// lookups was reached, or if Redis did not confirm that the report is the newest of its device.
//
// The wait ends when the device gets a grant, when waiting cannot change the refusal, when ctx ends (nothing is granted), when the device
// sends a newer report, or when this process stops.
func (d *Dispatcher) HandleWaiting(ctx context.Context, caller devices.Caller, report devices.Report, wait time.Duration, onPark func()) (reply devices.Reply, couldWait bool, err error) {
	h, couldWait, err := d.handleWithWait(ctx, caller, report, wait, onPark)
	if err != nil {
		return devices.Reply{}, false, err
	}
	return h.reply, couldWait, nil
}

func (d *Dispatcher) handleWithWait(ctx context.Context, caller devices.Caller, report devices.Report, wait time.Duration, onPark func()) (handling *reportHandling, couldWait bool, err error) {
	park := waiters.NewParkedReport(string(caller.Device), wait)
	defer d.Waiters.ParkedReports.Leave(park)
	handling, err = d.handleReport(ctx, caller, report, park)
	if err != nil {
		return nil, false, err
	}
	couldWait = handling.reporter.park != nil
	if couldWait && handling.mayWait() {
		couldWait = handling.delayAnswer(ctx, onPark)
	}
	switch {
	case handling.reply.Task != nil:
		d.endParkedWaitWithTask(ctx, handling, park)
	case handling.reply.Task == nil && handling.reporter.park != nil && ctx.Err() != nil:
		d.Waiters.Departures.AddClosedReport(park)
	}
	d.metrics.countDenial(handling)
	return handling, couldWait, nil
}

// endParkedWaitWithTask ends the wait of a report that got a task. If an offer arrived after the decision, endParkedWaitWithTask gives it back.
func (d *Dispatcher) endParkedWaitWithTask(ctx context.Context, handling *reportHandling, parkedReport *waiters.ParkedReport) {
	if d.Waiters.ParkedReports.Leave(parkedReport) == waiters.Superseded {
		handling.reporter.wakeNewerReport(ctx)
	}
	_, unread := d.Waiters.ParkedReports.Poll(parkedReport)
	d.Waiters.Offers.SendDeviceUpdate(parkedReport.Device, slots.WaiterPassedOver, unread.Offered)
}

// mayWait reports whether the answer may be delayed, because the device may still get a task. It returns false for an answer with a
// credential, and if policies may drop more tasks of the device.
func (h *reportHandling) mayWait() bool {
	if h.mayHaveMoreDrops && h.reply.Reason == devices.ReasonLimited {
		return false
	}
	return decision.WaitRuleFor(h.reply.Reason).MayPark && h.reply.Task == nil && h.reply.Credential == ""
}

// delayAnswer delays the answer until the wait ends, and returns true. If Redis does not confirm that the report is the newest of its
// device, it returns false at once, and the report is answered without a wait.
func (h *reportHandling) delayAnswer(ctx context.Context, onPark func()) (delayed bool) {
	park := h.reporter.park
	if err := h.d.Waiters.Relay.Park(ctx, park, park.Wait+devices.AnswerAfterWait); err != nil {
		h.d.log.WarnContext(ctx, "report not parked", "err", err)
		return false
	}
	seen, began := h.reporter.seenAt(), h.d.config.Now()
	h.reporter.recordParked(seen)
	onPark()
	h.dropUnneededData()
	timer, period := time.NewTimer(park.Wait), time.NewTicker(h.d.config.ReportPeriod)
	defer timer.Stop()
	defer period.Stop()
	for last := false; ; {
		select {
		case <-ctx.Done():
			return true
		case <-timer.C:
			last = true
		case <-period.C:
			h.reporter.recordParked(seen.Add(h.d.config.Now().Sub(began)))
			continue
		case <-park.Signal():
		}
		// HeldMS is measured before the next attempt, because the lease of a new grant begins during that attempt.
		h.reply.HeldMS = h.d.config.Now().Sub(began).Milliseconds()
		state, wake := h.d.Waiters.ParkedReports.Poll(park)
		if state != waiters.Parked {
			h.endWaitWithoutTask(state)
			return true
		}
		if wake.Woken && h.tryToGrantAgain(ctx, wake) {
			return true
		}
		if last {
			h.endWaitWithoutTask(waiters.Parked)
			return true
		}
	}
}

// dropUnneededData drops the data that a later attempt does not need. It saves memory, because many reports are parked at the same time.
func (h *reportHandling) dropUnneededData() {
	h.report = devices.Report{ID: h.report.ID, Accept: h.report.Accept}
	h.mentioned = nil
	h.reporter.storedPool, h.reporter.view = h.reporter.poolOfOldestBatch(), store.DeviceView{}
}

// endWaitWithoutTask writes the answer of a parked report that got no task. state says why the wait ended. The state Parked means that the
// maximum wait has passed. Unless the report is superseded, the reply keeps the reason of the last decision, because a new decision would read
// the ledger at the end of every wait.
func (h *reportHandling) endWaitWithoutTask(state waiters.WaitState) {
	switch state {
	case waiters.Superseded:
		h.replyWithoutTask(decision.Choice{Reason: devices.ReasonNone}, 0)
	case waiters.Stopping:
		h.reply.ReportAfterMS = int64(h.d.config.Jitter() * float64(maxDelayAfterStop.Milliseconds()))
	default:
		h.reply.ReportAfterMS = int64(h.d.config.Jitter() * float64(maxDelayAfterPark.Milliseconds()))
	}
}

// tryToGrantAgain makes another attempt after a message, wake, has arrived. If mustAnswerNow is true, the answer must be sent now. Otherwise the
// report stays parked.
func (h *reportHandling) tryToGrantAgain(ctx context.Context, wake waiters.WakeCall) (mustAnswerNow bool) {
	done, ok := h.d.Waiters.ParkedReports.BeginDecision(ctx)
	if !ok {
		return true
	}
	defer done()
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), handleLimit)
	defer cancel()
	defer h.dropUnneededData()
	steps := h.d.Waiters.Handoffs.NewSteps(work, wake.FreedAt)
	steps.RecordStep("called", wake.WokenAt)
	steps.RecordStep("woken", h.d.config.Now())
	switch admitted, err := h.reporter.isStillAdmitted(work); {
	case err != nil:
		h.d.log.WarnContext(ctx, "nothing granted because of an error", "err", err)
		h.replyWithoutTask(decision.Choice{Reason: devices.ReasonUnavailable}, 0)
		return true
	case !admitted:
		h.replyWithoutTask(decision.Choice{Reason: devices.ReasonNone}, 0) // the reply to the next report says why the sender is no longer admitted
		return true
	case ctx.Err() != nil: // the device is gone
		return true
	}
	steps.RecordStep("read", h.d.config.Now())
	h.tryToGrantNextTask(work, wake.Offered, steps)
	if t := h.reply.Task; t != nil && t.Pool == wake.Pool && !wake.FreedAt.IsZero() {
		h.d.Waiters.Handoffs.RecordDuration(wake.Pool, h.d.config.Now().Sub(wake.FreedAt))
		steps.WriteToLog(wake.Pool, "park")
	}
	if !h.mayWait() {
		return true
	}
	h.reporter.recordParked(h.reporter.seenAt())
	return false
}
