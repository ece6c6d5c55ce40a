package dispatcher

import (
	"context"
	"errors"
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
	// auditInterval is the number of reports of which one is audited (looked up in the ledger). Only reports that could be answered from
	// the mark of the device count. The marks of all other reports are trusted.
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

	lookups   atomic.Int64 // concurrent lookups, limited by maxLookups
	auditable atomic.Int64 // number of reports that were answered from a mark or audited
}

// isNextAudit counts a report that could be answered from a mark, and reports whether it is to be audited.
func (i *markChecker) isNextAudit() bool { return i.auditable.Add(1)%auditInterval == 0 }

// markCheck is the result of a check of a device's mark. At most one of isIdle, mayWait and isAtLookupLimit is true. If none of them is
// true, the report is looked up in the ledger.
type markCheck struct {
	isIdle          bool        // the device has no work
	mayWait         bool        // the device waits in the queue of the pool mark.Wait.Pool, unless the queue shows otherwise
	isAtLookupLimit bool        // maxLookups (or maxLookupsInOutage) lookups are in progress, so the report is not looked up
	reach           store.Reach // how the device could be notified when it was admitted; set if isIdle or mayWait is true

	mark    marks.DeviceMark
	isAudit bool // the report could be answered from the mark, and is looked up to audit the mark
	lookups *atomic.Int64
}

// done ends the lookup that checkMark counted.
func (c markCheck) done() {
	if c.lookups != nil {
		c.lookups.Add(-1)
	}
}

// checkMark reads the mark of the device, if its report only asks for a task. A mark is the field in Redis which says that the device has
// work. All other reports, such as reports with results, are looked up in the ledger, and maxLookups does not limit them. After the lookup
// in the ledger, the caller must call check.done.
func (i *markChecker) checkMark(ctx context.Context, caller devices.Caller, report devices.Report) (check markCheck) {
	if i.marks == nil || !report.Accept || hasContents(report) || caller.Via == devices.ViaLease {
		return check
	}
	check.mark = i.marks.ReadMark(ctx, string(caller.Device))
	reach, admitted := i.devices.LastAdmission(caller)
	if check.reach = reach; check.mark.Version != "" {
		check.mayWait = admitted && check.mark.Wait.Pool != "" && canNameReport(caller, report)
		return check
	}
	if check.mark.IsIdle() && admitted {
		check.isAudit = i.isNextAudit()
		check.isIdle = !check.isAudit
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

// answerFromMark answers the report of a device without reading the ledger. The mark of the device shows that the device has no work or
// waits for a slot. refusal is the answer that follows from the mark, and check is the result of checkMark for the device. untilTurn is the
// time after which a device in the queue of a full pool is to report again. If park is not nil and there is room, the answer may be parked.
func (d *Dispatcher) answerFromMark(
	caller devices.Caller, report devices.Report, park *waiters.ParkedReport, check markCheck, refusal decision.Choice, untilTurn time.Duration,
) *reportHandling {
	from := &reporter{d: d, caller: caller, view: store.DeviceView{Now: check.mark.Now}, storedPool: check.mark.Wait.Pool}
	from.replaceOlder(park)
	changed := from.reach() != check.reach
	if changed {
		d.Devices.RecordReach(caller, from.reach())
	}
	h := &reportHandling{d: d, reporter: from, report: report, reply: devices.Reply{Re: report.ID, FromMark: true}}
	h.refuse(refusal, untilTurn)
	from.recordSeen(check.mark.Now, h.again(), changed)
	return h
}

// answerAtLookupLimit answers a report that cannot be looked up now. The device is asked to report again at a random time within a report
// period. answerAtLookupLimit does not end an older parked report of the device, because it has not checked whether this caller may act for
// the device.
func (d *Dispatcher) answerAtLookupLimit(caller devices.Caller, report devices.Report) *reportHandling {
	timing := d.timing()
	timing.Outage = func() time.Duration { return d.config.ReportPeriod }
	return &reportHandling{d: d, reporter: &reporter{d: d, caller: caller}, report: report, reply: devices.Reply{
		Re: report.ID, Reason: devices.ReasonUnavailable, ReportAfterMS: timing.DelayAfterRefusal(devices.ReasonUnavailable).Milliseconds(),
	}}
}

// correctMark deletes the mark in Redis if h, which looked the device up in the ledger, found no work. If the device waits for a slot,
// correctMark records the wait in the mark. If check audits the mark, correctMark completes the audit.
func (i *markChecker) correctMark(ctx context.Context, device devices.ID, check markCheck, h *reportHandling) {
	var err error
	version, hasNoWork := check.mark.Version, h.foundNoWork()
	if version != "" && check.isAudit {
		err = i.auditWait(ctx, device, check, h.reply)
	}
	switch {
	case version != "" && hasNoWork:
		i.metrics.marks.needless.Inc()
		err = errors.Join(err, i.marks.Clear(ctx, string(device), version))
	case version != "":
		err = errors.Join(err, i.recordWait(ctx, device, check, h))
	case check.isAudit && !hasNoWork:
		err = i.auditMark(ctx, device)
	}
	if err != nil {
		i.log.DebugContext(ctx, "mark not updated", "err", err)
	}
}

// auditMark counts a missing mark: the device had work in the ledger, but no mark. The work may be newer than the check of the mark, or may
// have ended since then. So auditMark reads the mark again, and after it the device.
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
