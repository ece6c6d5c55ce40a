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

// longestWait is the time after which the ledger is read again for a device that waits, even if no news concerned the wait.
const longestWait = 24 * time.Hour

// answerWaiting answers the report of a device that waits for a slot, according to its mark, from the queue alone. It returns nil if the
// report must be looked up in the ledger: the queue may give the device a slot, does not know it or does not answer, or the report is to be
// audited (check.isAudit).
func (d *Dispatcher) answerWaiting(ctx context.Context, caller devices.Caller, report devices.Report, park *waiters.ParkedReport, check *markCheck) *reportHandling {
	pool := check.mark.Wait.Pool
	expected := &reporter{d: d, caller: caller, park: park} // as if there were room to park the report
	after, err := d.Waiters.Slots.Refresh(ctx, pool, expected.reportPeriod(), slots.WaiterRefresh{
		Device: string(caller.Device), Reach: expected.reach(), Chance: d.config.Jitter(),
	})
	if err != nil || after == 0 {
		return nil
	}
	d.Waiters.Pools.MarkWaiting(pool)
	if check.isAudit = d.isNextAudit(); check.isAudit {
		return nil
	}
	d.metrics.waits.refreshed.Inc()
	h := d.answerFromMark(caller, report, park, *check, decision.Choice{Reason: devices.ReasonFull}, after)
	if h.reporter.reach() != expected.reach() { // there was no room
		d.Waiters.Offers.Update(string(caller.Device), slots.WaiterPassedOver, []string{pool})
	}
	return h
}

// steadyWait returns the wait of a device that was refused because its pool is full, or a Wait without a pool if the wait cannot be
// recorded. A recorded wait holds until its time Until, or until news concern the device or the pool; position is the position in the news
// before the device was read. The tasks of the device must belong to one pool, have no policies, and not be urgent.
func (h *reportHandling) steadyWait(position int64) marks.Wait {
	view := h.reporter.view
	if h.reply.Reason != devices.ReasonFull || len(view.Candidates) == 0 || policies.AnyHasPolicies(view.Candidates) {
		return marks.Wait{}
	}
	wait := marks.Wait{Pool: view.Candidates[0].Pool, Position: position, Until: view.Now.Add(longestWait)}
	if !view.NextStart.IsZero() && view.NextStart.Before(wait.Until) {
		wait.Until = view.NextStart
	}
	for _, c := range view.Candidates {
		next, isSteady := nextChange(c, view.Now)
		if c.Pool != wait.Pool || c.Urgent || !isSteady {
			return marks.Wait{}
		}
		if !next.IsZero() && next.Before(wait.Until) {
			wait.Until = next
		}
	}
	return wait
}

// nextChange returns the next time at which task becomes able or unable to start without a change in the ledger, or zero. isSteady is false
// if this is unknown: the task has expired, or the next opening of a window is not computed yet.
func nextChange(task store.Candidate, now time.Time) (next time.Time, isSteady bool) {
	needed := time.Duration(0)
	if task.FinishInside {
		needed = task.Lease
	}
	isSteady = task.ExpiresAt.IsZero() || task.ExpiresAt.After(now)
	times := []time.Time{task.NotBefore, task.RetryAt, task.Standstill, task.ExpiresAt}
	for _, opening := range []store.Opening{task.Window, task.PoolWindow} {
		last := opening.Until.Add(-needed) // the last time at which the task may start
		isSteady = isSteady && (opening.Until.IsZero() || last.After(now))
		times = append(times, opening.From, last)
	}
	for _, at := range times {
		if at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next, isSteady
}

// recordWait records the wait of the device in its mark, so that its next reports need no lookup in the ledger.
func (d *Dispatcher) recordWait(ctx context.Context, device devices.ID, check markCheck, handling *reportHandling) error {
	wait, recorded := handling.steadyWait(check.mark.Position), check.mark.Wait
	if wait.Pool == "" || wait.Pool == recorded.Pool && !wait.Until.Before(recorded.Until) {
		return nil
	}
	return d.Marks.RecordWait(ctx, string(device), check.mark.Version, wait)
}

// endWaits ends the recorded waits of devices that were granted tasks. If Redis does not answer, a wait may stay recorded; if the reply
// with the grant is then lost too, the device gets it only when the queue expects the device, or after an audit.
func (d *Dispatcher) endWaits(ctx context.Context, devices []string) {
	if d.Marks == nil {
		return
	}
	if err := d.Marks.EndWaits(ctx, devices); err != nil {
		d.log.WarnContext(ctx, "waits of devices that were granted tasks not ended", "devices", len(devices), "err", err)
	}
}

// auditWait counts a wrong wait in the mark of the device: reply, the answer from the ledger, does not agree with it. The wait may have
// changed since it was read, so auditWait first reads the news and the mark again.
func (d *Dispatcher) auditWait(ctx context.Context, device devices.ID, check markCheck, reply devices.Reply) error {
	switch reply.Reason {
	case devices.ReasonFull, devices.ReasonGranted, devices.ReasonUnavailable:
		return nil
	}
	holds, err := d.Marks.WaitHolds(ctx, string(device), check.mark.Wait)
	if err == nil && holds {
		d.metrics.waits.wrong.Inc()
		d.log.ErrorContext(ctx, "a device does not wait for a slot, but its mark says so", "device", device, "pool", check.mark.Wait.Pool, "reason", reply.Reason)
	}
	return err
}
