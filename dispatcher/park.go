package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/parked"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const (
	parkAgain = 250 * time.Millisecond // a device whose wait is over comes again within this
	elsewhere = 5 * time.Second        // and after the end of its replica within this
)

// Parking is what replicas tell one another of parked reports; *parked.Board.
type Parking interface {
	Newest(ctx context.Context, device string, remembered time.Duration) (number int64, gap bool, err error)
	Gone(ctx context.Context, reports []parked.Report) (gone []parked.Report, err error)
	Wake(ctx context.Context, calls []parked.Call) error
}

// Parked is told what other replicas say of parked reports.
func (d *Dispatcher) Parked() parked.Listener { return d.parks }

// StopWaiting answers all parked reports at once, and parks none from now on.
func (d *Dispatcher) StopWaiting() { d.parks.stop() }

// wakeParked lets the parked reports of devices look again. Those that are not
// parked here may be elsewhere: the other replicas are told, and whether one of
// them has the report is not known.
func (d *Dispatcher) wakeParked(ctx context.Context, calls []parked.Call) error {
	others := d.parks.wake(calls)
	if len(others) == 0 || d.config.Parking == nil {
		return nil
	}
	return d.config.Parking.Wake(ctx, others)
}

// Wait is HandleReport for a device that lets an answer without a task wait.
// Results are committed before, and acknowledged with the answer. onPark is
// called when the waiting begins: no place of reports under way is taken from
// then on, and the answer comes within wait and devices.AnswerAfterWait. held says whether
// the device may have waited: with false there was no room for it.
//
// The wait ends with a grant, with what waiting does not change, with ctx
// (nobody is there any more, and nothing is granted), with a newer report of the
// device, and with StopWaiting.
func (d *Dispatcher) Wait(ctx context.Context, caller Caller, report devices.Report, wait time.Duration, onPark func()) (reply devices.Reply, held bool, err error) {
	p := newPark(string(caller.Device), wait)
	defer d.parks.leave(p)
	h, err := d.handle(ctx, caller, report, p)
	if err != nil {
		return devices.Reply{}, false, err
	}
	held = h.park != nil
	if held && h.mayChange() {
		held = d.wait(ctx, h, onPark)
	}
	switch {
	case h.reply.Task != nil && d.parks.leave(p) == superseded:
		d.redirect(ctx, h)
	case h.reply.Task == nil && h.park != nil && ctx.Err() != nil:
		d.departed(p)
	}
	d.metrics.denied(h)
	return h.reply, held, nil
}

// redirect: nobody may hear the answer of an older report. The newer one may
// have been looked at before the grant, and wait: it is to find it.
func (d *Dispatcher) redirect(ctx context.Context, h *handling) {
	if err := d.wakeParked(context.WithoutCancel(ctx), []parked.Call{{Device: string(h.caller.Device)}}); err != nil {
		d.log.WarnContext(ctx, "a grant waits for the next report of its device", "err", err)
	}
}

// mayChange says whether waiting can bring a task. Who gets a credential is to
// have it at once.
func (h *handling) mayChange() bool {
	return decision.RefusalOf(h.reply.Reason).Parks && h.reply.Task == nil && h.reply.Credential == ""
}

// wait holds the answer. It returns false when the report cannot be the newest
// of its device: then it is answered at once.
func (d *Dispatcher) wait(ctx context.Context, h *handling, onPark func()) bool {
	number, gap, err := d.announce(ctx, h.park.device, h.park.wait)
	if err != nil {
		d.log.WarnContext(ctx, "report not parked", "err", err)
		return false
	}
	d.parks.begin(h.park, number)
	if gap { // the lines may have heard since that the device left
		d.parks.wake([]parked.Call{{Device: h.park.device, Age: -1}})
	}
	onPark()
	h.shrink()
	began := d.now()
	timer := time.NewTimer(h.park.wait)
	defer timer.Stop()
	for last := false; ; {
		select {
		case <-ctx.Done():
			return true
		case <-timer.C:
			last = true
		case <-h.park.signal:
		}
		// As of before the look: the lease of a grant begins after that.
		h.reply.HeldMS = d.now().Sub(began).Milliseconds()
		ending, call := d.parks.look(h.park)
		if ending != parkedStill {
			d.endWait(h, ending)
			return true
		}
		if call.called && d.lookFromPark(ctx, h, call) {
			return true
		}
		if last {
			d.endWait(h, parkedStill)
			return true
		}
	}
}

// announce ends the older parked reports of the device at other replicas. It is
// done for a device that has gone meanwhile, too: that is told by its number.
func (d *Dispatcher) announce(ctx context.Context, device string, wait time.Duration) (number int64, gap bool, err error) {
	if d.config.Parking == nil {
		return 0, false, nil
	}
	return d.config.Parking.Newest(context.WithoutCancel(ctx), device, wait+devices.AnswerAfterWait)
}

// patient lets the line of a pool expect a parked report no sooner than its wait
// is over: it is there all the time.
func (h *handling) patient(pace slots.Pace) slots.Pace {
	if h.park != nil {
		pace.Period = max(pace.Period, h.park.wait)
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
func (d *Dispatcher) endWait(h *handling, why ending) {
	switch why {
	case superseded:
		d.refuse(h, decision.Choice{Reason: devices.ReasonNone})
	case stopping:
		h.reply.ReportAfterMS = int64(d.jitter() * float64(elsewhere.Milliseconds()))
	default:
		h.reply.ReportAfterMS = int64(d.jitter() * float64(parkAgain.Milliseconds()))
	}
}

// lookFromPark decides again. It returns false when the report waits on.
func (d *Dispatcher) lookFromPark(ctx context.Context, h *handling, call offered) (final bool) {
	select {
	case <-ctx.Done():
		return true
	case d.parks.looking <- struct{}{}:
		defer func() { <-d.parks.looking }()
	}
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), handleLimit)
	defer cancel()
	defer h.shrink()
	h.turn, h.waitsIn, h.nonce = 0, "", nonce()
	h.steps = d.stepsOf(work, call.since)
	h.steps.done("called", call.at)
	h.steps.done("woken", d.now())
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
	h.steps.done("read", d.now())
	h.offered = call.pools()
	d.nextTask(work, h)
	if t := h.reply.Task; t != nil && t.Pool == call.pool && !call.since.IsZero() {
		d.metrics.handedOn(call.pool, d.now().Sub(call.since))
		h.steps.say(d.config.Logger, call.pool, "park")
	}
	return !h.mayChange()
}

// admittedStill looks again, and says whether the device may report as it did:
// it may have been deleted meanwhile, or its token revoked.
func (d *Dispatcher) admittedStill(ctx context.Context, h *handling) (bool, error) {
	if err := d.lookAgain(ctx, h); err != nil {
		return false, err
	}
	if h.view.Device == nil {
		return false, nil
	}
	if h.caller.Via != ViaOwnToken {
		return !h.view.Device.OwnToken, nil
	}
	t, err := d.tokenOf(ctx, h.caller.Token)
	switch {
	case errors.Is(err, ErrUnauthenticated):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("of a parked report: %w", err)
	}
	return t.Device == string(h.caller.Device), nil
}
