package dispatcher

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/store"
)

const (
	parkAgain = 250 * time.Millisecond // a device whose wait is over comes again within this
	elsewhere = 5 * time.Second        // and after the end of its replica within this
)

// Wait is HandleReport for a device that lets an answer without a task wait.
// Results are committed before, and acknowledged with the answer. onPark is
// called when the waiting begins: the report no longer counts among those under way from
// then on, and the answer comes within wait and devices.AnswerAfterWait. held says whether
// the device may have waited: with false there was no room for it.
//
// The wait ends with a grant, with what waiting does not change, with ctx
// (nobody is there any more, and nothing is granted), with a newer report of the
// device, and with StopWaiting.
func (d *Dispatcher) Wait(ctx context.Context, caller devices.Caller, report devices.Report, wait time.Duration, onPark func()) (reply devices.Reply, held bool, err error) {
	h, held, err := d.wait(ctx, caller, report, wait, onPark)
	if err != nil {
		return devices.Reply{}, false, err
	}
	return h.reply, held, nil
}

// wait is Wait, and returns the whole handling of the report.
func (d *Dispatcher) wait(ctx context.Context, caller devices.Caller, report devices.Report, wait time.Duration, onPark func()) (h *handling, held bool, err error) {
	p := waiters.NewPark(string(caller.Device), wait)
	defer d.Waiters.Parks.Leave(p)
	h, err = d.handle(ctx, caller, report, p)
	if err != nil {
		return nil, false, err
	}
	held = h.park != nil
	if held && h.mayChange() {
		held = h.wait(ctx, onPark)
	}
	switch {
	case h.reply.Task != nil && d.Waiters.Parks.Leave(p) == waiters.Superseded:
		h.redirect(ctx)
	case h.reply.Task == nil && h.park != nil && ctx.Err() != nil:
		d.Waiters.Departures.Add(p)
	}
	d.metrics.denied(h)
	return h, held, nil
}

// redirect: nobody may hear the answer of an older report. The newer one may
// have been looked at before the grant, and wait: it is to find it.
func (h *handling) redirect(ctx context.Context) {
	if _, err := h.d.Waiters.Relay.Wake(context.WithoutCancel(ctx), []parked.Call{{Device: string(h.caller.Device)}}); err != nil {
		h.d.log.WarnContext(ctx, "a grant waits for the next report of its device", "err", err)
	}
}

// mayChange says whether waiting can bring a task. A device that gets a credential is
// to have it at once; one with tasks that are yet to be suppressed comes back soon.
func (h *handling) mayChange() bool {
	if h.tried.more && h.reply.Reason == devices.ReasonLimited {
		return false
	}
	return decision.WaitingOf(h.reply.Reason).Parks && h.reply.Task == nil && h.reply.Credential == ""
}

// wait holds the answer. It returns false when the report cannot be the newest
// of its device: then it is answered at once.
func (h *handling) wait(ctx context.Context, onPark func()) bool {
	if err := h.d.Waiters.Relay.Park(ctx, h.park, h.park.Wait+devices.AnswerAfterWait); err != nil {
		h.d.log.WarnContext(ctx, "report not parked", "err", err)
		return false
	}
	seen, began := h.seeing(), h.d.config.Now()
	h.markParked(seen)
	onPark()
	h.shrink()
	timer, period := time.NewTimer(h.park.Wait), time.NewTicker(h.d.config.ReportPeriod)
	defer timer.Stop()
	defer period.Stop()
	for last := false; ; {
		select {
		case <-ctx.Done():
			return true
		case <-timer.C:
			last = true
		case <-period.C:
			h.markParked(seen.Add(h.d.config.Now().Sub(began)))
			continue
		case <-h.park.Signal():
		}
		// As of before the look: the lease of a grant begins after that.
		h.reply.HeldMS = h.d.config.Now().Sub(began).Milliseconds()
		ending, call := h.d.Waiters.Parks.Look(h.park)
		if ending != waiters.Parked {
			h.endWait(ending)
			return true
		}
		if call.Called && h.lookFromPark(ctx, call) {
			return true
		}
		if last {
			h.endWait(waiters.Parked)
			return true
		}
	}
}

// markParked records that the device was seen at the ledger's time at, and that it is reached by a
// parked report. The pass "reached" writes it even if the ledger already has ReachPark: another
// replica may be about to write ReachNone for an older report or a broken connection.
func (h *handling) markParked(at time.Time) {
	if h.caller.Via == devices.ViaLease { // there is no device
		return
	}
	h.d.Seen.MarkReach(string(h.caller.Device), store.Seen{At: at, Reach: h.reachOf()})
}

// period of a parked report is its wait: its device is there all the time.
func (h *handling) period() time.Duration {
	if h.park == nil {
		return 0
	}
	return h.park.Wait
}

// shrink lets go what a parked report does not need: there are many.
func (h *handling) shrink() {
	h.waitsIn = h.oldestPool()
	h.report = devices.Report{ID: h.report.ID, Accept: h.report.Accept}
	h.view, h.mentioned, h.tried = store.View{}, nil, tried{}
}

// endWait is the answer when nothing was granted.
func (h *handling) endWait(why waiters.Ending) {
	switch why {
	case waiters.Superseded:
		h.refuse(decision.Choice{Reason: devices.ReasonNone})
	case waiters.Stopping:
		h.reply.ReportAfterMS = int64(h.d.config.Jitter() * float64(elsewhere.Milliseconds()))
	default:
		h.reply.ReportAfterMS = int64(h.d.config.Jitter() * float64(parkAgain.Milliseconds()))
	}
}

// lookFromPark decides again. It returns false when the report waits on.
func (h *handling) lookFromPark(ctx context.Context, call waiters.Call) (final bool) {
	done, ok := h.d.Waiters.Parks.Begin(ctx)
	if !ok {
		return true
	}
	defer done()
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), handleLimit)
	defer cancel()
	defer h.shrink()
	h.waitsIn, h.nonce = "", nonce()
	h.steps = h.d.Waiters.Handoffs.Steps(work, call.Since)
	h.steps.Done("called", call.At)
	h.steps.Done("woken", h.d.config.Now())
	switch admitted, err := h.admittedStill(work); {
	case err != nil:
		h.cannotConfirm(err)
		return true
	case !admitted:
		h.refuse(decision.Choice{Reason: devices.ReasonNone}) // the next report is told why
		return true
	case ctx.Err() != nil: // the device is gone
		return true
	}
	h.steps.Done("read", h.d.config.Now())
	h.tried.offered = call.Pools()
	h.nextTask(work)
	if t := h.reply.Task; t != nil && t.Pool == call.Pool && !call.Since.IsZero() {
		h.d.Waiters.Handoffs.Record(call.Pool, h.d.config.Now().Sub(call.Since))
		h.steps.Log(call.Pool, "park")
	}
	if !h.mayChange() {
		return true
	}
	h.markParked(h.seeing())
	return false
}

// admittedStill looks again, and says whether the device may report as it did.
func (h *handling) admittedStill(ctx context.Context) (bool, error) {
	if err := h.lookAgain(ctx); err != nil {
		return false, err
	}
	return h.d.Devices.AdmitStill(ctx, h.caller, h.view) //nolint:wrapcheck // the registry's own
}
