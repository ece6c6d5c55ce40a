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

// reporter is the sender of a report: a device, or the holder of a lease, which reports like a device.
type reporter struct {
	d          *Dispatcher
	caller     devices.Caller
	view       store.DeviceView
	park       *waiters.ParkedReport // nil if the answer may not wait (long poll)
	storedPool string                // result of poolOfOldestBatch, stored while the report is parked, because view is then empty

	callerBound  *store.CallerBound // how many slots callers hold and may hold in the pool of this caller; nil if the reporter is a device
	blockedAlone bool               // the reason of the last refusal concerns this caller alone, so that other callers could start
	hasYielded   bool               // this caller has yielded its place: the callers behind it go first until OpenLease is called again
}

// replaceOlderReport ends the wait of an older report of the device. If newer is not nil and there is room, it enters newer in ParkedReports.
func (r *reporter) replaceOlderReport(newer *waiters.ParkedReport) {
	if r.d.Waiters.ParkedReports.ReplaceOlderReport(string(r.caller.Device), newer) {
		r.park = newer
	}
}

// rereadView reads the view of the device again. If the device has been deleted, it stays in the view, and its next report is refused.
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
	r.view, r.storedPool = view, ""
	return nil
}

func (r *reporter) isStillAdmitted(ctx context.Context) (bool, error) {
	if err := r.rereadView(ctx); err != nil {
		return false, err
	}
	return r.d.Devices.IsStillAdmitted(ctx, r.caller, r.view)
}

func (r *reporter) taskPools() []string { return decision.DistinctPools(r.view.Candidates) }

// poolOfOldestBatch returns the pool of the device's oldest open batch, or "".
func (r *reporter) poolOfOldestBatch() string {
	if len(r.view.Candidates) == 0 {
		return r.storedPool
	}
	return slices.MinFunc(r.view.Candidates, decision.CompareBatchAge).Pool
}

// reach returns how the device can be notified of a slot from now on.
func (r *reporter) reach() store.Reach {
	switch {
	case r.caller.Via == devices.ViaSession && r.d.config.Waker != nil:
		return store.ReachPush
	case r.park != nil:
		return store.ReachPark
	}
	return store.ReachNone
}

// maxParkTime returns the maximum wait of a report that may be parked, or 0. If it is longer than the configured report period, the queue
// expects the next report of the device within this time.
func (r *reporter) maxParkTime() time.Duration {
	if r.park == nil {
		return 0
	}
	return r.park.Wait
}

// seenAt returns the time of the report by the ledger's clock, or the time of the device's registration if that is later.
func (r *reporter) seenAt() time.Time {
	if d := r.view.Device; d != nil && d.CreatedAt.After(r.view.Now) {
		return d.CreatedAt
	}
	return r.view.Now
}

// recordLastReport records that the device reported at seenAt, how it can be notified (its reach), and that it is asked to report again after
// reportAfter. If isUrgent is true, the next pass "reached" writes the record even if the ledger seems to have the same reach.
func (r *reporter) recordLastReport(seenAt time.Time, reportAfter time.Duration, isUrgent bool) {
	if r.caller.Via == devices.ViaLease { // there is no device
		return
	}
	record := r.d.Seen.Record
	if isUrgent {
		record = r.d.Seen.RecordReach
	}
	quietUntil := seenAt.Add(reportAfter - r.d.config.ReportPeriod)
	record(string(r.caller.Device), store.LastReport{At: seenAt, Reach: r.reach(), QuietUntil: quietUntil, Wire: string(r.caller.WireName())})
}

// recordParked records that the device can be notified through its parked report. The record is urgent, because another replica may be about
// to write ReachNone for an older report.
func (r *reporter) recordParked(seenAt time.Time) { r.recordLastReport(seenAt, 0, true) }

// wakeNewerReport wakes the newer parked report of the device after this report was granted a task. The newer report may have been decided before
// this grant, and must deliver it.
func (r *reporter) wakeNewerReport(ctx context.Context) {
	if _, err := r.d.Waiters.Relay.Wake(context.WithoutCancel(ctx), []parked.WakeMessage{{Device: string(r.caller.Device)}}); err != nil {
		r.d.log.WarnContext(ctx, "newer report of a device not woken; its grant waits for the next report", "err", err)
	}
}

// readCallerBound sets callerBound from the ledger if the reporter is the holder of a lease. Otherwise it sets callerBound to nil.
func (r *reporter) readCallerBound(ctx context.Context) error {
	r.callerBound = nil // drops the bound of an earlier decision
	if r.caller.Via != devices.ViaLease || len(r.view.Candidates) == 0 {
		return nil
	}
	c := r.view.Candidates[0] // a holder has exactly one task
	found, err := r.d.config.Store.CallerBoundOf(ctx, c.Pool, c.Task)
	r.callerBound = &found
	return err
}

// yieldPlaceInQueue lets the callers behind this caller go first, if refusal concerns this caller alone.
func (r *reporter) yieldPlaceInQueue(ctx context.Context, refusal decision.Choice) {
	r.blockedAlone = refusal.BlocksOneTask && r.callerBound != nil && r.callerBound.Bound != nil
	if !r.blockedAlone {
		return
	}
	r.hasYielded = true
	c := r.view.Candidates[0]
	yielded, err := r.d.config.Store.YieldPlace(ctx, c.Task)
	if err != nil {
		r.d.log.WarnContext(ctx, "place of a caller not yielded; other callers wait behind a caller that cannot start", "pool", c.Pool, "err", err)
	}
	if yielded {
		r.d.Waiters.Relay.WakeCallers(c.Pool)
	}
}
