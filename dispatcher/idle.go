package dispatcher

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/marks"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/store"
)

const (
	// mostLookups is the maximum number of concurrent ledger lookups for reports that only ask for a task and
	// whose device has no mark. So a fleet that lost its marks leaves capacity for other reports.
	mostLookups = 256
	// fewLookups replaces mostLookups while the ledger does not answer.
	fewLookups = 8
	// deadAfter is the duration of a ledger outage after which fewLookups applies.
	deadAfter = 2 * time.Second
	// sampled is the interval of audits: one of sampled absent marks is audited, the rest are trusted.
	sampled = 256
)

// idlers finds devices without work by their marks, and corrects wrong marks.
type idlers struct {
	marks   *marks.Follower // nil if devices have no marks
	devices *credentials.Registry
	read    func(ctx context.Context, device devices.ID) (store.View, error)
	outage  *outage // outage of the ledger
	metrics *metrics
	log     *slog.Logger
	now     func() time.Time

	lookups  atomic.Int64 // concurrent lookups, limited by mostLookups
	believed atomic.Int64 // number of absent marks, trusted or audited
}

// markCheck is the result of a check of a device's mark. If idle and crowded are both false, the report is
// looked up in the ledger.
type markCheck struct {
	idle    bool        // the device has no work
	crowded bool        // there is no room for another lookup
	reach   store.Reach // reach that an idle device had when it was admitted
	now     time.Time   // the ledger's time, set if idle is true

	version string // version of the mark; empty if the device has no mark
	audited bool   // the mark is absent, and the report is looked up to audit the mark
	lookups *atomic.Int64
}

func (c markCheck) done() {
	if c.lookups != nil {
		c.lookups.Add(-1)
	}
}

// checkMark reads the mark of a device whose report only asks for a task. The caller must call done after
// the lookup in the ledger.
func (i *idlers) checkMark(ctx context.Context, caller devices.Caller, report devices.Report) (c markCheck) {
	if i.marks == nil || !report.Accept || says(report) || caller.Via == devices.ViaLease {
		return c
	}
	of := i.marks.Look(ctx, string(caller.Device))
	if c.version = of.Version; c.version != "" {
		return c
	}
	reach, admitted := i.devices.Admitted(caller)
	if of.Idle() && admitted {
		c.audited = i.believed.Add(1)%sampled == 0
		c.idle, c.reach, c.now = !c.audited, reach, of.Now
		return c
	}
	limit := int64(mostLookups)
	if i.outage.lasted(i.now()) >= deadAfter {
		limit = fewLookups
	}
	c.lookups = &i.lookups
	if c.lookups.Add(1) > limit {
		c.done()
		return markCheck{crowded: true}
	}
	return c
}

// answerIdle answers the report of a device without work. The answer may be parked as p.
func (d *Dispatcher) answerIdle(caller devices.Caller, report devices.Report, p *waiters.Park, check markCheck) *handling {
	from := &reporter{d: d, caller: caller, view: store.View{Now: check.now}}
	from.arrive(p)
	changed := from.reach() != check.reach
	if changed {
		d.Devices.NoteAdmission(caller, from.reach())
	}
	from.markSeen(check.now, changed)
	h := &handling{d: d, from: from, report: report, reply: devices.Reply{Re: report.ID}}
	h.refuse(decision.Choice{Reason: devices.ReasonNone}, 0)
	return h
}

// putOff answers a report that cannot be looked up now: the device reports again at some time within a report
// period. putOff does not end an older parked report of the device, because it was not checked whether this
// caller may act for the device.
func (d *Dispatcher) putOff(caller devices.Caller, report devices.Report) *handling {
	timing := d.timing()
	timing.Away = func() time.Duration { return d.config.ReportPeriod }
	return &handling{d: d, from: &reporter{d: d, caller: caller}, report: report, reply: devices.Reply{
		Re: report.ID, Reason: devices.ReasonUnavailable, ReportAfterMS: timing.AfterRefusal(devices.ReasonUnavailable).Milliseconds(),
	}}
}

// settleMark removes the mark of a device that was found to have no work. If c audits an absent mark and the
// device has work, settleMark completes the audit.
func (i *idlers) settleMark(ctx context.Context, device devices.ID, c markCheck, noWork bool) {
	var err error
	switch {
	case c.version != "" && noWork:
		i.metrics.marks.needless.Inc()
		err = i.marks.Clear(ctx, string(device), c.version)
	case c.audited && !noWork:
		err = i.audit(ctx, device)
	}
	if err != nil {
		i.log.DebugContext(ctx, "mark not settled", "err", err)
	}
}

// audit counts a missing mark. The work may be newer than the check of the mark, and may be done by now, so
// audit reads first the mark and then the device again.
func (i *idlers) audit(ctx context.Context, device devices.ID) error {
	lacks, err := i.marks.Lacks(ctx, string(device))
	if err != nil || !lacks {
		return err //nolint:wrapcheck // the marks' own
	}
	again, err := i.read(ctx, device)
	if err == nil && (len(again.Candidates) > 0 || again.Grant != nil) {
		i.metrics.marks.missing.Inc()
		i.log.ErrorContext(ctx, "a device with work has no mark", "device", device)
	}
	return err
}
