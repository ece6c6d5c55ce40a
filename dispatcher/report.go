package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// handling is one report on its way through the steps.
type handling struct {
	caller    Caller
	report    devices.Report
	view      store.View
	nonce     string
	mentioned map[grantKey]bool
	stopping  bool // something the device runs has no right to, or could not be confirmed
	reply     devices.Reply
}

// grantKey names a grant as a device does.
type grantKey struct{ task, token int64 }

// HandleReport answers one report: results first, then running tasks, then
// redelivery, then the next task. It returns ErrForbidden, or ErrUnavailable
// when nothing could be recorded; every other trouble is in the reply.
func (d *Dispatcher) HandleReport(ctx context.Context, caller Caller, report devices.Report) (devices.Reply, error) {
	view, err := d.look(ctx, caller.Device)
	if err != nil {
		return devices.Reply{}, err
	}
	h := &handling{
		caller: caller, report: report, view: view, nonce: nonce(),
		mentioned: make(map[grantKey]bool),
		reply:     devices.Reply{Re: report.ID},
	}
	if err := d.admit(ctx, h); err != nil {
		return devices.Reply{}, err
	}
	d.seen.mark(string(caller.Device), d.now())
	if err := d.answer(ctx, h); err != nil {
		return devices.Reply{}, err
	}
	d.metrics.denied(h)
	return h.reply, nil
}

// answer runs the steps. An error means that nothing was acknowledged; a
// trouble after an acknowledgement ends the reply early as unavailable.
func (d *Dispatcher) answer(ctx context.Context, h *handling) error {
	if err := d.mergeAttributes(ctx, h); err != nil {
		return err
	}
	if err := d.recordResults(ctx, h); err != nil {
		return err
	}
	if err := d.renew(ctx, h); err != nil {
		return d.unavailable(h, err)
	}
	if len(h.report.Results)+len(h.report.Running) > 0 {
		view, err := d.look(ctx, h.caller.Device)
		if err != nil {
			return d.unavailable(h, err)
		}
		h.view = view
	}
	d.tellCancelled(h)
	return d.nextTask(ctx, h)
}

// unavailable ends a reply: with what was already acknowledged if there is
// any, else as an error, so that the transport says "send again".
func (d *Dispatcher) unavailable(h *handling, err error) error {
	if len(h.reply.Acks)+len(h.reply.Renewed)+len(h.reply.Cancel) == 0 && errors.Is(err, ErrUnavailable) {
		return err
	}
	d.log.Warn("report answered without a decision", "err", err)
	d.refuse(h, Choice{Reason: devices.ReasonUnavailable})
	return nil
}

func (d *Dispatcher) look(ctx context.Context, device devices.ID) (store.View, error) {
	views, err := d.store.Views(ctx, []string{string(device)})
	if err != nil {
		return store.View{}, fmt.Errorf("%w: reading the device: %w", ErrUnavailable, err)
	}
	return views[0], nil
}

func (d *Dispatcher) mergeAttributes(ctx context.Context, h *handling) error {
	if h.report.Attributes == nil {
		return nil
	}
	err := d.store.MergeAttributes(ctx, string(h.caller.Device), h.report.Attributes)
	if errors.Is(err, store.ErrTooLarge) {
		// The device's results must not be lost over it.
		h.reply.Code = devices.CodeAttributesTooLarge
		h.reply.Detail = fmt.Sprintf("attributes: at most %d keys and %d bytes after the merge; unchanged", devices.MaxAttributeKeys, devices.MaxAttributes)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: merging attributes: %w", ErrUnavailable, err)
	}
	return nil
}

// tellCancelled lists the grant of a device that holds it without saying so,
// once its end was asked for.
func (d *Dispatcher) tellCancelled(h *handling) {
	g := h.view.Grant
	if g == nil || g.CancelWhy == "" || h.mentioned[grantKey{g.Task, g.Token}] {
		return
	}
	h.reply.Cancel = append(h.reply.Cancel, devices.Cancel{Task: g.Task, Token: g.Token, Why: g.CancelWhy})
}

// refuse ends a reply without a task.
func (d *Dispatcher) refuse(h *handling, choice Choice) {
	h.reply.Reason = choice.Reason
	h.reply.Task = nil
	h.reply.ReportAfterMS = d.reportAfter(choice, h.view.Now, h.bestPool()).Milliseconds()
}

// bestPool is the pool of the device's best open task; empty: it has none.
func (h *handling) bestPool() string {
	if len(h.view.Candidates) == 0 {
		return ""
	}
	return slices.MinFunc(h.view.Candidates, before).Pool
}
