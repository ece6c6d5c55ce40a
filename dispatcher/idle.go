package dispatcher

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/store"
)

const (
	// mostLooks is how many reports that only ask are looked up in the ledger at once, though
	// they bear no mark: a fleet whose marks are lost does not keep it from all others.
	mostLooks = 256
	// fewLooks is that while the ledger gives no answer.
	fewLooks = 8
	// deadAfter is when it is left to these.
	deadAfter = 2 * time.Second
	// sampled is how many absent marks are believed for each one that is looked after.
	sampled = 256
)

// idlers answers the reports of devices that have nothing to do, by their marks.
type idlers struct {
	looks    atomic.Int64 // under way
	believed atomic.Int64 // absent marks
}

// glance is what was seen of a device before its report was handled.
type glance struct {
	version string // of its mark; empty: none was seen
	audited bool   // it would have been answered by its mark
	looks   *atomic.Int64
}

func (g glance) done() {
	if g.looks != nil {
		g.looks.Add(-1)
	}
}

// glance looks at the mark of a device whose report only asks. The report is answered if the
// device has no work. If the marks do not tell, it is looked up in the ledger, over a bounded
// lane, and put off when there is no room.
func (d *Dispatcher) glance(ctx context.Context, caller devices.Caller, report devices.Report, p *waiters.Park) (g glance, answered *handling) {
	if d.Marks == nil || !report.Accept || says(report) || caller.Via == devices.ViaLease {
		return g, nil
	}
	of := d.Marks.Look(ctx, string(caller.Device))
	if g.version = of.Version; g.version != "" {
		return g, nil
	}
	reach, admitted := d.Devices.Admitted(caller)
	if of.Idle() && admitted {
		if g.audited = d.idlers.believed.Add(1)%sampled == 0; !g.audited {
			return g, d.answerIdle(caller, report, p, reach, of.Now)
		}
		return g, nil
	}
	g.looks = &d.idlers.looks
	if g.looks.Add(1) > d.mostLooks() {
		g.done()
		return glance{}, d.putOff(caller, report)
	}
	return g, nil
}

func (d *Dispatcher) mostLooks() int64 {
	if d.away.ledger.lasted(d.config.Now()) >= deadAfter {
		return fewLooks
	}
	return mostLooks
}

// answerIdle is the answer to a device without work. It may be parked.
func (d *Dispatcher) answerIdle(caller devices.Caller, report devices.Report, p *waiters.Park, reach store.Reach, now time.Time) *handling {
	h := &handling{d: d, caller: caller, report: report, view: store.View{Now: now}, reply: devices.Reply{Re: report.ID}}
	if d.Waiters.Parks.Arrive(string(caller.Device), p) {
		h.park = p
	}
	mark := d.Seen.Mark
	if h.reachOf() != reach {
		mark = d.Seen.MarkReach
		d.Devices.NoteAdmission(caller, h.reachOf())
	}
	mark(string(caller.Device), store.Seen{At: now, Reach: h.reachOf()})
	h.refuse(decision.Choice{Reason: devices.ReasonNone})
	return h
}

// putOff is the answer to a device for which there is no room: it comes back some time within
// a period. An older report of it that waits goes on: nobody has looked whether this caller
// may act for the device.
func (d *Dispatcher) putOff(caller devices.Caller, report devices.Report) *handling {
	h := &handling{d: d, caller: caller, report: report, reply: devices.Reply{Re: report.ID, Reason: devices.ReasonUnavailable}}
	timing := d.timing()
	timing.Away = func() time.Duration { return d.config.ReportPeriod }
	h.reply.ReportAfterMS = timing.AfterRefusal(devices.ReasonUnavailable).Milliseconds()
	return h
}

// noteAdmission remembers by whom the device was admitted, once there is no more to note of that.
func (d *Dispatcher) noteAdmission(h *handling) {
	if device := h.view.Device; d.Marks == nil || device == nil || h.caller.Via == devices.ViaLease || device.Blocked || h.reply.Credential != "" {
		return
	}
	d.Devices.NoteAdmission(h.caller, h.reachOf())
}

// idle is whether the ledger had nothing for the device.
func idle(h *handling) bool {
	return h.reply.Reason == devices.ReasonNone && len(h.view.Candidates) == 0 && h.view.Grant == nil && h.view.Device != nil
}

// settleMark takes away a mark without work, and notes work without a mark.
func (d *Dispatcher) settleMark(ctx context.Context, h *handling, g glance) {
	var err error
	switch {
	case g.version != "" && idle(h):
		d.metrics.marks.needless.Inc()
		err = d.Marks.Clear(ctx, string(h.caller.Device), g.version)
	case g.audited && !idle(h):
		err = d.audit(ctx, h)
	}
	if err != nil {
		d.log.DebugContext(ctx, "mark not settled", "err", err)
	}
}

// audit counts a mark that is missing. The work may be newer than the glance, and may be done
// by now: it is looked at again, after the mark.
func (d *Dispatcher) audit(ctx context.Context, h *handling) error {
	lacks, err := d.Marks.Lacks(ctx, string(h.caller.Device))
	if err != nil || !lacks {
		return err //nolint:wrapcheck // the marks' own
	}
	again, err := d.look(ctx, h.caller.Device)
	if err == nil && (len(again.Candidates) > 0 || again.Grant != nil) {
		d.metrics.marks.missing.Inc()
		d.log.ErrorContext(ctx, "a device with work has no mark", "device", h.caller.Device)
	}
	return err
}
