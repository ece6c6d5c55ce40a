package dispatcher

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/marks"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// maxRecordedWait is the maximum time for which a recorded wait is trusted. After that, the ledger is read again for the device.
const maxRecordedWait = 24 * time.Hour

// answerWaitingDevice answers the report of a device whose mark says that it waits for a slot, without a read of the ledger. It returns nil if
// the report must be looked up in the ledger, because the queue may give the device a slot, does not know the device, or does not answer. If the
// report is audited, answerWaitingDevice sets check.isAudit and returns nil.
func (d *Dispatcher) answerWaitingDevice(ctx context.Context, caller devices.Caller, report devices.Report, parkable *waiters.ParkedReport, check *markCheck) *reportHandling {
	pool := check.mark.Wait.Pool
	expected := &reporter{d: d, caller: caller, park: parkable} // as if there were room to park the report
	after, err := d.Waiters.Slots.Refresh(ctx, pool, expected.maxParkTime(), slots.WaiterRefresh{
		Device: string(caller.Device), Reach: expected.reach(), Chance: d.config.Jitter(),
	})
	if err != nil || after == 0 {
		return nil
	}
	d.Waiters.Pools.RecordWaitingDevice(pool)
	if check.isAudit = d.countAuditableReport(); check.isAudit {
		return nil
	}
	d.metrics.waits.refreshed.Inc()
	h := d.answerFromMark(caller, report, parkable, *check, decision.Choice{Reason: devices.ReasonFull}, after)
	if h.reporter.reach() != expected.reach() { // there was no room
		d.Waiters.Offers.SendDeviceUpdate(string(caller.Device), slots.WaiterPassedOver, []string{pool})
	}
	return h
}

// recordableWait returns the wait of a device that was refused because its pool is full. It returns a Wait without a pool if the wait cannot be
// recorded, because the tasks of the device belong to several pools, have policies, or are urgent. newsPosition is the position in the news that
// was read before the device. A recorded wait is valid until its time Until, or until news concern the device or the pool.
func (h *reportHandling) recordableWait(newsPosition int64) marks.Wait {
	view := h.reporter.view
	if h.reply.Reason != devices.ReasonFull || len(view.Candidates) == 0 || policies.AnyHasPolicies(view.Candidates) {
		return marks.Wait{}
	}
	wait := marks.Wait{Pool: view.Candidates[0].Pool, Position: newsPosition, Until: view.Now.Add(maxRecordedWait)}
	if !view.NextStart.IsZero() && view.NextStart.Before(wait.Until) {
		wait.Until = view.NextStart
	}
	for _, c := range view.Candidates {
		next, isKnown := nextChangeOfMayStart(c, view.Now)
		if c.Pool != wait.Pool || c.Urgent || !isKnown {
			return marks.Wait{}
		}
		if !next.IsZero() && next.Before(wait.Until) {
			wait.Until = next
		}
	}
	return wait
}

// nextChangeOfMayStart returns the next time at which task begins or ceases to be allowed to start, if the ledger does not change.
// next is zero if there is no such time. isKnown is false if the time is unknown, because the task has expired, or because the next opening of a
// window is not computed yet.
func nextChangeOfMayStart(task store.Candidate, now time.Time) (next time.Time, isKnown bool) {
	needed := time.Duration(0)
	if task.FinishInside {
		needed = task.Lease
	}
	isKnown = task.ExpiresAt.IsZero() || task.ExpiresAt.After(now)
	times := []time.Time{task.NotBefore, task.RetryAt, task.Standstill, task.ExpiresAt}
	for _, opening := range []store.Opening{task.Window, task.PoolWindow} {
		last := opening.Until.Add(-needed) // the last time at which the task may start
		isKnown = isKnown && (opening.Until.IsZero() || last.After(now))
		times = append(times, opening.From, last)
	}
	for _, at := range times {
		if at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next, isKnown
}

// recordWait records the wait of the device in its mark, so that its next reports need no lookup in the ledger.
func (d *Dispatcher) recordWait(ctx context.Context, device devices.ID, check markCheck, handling *reportHandling) error {
	wait, recorded := handling.recordableWait(check.mark.Position), check.mark.Wait
	if wait.Pool == "" || wait.Pool == recorded.Pool && !wait.Until.Before(recorded.Until) {
		return nil
	}
	return d.Marks.RecordWait(ctx, string(device), check.mark.Version, wait)
}

// endWaits ends the recorded waits of devices that were granted tasks. If Redis does not answer, a wait may stay recorded. If the reply with the
// grant is lost as well, the device gets the grant only when its turn in the queue comes, or after an audit.
func (d *Dispatcher) endWaits(ctx context.Context, devices []string) {
	if d.Marks == nil {
		return
	}
	if err := d.Marks.EndWaits(ctx, devices); err != nil {
		d.log.WarnContext(ctx, "waits of devices that were granted tasks not ended", "devices", len(devices), "err", err)
	}
}

// auditWait counts an error if reply, which was decided from the ledger, contradicts the wait in the mark of the device. Before that, it reads
// the news and the mark again, because the wait may have changed since checkMark read it.
func (d *Dispatcher) auditWait(ctx context.Context, device devices.ID, check markCheck, reply devices.Reply) error {
	switch reply.Reason {
	case devices.ReasonFull, devices.ReasonGranted, devices.ReasonUnavailable:
		return nil
	}
	holds, err := d.Marks.IsWaitValid(ctx, string(device), check.mark.Wait)
	if err == nil && holds {
		d.metrics.waits.wrong.Inc()
		d.log.ErrorContext(ctx, "a device does not wait for a slot, but its mark says so", "device", device, "pool", check.mark.Wait.Pool, "reason", reply.Reason)
	}
	return err
}
