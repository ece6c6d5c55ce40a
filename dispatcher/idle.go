package dispatcher

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/marks"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/store"
)

const (
	// maxLookups is the maximum number of concurrent ledger lookups for reports that only ask for a task and whose device has no mark. The
	// limit keeps capacity for other reports if Redis loses the marks.
	maxLookups = 256
	// maxLookupsInOutage replaces maxLookups while the ledger does not answer.
	maxLookupsInOutage = 8
	// outageAfter is the time without an answer of the ledger after which maxLookupsInOutage applies.
	outageAfter = 2 * time.Second
	// auditInterval sets how often a mark is audited. Of auditInterval reports that could be answered from marks, one is looked up in the
	// ledger.
	auditInterval = 256
)

// countAuditableReport counts a report that could be answered from a mark. isAuditDue is true if this report must be looked up to audit the
// mark.
func (d *Dispatcher) countAuditableReport() (isAuditDue bool) {
	return d.auditable.Add(1)%auditInterval == 0
}

// markCheck is the result of a check of a device's mark. At most one of isIdle, mayWait and isAtLookupLimit is true. If all are false, the
// report is looked up in the ledger.
type markCheck struct {
	isIdle          bool        // the device has no work
	mayWait         bool        // according to its mark, the device waits in the queue of the pool mark.Wait.Pool; the queue may contradict
	isAtLookupLimit bool        // maxLookups (or maxLookupsInOutage) lookups are in progress, so the report is not looked up
	reach           store.Reach // how the device could be notified when it was admitted; set if isIdle or mayWait is true

	mark    marks.DeviceMark
	isAudit bool // the report could be answered from the mark, and is looked up to audit the mark
	lookups *atomic.Int64
}

func (c markCheck) endLookup() {
	if c.lookups != nil {
		c.lookups.Add(-1)
	}
}

// checkMark reads the mark of the device if its report only asks for a task. Any other report is looked up in the ledger, even if
// maxLookups lookups are in progress. After the lookup, check.endLookup must be called.
func (d *Dispatcher) checkMark(ctx context.Context, caller devices.Caller, report devices.Report) (check markCheck) {
	if d.Marks == nil || !report.Accept || hasMoreThanTaskRequest(report) || caller.Via == devices.ViaLease {
		return check
	}
	check.mark = d.Marks.ReadMark(ctx, string(caller.Device))
	reach, admitted := d.Devices.ReachAtAdmission(caller)
	if check.reach = reach; check.mark.Version != "" {
		check.mayWait = admitted && check.mark.Wait.Pool != "" && canReplyNameReport(caller, report)
		return check
	}
	if check.mark.IsIdle() && admitted {
		check.isAudit = d.countAuditableReport()
		check.isIdle = !check.isAudit
		return check
	}
	limit := int64(maxLookups)
	if d.outages.ledger.outageDuration(d.config.Now()) >= outageAfter {
		limit = maxLookupsInOutage
	}
	check.lookups = &d.lookups
	if check.lookups.Add(1) > limit {
		check.endLookup()
		return markCheck{isAtLookupLimit: true}
	}
	return check
}

// answerFromMark refuses a report without a read of the ledger. refusal is the reason that the mark of the device gives. untilTurn is the time
// after which the device reports again if it waits in a queue. If parkable is not nil and there is room, the report is parked.
func (d *Dispatcher) answerFromMark(caller devices.Caller, report devices.Report, parkable *waiters.ParkedReport, check markCheck, refusal decision.Choice, untilTurn time.Duration) *reportHandling {
	from := &reporter{d: d, caller: caller, view: store.DeviceView{Now: check.mark.Now}, storedPool: check.mark.Wait.Pool}
	from.replaceOlderReport(parkable)
	changed := from.reach() != check.reach
	if changed {
		d.Devices.RecordReach(caller, from.reach())
	}
	h := &reportHandling{d: d, reporter: from, report: report, reply: devices.Reply{Re: report.ID, FromMark: true}}
	h.replyWithoutTask(refusal, untilTurn)
	from.recordLastReport(check.mark.Now, h.delayUntilNextReport(), changed)
	return h
}

// answerAtLookupLimit refuses a report that cannot be looked up now. The device reports again at a random time within a report period. An
// older parked report of the device stays parked, because nothing has checked that the sender may act for the device.
func (d *Dispatcher) answerAtLookupLimit(caller devices.Caller, report devices.Report) *reportHandling {
	timing := d.timing()
	timing.Outage = func() time.Duration { return d.config.ReportPeriod }
	return &reportHandling{d: d, reporter: &reporter{d: d, caller: caller}, report: report, reply: devices.Reply{
		Re: report.ID, Reason: devices.ReasonUnavailable, ReportAfterMS: timing.DelayAfterRefusal(devices.ReasonUnavailable).Milliseconds(),
	}}
}

// correctMark updates the mark of a device that handling has looked up in the ledger. It deletes the mark of a device without work, records
// the wait of a device that waits for a slot, and completes an audit.
func (d *Dispatcher) correctMark(ctx context.Context, device devices.ID, check markCheck, handling *reportHandling) {
	var err error
	version, hasNoWork := check.mark.Version, handling.foundNoWork()
	if version != "" && check.isAudit {
		err = d.auditWait(ctx, device, check, handling.reply)
	}
	switch {
	case version != "" && hasNoWork:
		d.metrics.marks.needless.Inc()
		err = errors.Join(err, d.Marks.ClearMark(ctx, string(device), version))
	case version != "":
		err = errors.Join(err, d.recordWait(ctx, device, check, handling))
	case check.isAudit && !hasNoWork:
		err = d.auditMark(ctx, device)
	}
	if err != nil {
		d.log.DebugContext(ctx, "mark not updated", "err", err)
	}
}

// auditMark counts an error if the device has work but no mark. The work may be newer than the first read of the mark, and may end at any
// time. So auditMark reads the mark again, and then the device.
func (d *Dispatcher) auditMark(ctx context.Context, device devices.ID) error {
	missing, err := d.Marks.IsMarkMissing(ctx, string(device))
	if err != nil || !missing {
		return err
	}
	again, err := d.readFullView(ctx, device)
	if err == nil && (len(again.Candidates) > 0 || again.Grant != nil) {
		d.metrics.marks.missing.Inc()
		d.log.ErrorContext(ctx, "a device with work has no mark", "device", device)
	}
	return err
}
