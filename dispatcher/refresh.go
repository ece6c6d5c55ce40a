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

// answerWaiting answers the report of a device from the queue alone, without the ledger. The mark of the device says that it waits for a
// slot (check.mark.Wait). answerWaiting returns nil if the report must be looked up in the ledger. This is so if the queue may give the
// device a slot, does not know the device or does not answer, and if the report is to be audited (then answerWaiting sets check.isAudit).
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
	if check.isAudit = d.markChecker.isNextAudit(); check.isAudit {
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
// recorded. position is the position in the news that was read before the device. A recorded wait holds until news concern the device or
// the pool, but not after its time Until. A wait can be recorded only if no policies apply to the tasks of the device, all tasks belong to
// one pool, and none is urgent: an urgent task gets its slot by other rules of the queue.
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

// nextChange returns the next time at which task becomes able or unable to start without a change in the ledger. Zero means that there is
// no such time. isSteady is false if the time is unknown. There are two cases: the time at which task expires has passed; or an opening of
// a window is over, and the next opening is not known yet.
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

// recordWait records the wait of the device in its mark, if it waits steadily (steadyWait). Then its next reports need no lookup in the
// ledger.
func (i *markChecker) recordWait(ctx context.Context, device devices.ID, check markCheck, h *reportHandling) error {
	wait, recorded := h.steadyWait(check.mark.Position), check.mark.Wait
	if wait.Pool == "" || wait.Pool == recorded.Pool && !wait.Until.Before(recorded.Until) {
		return nil
	}
	return i.marks.RecordWait(ctx, string(device), check.mark.Version, wait) //nolint:wrapcheck // the marks' own
}

// endWaits ends the waits that are recorded in the marks of devices, because the devices were granted tasks. If Redis does not answer, a
// wait may stay recorded. If the reply with the grant is then lost too, the device gets it again only when the queue expects the device, or
// after an audit.
func (d *Dispatcher) endWaits(ctx context.Context, devices []string) {
	if d.Marks == nil {
		return
	}
	if err := d.Marks.EndWaits(ctx, devices); err != nil {
		d.log.WarnContext(ctx, "waits of devices that were granted tasks not ended", "devices", len(devices), "err", err)
	}
}

// auditWait compares the wait in the mark of the device with reply, the answer from the ledger. It counts a wrong wait if reply neither
// refuses the device because the pool is full, nor grants a task, nor is unavailable. A change may be newer than the check of the mark, so
// auditWait first reads the news and the mark again.
func (i *markChecker) auditWait(ctx context.Context, device devices.ID, check markCheck, reply devices.Reply) error {
	switch reply.Reason {
	case devices.ReasonFull, devices.ReasonGranted, devices.ReasonUnavailable:
		return nil
	}
	holds, err := i.marks.WaitHolds(ctx, string(device), check.mark.Wait)
	if err == nil && holds {
		i.metrics.waits.wrong.Inc()
		i.log.ErrorContext(ctx, "a device does not wait for a slot, but its mark says so", "device", device, "pool", check.mark.Wait.Pool, "reason", reply.Reason)
	}
	return err //nolint:wrapcheck // the marks' own
}
