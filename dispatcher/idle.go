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
	// maxLookups is the maximum number of concurrent ledger lookups for reports that only ask for a task and
	// whose device has no mark. This keeps capacity for other reports if the marks (the fields in Redis that
	// say which devices have work) are lost.
	maxLookups = 256
	// maxLookupsInOutage replaces maxLookups while the ledger does not answer.
	maxLookupsInOutage = 8
	// outageAfter is the time for which the ledger must not have answered before maxLookupsInOutage
	// applies.
	outageAfter = 2 * time.Second
	// auditInterval: one of auditInterval reports without a mark is audited: it is looked up in the ledger although its
	// mark is absent. All other absent marks are trusted.
	auditInterval = 256
)

// markChecker finds devices without work by their marks (fields in Redis which say that a device
// has work), and corrects wrong marks.
type markChecker struct {
	marks    *marks.Follower // nil if devices have no marks
	devices  *credentials.Registry
	readView func(ctx context.Context, device devices.ID) (store.DeviceView, error)
	outage   *outage // outage of the ledger
	metrics  *metrics
	log      *slog.Logger
	now      func() time.Time

	lookups     atomic.Int64 // concurrent lookups, limited by maxLookups
	absentMarks atomic.Int64 // number of absent marks, trusted or audited
}

// markCheck is the result of a check of a device's mark. If isIdle and isAtLookupLimit are both false, the report is
// looked up in the ledger.
type markCheck struct {
	isIdle          bool        // the device has no work
	isAtLookupLimit bool        // maxLookups (or maxLookupsInOutage) lookups are in progress, so the report is not looked up
	reach           store.Reach // reach that an idle device had when it was admitted
	now             time.Time   // the ledger's time, set if isIdle is true

	version string // version of the mark; empty if the device has no mark
	isAudit bool   // the mark is absent, and the report is looked up to audit the mark
	lookups *atomic.Int64
}

// done ends the lookup that checkMark counted.
func (c markCheck) done() {
	if c.lookups != nil {
		c.lookups.Add(-1)
	}
}

// checkMark reads the mark of the device, if its report only asks for a task. A mark is the field in Redis which says that the device has
// work. All other reports, such as reports with results, are looked up in the ledger and are not limited by maxLookups. After the lookup
// in the ledger, the caller must call check.done.
func (i *markChecker) checkMark(ctx context.Context, caller devices.Caller, report devices.Report) (check markCheck) {
	if i.marks == nil || !report.Accept || hasContents(report) || caller.Via == devices.ViaLease {
		return check
	}
	mark := i.marks.ReadMark(ctx, string(caller.Device))
	if check.version = mark.Version; check.version != "" {
		return check
	}
	reach, admitted := i.devices.LastAdmission(caller)
	if mark.IsIdle() && admitted {
		check.isAudit = i.absentMarks.Add(1)%auditInterval == 0
		check.isIdle, check.reach, check.now = !check.isAudit, reach, mark.Now
		return check
	}
	limit := int64(maxLookups)
	if i.outage.duration(i.now()) >= outageAfter {
		limit = maxLookupsInOutage
	}
	check.lookups = &i.lookups
	if check.lookups.Add(1) > limit {
		check.done()
		return markCheck{isAtLookupLimit: true}
	}
	return check
}

// answerIdle answers the report of a device without work. The answer may be parked as park. check is the result of checkMark for the
// device.
func (d *Dispatcher) answerIdle(caller devices.Caller, report devices.Report, park *waiters.ParkedReport, check markCheck) *reportHandling {
	from := &reporter{d: d, caller: caller, view: store.DeviceView{Now: check.now}}
	from.replaceOlder(park)
	changed := from.reach() != check.reach
	if changed {
		d.Devices.RecordAdmission(caller, from.reach())
	}
	h := &reportHandling{d: d, reporter: from, report: report, reply: devices.Reply{Re: report.ID}}
	h.refuse(decision.Choice{Reason: devices.ReasonNone}, 0)
	from.recordSeen(check.now, h.again(), changed)
	return h
}

// answerAtLookupLimit answers a report that cannot be looked up now: the device reports again at some time within a report
// period. answerAtLookupLimit does not end an older parked report of the device, because it was not checked whether this
// caller may act for the device.
func (d *Dispatcher) answerAtLookupLimit(caller devices.Caller, report devices.Report) *reportHandling {
	timing := d.timing()
	timing.Outage = func() time.Duration { return d.config.ReportPeriod }
	return &reportHandling{d: d, reporter: &reporter{d: d, caller: caller}, report: report, reply: devices.Reply{
		Re: report.ID, Reason: devices.ReasonUnavailable, ReportAfterMS: timing.DelayAfterRefusal(devices.ReasonUnavailable).Milliseconds(),
	}}
}

// correctMark deletes the mark in Redis if the ledger has no work for the device (hasNoWork). If check audits an absent mark and the
// device has work, correctMark completes the audit.
func (i *markChecker) correctMark(ctx context.Context, device devices.ID, check markCheck, hasNoWork bool) {
	var err error
	switch {
	case check.version != "" && hasNoWork:
		i.metrics.marks.needless.Inc()
		err = i.marks.Clear(ctx, string(device), check.version)
	case check.isAudit && !hasNoWork:
		err = i.auditMark(ctx, device)
	}
	if err != nil {
		i.log.DebugContext(ctx, "mark not updated", "err", err)
	}
}

// auditMark counts a missing mark: the device had work in the ledger, but no mark. The work may be newer than
// the check of the mark, and may be done by now. So auditMark reads first the mark again, and then the device.
func (i *markChecker) auditMark(ctx context.Context, device devices.ID) error {
	missing, err := i.marks.IsMissing(ctx, string(device))
	if err != nil || !missing {
		return err //nolint:wrapcheck // the marks' own
	}
	again, err := i.readView(ctx, device)
	if err == nil && (len(again.Candidates) > 0 || again.Grant != nil) {
		i.metrics.marks.missing.Inc()
		i.log.ErrorContext(ctx, "a device with work has no mark", "device", device)
	}
	return err
}
