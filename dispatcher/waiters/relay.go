package waiters

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
)

// callersAtOnce is the maximum number of callers that are woken when a slot of a caller becomes free.
const callersAtOnce = 64

// Relay parks and wakes reports over all replicas. It wakes the reports that are parked at this
// replica, and sends the messages to all other reports to the other replicas.
type Relay struct {
	parks      *Parks
	board      Parking // if nil, no other replica parks reports
	ledger     Ledger
	background *background
	log        *slog.Logger
}

// Park ends the older parked report of the device at another replica, and marks report as parked. It neither blocks nor ends the wait: the
// dispatcher ends it after report.Wait. Redis keeps the number of report for numberTTL, which must be longer than report.Wait. Park works
// even if ctx has ended because the device left: Departures needs the number of report.
func (r *Relay) Park(ctx context.Context, report *ParkedReport, numberTTL time.Duration) error {
	var number int64
	var gap bool
	if r.board != nil {
		var err error
		if number, gap, err = r.board.RegisterNewest(context.WithoutCancel(ctx), report.Device, numberTTL); err != nil {
			return err //nolint:wrapcheck // the board says what it was doing
		}
	}
	r.parks.markParked(report, number)
	if gap { // the queues may have been notified since that the device left
		r.parks.wake([]parked.WakeMessage{{Device: report.Device}})
	}
	return nil
}

// Wake wakes the parked reports that messages names. elsewhere are the messages to reports that are not parked at this replica; Wake sends
// them to the other replicas. No reply shows whether a replica has the report.
func (r *Relay) Wake(ctx context.Context, messages []parked.WakeMessage) (elsewhere []parked.WakeMessage, err error) {
	elsewhere = r.parks.wake(messages)
	if len(elsewhere) > 0 && r.board != nil {
		err = r.board.Wake(ctx, elsewhere)
	}
	return elsewhere, err //nolint:wrapcheck // the board says what it was doing
}

// WakeCallers wakes, in the background, the first waiting callers of a pool in which callers held
// their maximum number of slots. These callers are in no queue, so no slot is offered to them. A
// caller whose message is lost asks again by itself within seconds. Handoffs does not measure these
// grants.
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

// findGone returns those of the ended reports whose devices are gone: they have parked no newer
// report at any replica.
func (r *Relay) findGone(ctx context.Context, ended []parked.Report) (gone []parked.Report, err error) {
	gone = slices.DeleteFunc(slices.Clone(ended), func(report parked.Report) bool { return r.parks.has(report.Device) })
	if r.board == nil || len(gone) == 0 {
		return gone, nil
	}
	if gone, err = r.board.RecordEnded(ctx, gone); err != nil {
		return nil, fmt.Errorf("releasing devices that left: %w", err)
	}
	return gone, nil
}

// wakeReturned wakes the newest parked report of each device of ended. The reports in ended are older,
// and their connections have ended.
func (r *Relay) wakeReturned(ctx context.Context, ended []parked.Report) error {
	gone, err := r.findGone(ctx, ended)
	if err != nil {
		return err
	}
	var calls []parked.WakeMessage
	for _, report := range ended {
		if !slices.Contains(gone, report) {
			calls = append(calls, parked.WakeMessage{Device: report.Device})
		}
	}
	_, err = r.Wake(ctx, calls)
	return err
}
