package dispatcher

import (
	"context"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/store"
)

// reporter is the sender of a report: a device with its latest view from the ledger, or the holder of a
// lease, which reports like a device.
type reporter struct {
	d          *Dispatcher
	caller     devices.Caller
	view       store.DeviceView
	park       *waiters.ParkedReport // nil if the answer may not wait (long poll)
	storedPool string                // result of oldestPool, stored while the report is parked, because view is then empty

	callerBound  *store.CallerBound // how many slots callers hold and may hold in the pool of this caller; nil if the reporter is a device
	blockedAlone bool               // the last refusal of the caller had a reason that concerns this caller alone
	hasYielded   bool               // blockedAlone was true for a refusal: the callers that wait behind this caller go first until OpenLease is called again
}

// replaceOlder ends the wait of an older report of the device. newer is the new report. If newer is not nil and there is room, replaceOlder
// enters newer in Parks, so that it may be parked.
func (r *reporter) replaceOlder(newer *waiters.ParkedReport) {
	if r.d.Waiters.Parks.ReplaceOlder(string(r.caller.Device), newer) {
		r.park = newer
	}
}

// rereadView reads the view again. A device that was deleted since the previous read stays in the view: its
// next report is refused.
func (r *reporter) rereadView(ctx context.Context) error {
	view, err := r.d.readFullView(ctx, r.caller.Device)
	if err != nil {
		return err
	}
	switch {
	case r.caller.Via == devices.ViaLease: // a holder is not registered, and policies count by its name
		view.Device = &store.Device{ID: string(r.caller.Device)}
	case view.Device == nil:
		view.Device = r.view.Device
	}
	r.view = view
	return nil
}

// isStillAdmitted reads the view again, and reports whether the caller may still act for the device.
func (r *reporter) isStillAdmitted(ctx context.Context) (bool, error) {
	if err := r.rereadView(ctx); err != nil {
		return false, err
	}
	return r.d.Devices.IsStillAdmitted(ctx, r.caller, r.view) //nolint:wrapcheck // the registry's own
}

// pools returns the pools in which the device has open work, each once.
func (r *reporter) pools() []string { return decision.DistinctPools(r.view.Candidates) }

// oldestPool returns the pool of the device's oldest open batch, or an empty string if the device has no open
// task.
func (r *reporter) oldestPool() string {
	if len(r.view.Candidates) == 0 {
		return r.storedPool
	}
	return slices.MinFunc(r.view.Candidates, decision.CompareBatchAge).Pool
}

// reach returns the reach of the device: how it can be notified of a slot from now on.
func (r *reporter) reach() store.Reach {
	switch {
	case r.caller.Via == devices.ViaSession && r.d.config.Waker != nil:
		return store.ReachPush
	case r.park != nil:
		return store.ReachPark
	}
	return store.ReachNone
}

// reportPeriod returns the maximum wait of a report that may be parked, because its device stays connected
// for that time. For all other reports it returns 0: the configured report period applies.
func (r *reporter) reportPeriod() time.Duration {
	if r.park == nil {
		return 0
	}
	return r.park.Wait
}

// seenAt returns the time of the report, by the ledger's clock. If the report has just registered its device,
// the time is not before the registration.
func (r *reporter) seenAt() time.Time {
	if d := r.view.Device; d != nil && d.CreatedAt.After(r.view.Now) {
		return d.CreatedAt
	}
	return r.view.Now
}

// recordSeen records that the device reported at seenAt, a time of the ledger's clock, and is asked to report again after reportAfter. It
// also records the reach of the device (how it can be notified). If isUrgent is true, the next pass "reached" writes the reach, even if the
// ledger seems to have the same reach already.
func (r *reporter) recordSeen(seenAt time.Time, reportAfter time.Duration, isUrgent bool) {
	if r.caller.Via == devices.ViaLease { // there is no device
		return
	}
	mark := r.d.Seen.Record
	if isUrgent {
		mark = r.d.Seen.RecordReach
	}
	quietUntil := seenAt.Add(reportAfter - r.d.config.ReportPeriod)
	mark(string(r.caller.Device), store.LastReport{At: seenAt, Reach: r.reach(), QuietUntil: quietUntil, Wire: string(r.caller.WireName())})
}

// recordParked records that the device can be notified through its parked report. seenAt is the time of the report by the ledger's clock.
// The record is urgent, because another replica may be about to write ReachNone for an older report or a broken connection.
func (r *reporter) recordParked(seenAt time.Time) { r.recordSeen(seenAt, 0, true) }

// wakeNewer wakes the newer report that ended this report. The device may not receive the answer of this
// report, and the newer report may have been decided before this report was granted a task.
func (r *reporter) wakeNewer(ctx context.Context) {
	if _, err := r.d.Waiters.Relay.Wake(context.WithoutCancel(ctx), []parked.WakeMessage{{Device: string(r.caller.Device)}}); err != nil {
		r.d.log.WarnContext(ctx, "newer report of a device not woken; its grant waits for the next report", "err", err)
	}
}

// readCallerBound reads how many slots callers hold, if the reporter is a caller.
func (r *reporter) readCallerBound(ctx context.Context) error {
	r.callerBound = nil // drops the bound of an earlier decision
	if r.caller.Via != devices.ViaLease || len(r.view.Candidates) == 0 {
		return nil
	}
	c := r.view.Candidates[0] // a holder has exactly one task
	found, err := r.d.config.Store.CallerBoundOf(ctx, c.Pool, c.Task)
	r.callerBound = &found
	return err //nolint:wrapcheck // the store says what it was doing
}

// yieldPlace lets the callers behind this caller go first if refusal, the refusal of this caller, has a reason that concerns this caller
// alone. From then on, the bound of callers does not count this caller.
func (r *reporter) yieldPlace(ctx context.Context, refusal decision.Choice) {
	r.blockedAlone = refusal.BlocksOneTask && r.callerBound != nil && r.callerBound.Bound != nil
	if !r.blockedAlone {
		return
	}
	r.hasYielded = true
	c := r.view.Candidates[0]
	stood, err := r.d.config.Store.YieldPlace(ctx, c.Task)
	if err != nil {
		r.d.log.WarnContext(ctx, "place of a caller not yielded; other callers wait behind a caller that cannot start", "pool", c.Pool, "err", err)
	}
	if stood {
		r.d.Waiters.Relay.WakeCallers(c.Pool)
	}
}
