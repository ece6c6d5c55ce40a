package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/store"
)

// handling is one report on its way through the steps: results, running, redelivery,
// next task, refusal.
type handling struct {
	d         *Dispatcher
	caller    devices.Caller
	report    devices.Report
	view      store.View
	reply     devices.Reply
	nonce     string
	mentioned map[grantKey]bool
	stopping  bool           // something the device runs has no right to
	tried     tried          // on the way to its next task
	park      *waiters.Park  // the answer may wait (long poll); nil: it may not
	waitsIn   string         // oldestPool, of a parked report
	steps     *waiters.Steps // of the handoff that it is; nil: not noted
	callers   *store.Callers // how their bound stands; nil: it is no caller's
	own       bool           // the last refusal of a caller had a reason of its own
	aside     bool           // one of its refusals had: callers behind it go first until OpenLease is called again
}

// tried is what was found out on the way to the next task.
type tried struct {
	offered   []string                    // pools in which a slot is offered to the device, if it has work in several
	full      map[string]bool             // pools found full
	limited   map[int64]decision.Obstacle // by task: what its policies say
	shut      []string                    // pools of which they let nothing start
	drops     int                         // how often tasks were ended that they drop
	more      bool                        // there may be more of these
	turn      time.Duration               // when a full pool expects the device again; 0: none was full
	committed string                      // the lease that was claimed
}

// expect notes when the semaphore expects the device again: the earliest time, when it
// stands in the queues of several pools.
func (t *tried) expect(after time.Duration) {
	if t.turn == 0 || after < t.turn {
		t.turn = after
	}
}

// grantKey names a grant as a device does.
type grantKey struct{ task, token int64 }

// handleLimit bounds the handling of one report. It is below the age of an orphan (upkeep), and
// below the time that a process has to stop.
const handleLimit = 8 * time.Second

// HandleReport answers one report: results first, then running tasks, then
// redelivery, then the next task. It returns devices.ErrForbidden, or devices.ErrUnavailable
// when nothing could be recorded; every other trouble is in the reply.
//
// A report that was begun is finished within 8 s, also when ctx ends meanwhile:
// the half of one would leave a slot without a grant behind.
func (d *Dispatcher) HandleReport(ctx context.Context, caller devices.Caller, report devices.Report) (devices.Reply, error) {
	h, err := d.handle(ctx, caller, report, nil)
	if err != nil {
		return devices.Reply{}, err
	}
	d.metrics.denied(h)
	return h.reply, nil
}

// handle is HandleReport, for a report that may be parked as p if there is
// room; nil: it may not be. Any report of a device ends an older one that waits.
func (d *Dispatcher) handle(ctx context.Context, caller devices.Caller, report devices.Report, p *waiters.Park) (*handling, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: not begun: %w", devices.ErrUnavailable, err)
	}
	glance, answered := d.glance(ctx, caller, report, p)
	if answered != nil {
		return answered, nil
	}
	defer glance.done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handleLimit)
	defer cancel()
	view, err := d.read(ctx, caller.Device, whole(!says(report)))
	if err != nil {
		return nil, err
	}
	h := &handling{
		d: d, caller: caller, report: report, view: view, nonce: nonce(),
		mentioned: make(map[grantKey]bool),
		reply:     devices.Reply{Re: report.ID},
	}
	admitted, err := d.Devices.Admit(ctx, caller, view)
	if err != nil {
		return nil, err //nolint:wrapcheck // the registry's own
	}
	h.view.Device, h.reply.Credential = admitted.Device, admitted.Credential
	if d.Waiters.Parks.Arrive(string(caller.Device), p) {
		h.park = p
	}
	h.markReport()
	d.noteAdmission(h)
	if err := h.answer(ctx); err != nil {
		return nil, err
	}
	d.settleMark(ctx, h, glance)
	return h, nil
}

// answer runs the steps. A part that cannot be recorded spoils nothing beside it, and
// ends the reply before anything is granted.
func (h *handling) answer(ctx context.Context) error {
	trouble := errors.Join(h.recordResults(ctx), h.renew(ctx), h.mergeAttributes(ctx))
	if trouble == nil && says(h.report) {
		trouble = h.lookAgain(ctx)
	}
	if trouble != nil {
		return h.unavailable(trouble)
	}
	h.tellCancelled()
	h.nextTask(ctx)
	return nil
}

// unavailable ends a reply: with what was already acknowledged if there is
// any, else as an error, so that the transport says "send again".
func (h *handling) unavailable(err error) error {
	if len(h.reply.Acks)+len(h.reply.Renewed)+len(h.reply.Cancel) == 0 {
		return err
	}
	h.d.log.Warn("report answered without a decision", "err", err)
	h.refuse(decision.Choice{Reason: devices.ReasonUnavailable})
	return nil
}

