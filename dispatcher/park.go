package dispatcher

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const (
	parkAgain = 250 * time.Millisecond // a device whose wait is over comes again within this
	elsewhere = 5 * time.Second        // and after the end of its replica within this
)

// Wait is HandleReport for a device that lets an answer without a task wait.
// Results are committed before, and acknowledged with the answer. onPark is
// called when the waiting begins: no place of reports under way is taken from
// then on, and the answer comes within wait and devices.AnswerAfterWait. held says whether
// the device may have waited: with false there was no room for it.
//
// The wait ends with a grant, with what waiting does not change, with ctx
// (nobody is there any more, and nothing is granted), with a newer report of the
// device, and with StopWaiting.
func (d *Dispatcher) Wait(ctx context.Context, caller devices.Caller, report devices.Report, wait time.Duration, onPark func()) (reply devices.Reply, held bool, err error) {
	p := waiters.NewPark(string(caller.Device), wait)
	defer d.Waiters.Parks.Leave(p)
	h, err := d.handle(ctx, caller, report, p)
	if err != nil {
		return devices.Reply{}, false, err
	}
	held = h.park != nil
	if held && h.mayChange() {
		held = d.wait(ctx, h, onPark)
	}
	switch {
	case h.reply.Task != nil && d.Waiters.Parks.Leave(p) == waiters.Superseded:
		d.redirect(ctx, h)
	case h.reply.Task == nil && h.park != nil && ctx.Err() != nil:
		d.Waiters.Departed(p)
	}
	d.metrics.denied(h)
	return h.reply, held, nil
}

// redirect: nobody may hear the answer of an older report. The newer one may
// have been looked at before the grant, and wait: it is to find it.
func (d *Dispatcher) redirect(ctx context.Context, h *handling) {
	if err := d.Waiters.WakeParked(context.WithoutCancel(ctx), []parked.Call{{Device: string(h.caller.Device)}}); err != nil {
		d.log.WarnContext(ctx, "a grant waits for the next report of its device", "err", err)
	}
}

// mayChange says whether waiting can bring a task. A device that gets a credential is
// to have it at once.
func (h *handling) mayChange() bool {
	return decision.RefusalOf(h.reply.Reason).Parks && h.reply.Task == nil && h.reply.Credential == ""
}

// wait holds the answer. It returns false when the report cannot be the newest
// of its device: then it is answered at once.
func (d *Dispatcher) wait(ctx context.Context, h *handling, onPark func()) bool {
	if err := d.Waiters.Park(ctx, h.park, h.park.Wait+devices.AnswerAfterWait); err != nil {
		d.log.WarnContext(ctx, "report not parked", "err", err)
		return false
	}
	onPark()
	h.shrink()
	began := d.config.Now()
	timer := time.NewTimer(h.park.Wait)
	defer timer.Stop()
	for last := false; ; {
		select {
		case <-ctx.Done():
			return true
		case <-timer.C:
			last = true
		case <-h.park.Signal():
		}
		// As of before the look: the lease of a grant begins after that.
		h.reply.HeldMS = d.config.Now().Sub(began).Milliseconds()
		ending, call := d.Waiters.Parks.Look(h.park)
		if ending != waiters.Parked {
			d.endWait(h, ending)
			return true
		}
		if call.Called && d.lookFromPark(ctx, h, call) {
			return true
		}
		if last {
			d.endWait(h, waiters.Parked)
			return true
		}
	}
}

// pace lets the queue of a pool expect a parked report no sooner than its wait
// is over: it is there all the time.
func (h *handling) pace(pace slots.Pace) slots.Pace {
	if h.park != nil {
		pace.Period = max(pace.Period, h.park.Wait)
	}
	return pace
}

// shrink lets go what a parked report does not need: there are many.
func (h *handling) shrink() {
	h.waitsIn = h.oldestPool()
	h.report = devices.Report{ID: h.report.ID, Accept: h.report.Accept}
	h.view, h.mentioned = store.View{}, nil
}

// endWait is the answer when nothing was granted.
func (d *Dispatcher) endWait(h *handling, why waiters.Ending) {
	switch why {
	case waiters.Superseded:
		d.refuse(h, decision.Choice{Reason: devices.ReasonNone})
	case waiters.Stopping:
		h.reply.ReportAfterMS = int64(d.config.Jitter() * float64(elsewhere.Milliseconds()))
	default:
		h.reply.ReportAfterMS = int64(d.config.Jitter() * float64(parkAgain.Milliseconds()))
	}
}

// lookFromPark decides again. It returns false when the report waits on.
func (d *Dispatcher) lookFromPark(ctx context.Context, h *handling, call waiters.Call) (final bool) {
	done, ok := d.Waiters.Parks.Turn(ctx)
	if !ok {
		return true
	}
	defer done()
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), handleLimit)
	defer cancel()
	defer h.shrink()
	h.turn, h.waitsIn, h.nonce = 0, "", nonce()
	h.steps = d.Waiters.StepsOf(work, call.Since)
	h.steps.Done("called", call.At)
	h.steps.Done("woken", d.config.Now())
	switch admitted, err := d.admittedStill(work, h); {
	case err != nil:
		d.cannotConfirm(h, err)
		return true
	case !admitted:
		d.refuse(h, decision.Choice{Reason: devices.ReasonNone}) // the next report is told why
		return true
	case ctx.Err() != nil: // the device is gone
		return true
	}
	h.steps.Done("read", d.config.Now())
	h.offered = call.Pools()
	d.nextTask(work, h)
	if t := h.reply.Task; t != nil && t.Pool == call.Pool && !call.Since.IsZero() {
		d.Waiters.HandedOn(call.Pool, d.config.Now().Sub(call.Since))
		h.steps.Say(d.config.Logger, call.Pool, "park")
	}
	return !h.mayChange()
}

// admittedStill looks again, and says whether the device may report as it did.
func (d *Dispatcher) admittedStill(ctx context.Context, h *handling) (bool, error) {
	if err := d.lookAgain(ctx, h); err != nil {
		return false, err
	}
	return d.Devices.AdmitStill(ctx, h.caller, h.view) //nolint:wrapcheck // the registry's own
}
