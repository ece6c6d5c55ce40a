package waiters

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
)

// callersAtOnce is the maximum number of callers that one call of WakeCallers wakes.
const callersAtOnce = 64

// Relay parks reports at this replica, and wakes reports at all replicas.
type Relay struct {
	localReports *ParkedReports
	board        Parking // if nil, no other replica parks reports
	ledger       Ledger
	background   *background
	log          *slog.Logger
}

// Park marks report as parked, and ends the wait of an older report of the device at another replica. It returns at once. Redis keeps the
// number of report for numberTTL, which must be longer than report.Wait. Park works even if ctx has ended, because Departures needs the
// number.
func (r *Relay) Park(ctx context.Context, report *ParkedReport, numberTTL time.Duration) error {
	var number int64
	var previousJustEnded bool
	if r.board != nil {
		var err error
		if number, previousJustEnded, err = r.board.RegisterNewestReport(context.WithoutCancel(ctx), report.Device, numberTTL); err != nil {
			return err
		}
	}
	r.localReports.markParked(report, number)
	if previousJustEnded { // a late update about an ended connection may have stopped the offers to the device
		r.localReports.wakeOwnReports([]parked.WakeMessage{{Device: report.Device}})
	}
	return nil
}

// Wake wakes the parked reports to which messages are addressed. toOtherReplicas are the messages to reports that are not parked at this
// replica. Wake sends these messages to the other replicas, which do not answer whether they have the report.
func (r *Relay) Wake(ctx context.Context, messages []parked.WakeMessage) (toOtherReplicas []parked.WakeMessage, err error) {
	toOtherReplicas = r.localReports.wakeOwnReports(messages)
	if len(toOtherReplicas) > 0 && r.board != nil {
		err = r.board.Wake(ctx, toOtherReplicas)
	}
	return toOtherReplicas, err
}

// WakeCallers wakes the first waiting callers of a pool, in the background. Call it when callers may hold more slots of the pool than before,
// because callers that wait for this are in no queue. If a message is lost, its caller asks again within seconds.
func (r *Relay) WakeCallers(pool string) {
	r.background.start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, handoffLimit)
		defer cancel()
		callers, err := r.ledger.NextCallers(ctx, pool, callersAtOnce)
		calls := make([]parked.WakeMessage, len(callers))
		for i, caller := range callers {
			calls[i] = parked.WakeMessage{Device: caller, Pool: pool}
		}
		if err == nil {
			_, err = r.Wake(ctx, calls)
		}
		if err != nil {
			r.log.WarnContext(ctx, "waiting callers not woken; they retry by themselves", "pool", pool, "err", err)
		}
	})
}

// findReportsWithoutNewer records that the connections of the reports in the list ended are closed. withoutNewerReport has the reports whose
// devices have parked no newer report at any replica.
func (r *Relay) findReportsWithoutNewer(ctx context.Context, closedReports []parked.Report) (withoutNewerReport []parked.Report, err error) {
	withoutNewerReport = slices.DeleteFunc(slices.Clone(closedReports), func(report parked.Report) bool { return r.localReports.hasReport(report.Device) })
	if r.board == nil || len(withoutNewerReport) == 0 {
		return withoutNewerReport, nil
	}
	if withoutNewerReport, err = r.board.RecordClosedConnections(ctx, withoutNewerReport); err != nil {
		return nil, fmt.Errorf("releasing devices that left: %w", err)
	}
	return withoutNewerReport, nil
}

// wakeReturnedDevices wakes the parked reports of devices that have returned. A device has returned if it has parked a newer report since its
// report in the list ended.
func (r *Relay) wakeReturnedDevices(ctx context.Context, closedReports []parked.Report) error {
	gone, err := r.findReportsWithoutNewer(ctx, closedReports)
	if err != nil {
		return err
	}
	var calls []parked.WakeMessage
	for _, report := range closedReports {
		if !slices.Contains(gone, report) {
			calls = append(calls, parked.WakeMessage{Device: report.Device})
		}
	}
	_, err = r.Wake(ctx, calls)
	return err
}