// says is whether a report does more than ask: then who its device is decides whether it
// may, and what concerns its next task is read once, when all that it says is recorded.
func says(r devices.Report) bool {
	return len(r.Results)+len(r.Running) > 0 || r.Attributes != nil
}

func (d *Dispatcher) look(ctx context.Context, device devices.ID) (store.View, error) {
	return d.read(ctx, device, true)
}

func (d *Dispatcher) read(ctx context.Context, device devices.ID, all whole) (store.View, error) {
	asked := d.config.Now()
	view, err := d.together.views.Do(ctx, all, string(device))
	d.away.ledger.saw(err, asked)
	if err != nil {
		return store.View{}, fmt.Errorf("%w: reading the device: %w", devices.ErrUnavailable, err)
	}
	return view, nil
}

// lookAgain reads what the steps so far have changed. A device that was deleted
// meanwhile is refused at its next report.
func (h *handling) lookAgain(ctx context.Context) error {
	view, err := h.d.look(ctx, h.caller.Device)
	if err != nil {
		return err
	}
	switch {
	case h.caller.Via == devices.ViaLease: // none is registered, and policies count by its name
		view.Device = &store.Device{ID: string(h.caller.Device)}
	case view.Device == nil:
		view.Device = h.view.Device
	}
	h.view = view
	return nil
}

func (h *handling) mergeAttributes(ctx context.Context) error {
	if h.report.Attributes == nil {
		return nil
	}
	err := h.d.config.Store.MergeAttributes(ctx, string(h.caller.Device), h.report.Attributes)
	if errors.Is(err, store.ErrTooLarge) {
		// The device's results must not be lost over it.
		h.reply.Code = devices.CodeAttributesTooLarge
		h.reply.Detail = fmt.Sprintf("attributes: at most %d keys and %d bytes after the merge; unchanged", devices.MaxAttributeKeys, devices.MaxAttributes)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: merging attributes: %w", devices.ErrUnavailable, err)
	}
	return nil
}

// tellCancelled lists the grant of a device that holds it without saying so,
// once its end was asked for.
func (h *handling) tellCancelled() {
	g := h.view.Grant
	if g == nil || g.CancelWhy == "" || h.mentioned[grantKey{g.Task, g.Token}] {
		return
	}
	h.reply.Cancel = append(h.reply.Cancel, devices.Cancel{Task: g.Task, Token: g.Token, Why: g.CancelWhy})
}

// refuse ends a reply without a task. A device that works is asked back when its task is likely
// ready, and in time to renew its lease.
func (h *handling) refuse(choice decision.Choice) {
	h.reply.Reason = choice.Reason
	h.reply.Task, h.reply.Limited = nil, nil
	if choice.Reason == devices.ReasonLimited {
		h.reply.Limited = devices.NewLimited(choice.Policy, choice.Until)
	}
	h.reply.ReportAfterMS = h.d.timing().After(choice, h.view.Now, h.tried.turn).Milliseconds()
	if g := h.view.Grant; g != nil && len(h.reply.Renewed) > 0 {
		h.reply.ReportAfterMS = min(h.reply.ReportAfterMS, h.d.stillWorks(*g, h.view.Now).Milliseconds())
	}
	for _, r := range h.reply.Renewed {
		h.reply.ReportAfterMS = min(h.reply.ReportAfterMS, r.LeaseMS/2)
	}
}

// oldestPool is the pool of the device's oldest open batch; empty: it has none.
func (h *handling) oldestPool() string {
	if len(h.view.Candidates) == 0 {
		return h.waitsIn
	}
	return slices.MinFunc(h.view.Candidates, decision.Older).Pool
}

// seeing is when a report was seen, by the ledger's clock: a device that it
// registers was not seen before it was there.
func (h *handling) seeing() time.Time {
	if d := h.view.Device; d != nil && d.CreatedAt.After(h.view.Now) {
		return d.CreatedAt
	}
	return h.view.Now
}

// markReport notes a report, and how its device can be told of a slot.
func (h *handling) markReport() {
	if h.caller.Via == devices.ViaLease { // there is no device
		return
	}
	device, report := string(h.caller.Device), store.Seen{At: h.seeing(), Reach: h.reachOf()}
	if h.view.Device != nil && h.view.Device.Reach != report.Reach {
		h.d.Seen.MarkReach(device, report)
	} else {
		h.d.Seen.Mark(device, report)
	}
}
