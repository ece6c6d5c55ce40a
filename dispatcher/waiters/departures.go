package waiters

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// departuresAtOnce is the maximum number of devices in one read of the ledger. If a network breaks, thousands of connections end at once.
const departuresAtOnce = 500

// Departures gives back the slots that are reserved for devices whose connections broke before their reports were answered.
type Departures struct {
	localReports *ParkedReports
	relay        *Relay
	offers       *Offers
	ledger       Ledger
	unreachable  func(view store.DeviceView)
	reports      *mergedWork[[]parked.Report] // reports that ended; the pool of this work is always "", because their pools are not known yet
}

// AddClosedReport ends the wait of a parked report whose connection broke. In the background, it gives back the slots that are reserved for the
// device, unless the device has parked a newer report at any replica. The device keeps its place in the queue, but gets no offer until it
// reports.
func (d *Departures) AddClosedReport(report *ParkedReport) {
	if d.localReports.Leave(report) == Parked {
		d.reports.start("", []parked.Report{{Device: report.Device, Number: report.number}})
	}
}

func (d *Departures) stopOffersInParts(ctx context.Context, _ string, reports []parked.Report) (failed error) {
	for part := range slices.Chunk(reports, departuresAtOnce) {
		failed = errors.Join(failed, d.stopOffersTo(ctx, part))
	}
	return failed
}

// stopOffersTo stops the offers to the devices of reports until they report again. A device may return before the queues are updated, and the
// late update would stop its offers. So stopOffersTo checks at the end which devices have returned, and wakes their reports. A device that
// returns later is woken by Relay.Park.
func (d *Departures) stopOffersTo(ctx context.Context, reports []parked.Report) error {
	ctx, cancel := context.WithTimeout(ctx, handoffLimit)
	defer cancel()
	names := make([]string, len(reports))
	for i, r := range reports {
		names[i] = r.Device
	}
	views, err := d.ledger.DeviceViews(ctx, names) // read before findReportsWithoutNewer, so that findReportsWithoutNewer finds devices that return during the read
	if err != nil {
		return fmt.Errorf("reading devices that left: %w", err)
	}
	gone, err := d.relay.findReportsWithoutNewer(ctx, reports)
	if err != nil {
		return err
	}
	updates := make(map[string][]slots.Update)
	for i, r := range reports {
		if !slices.Contains(gone, r) {
			continue
		}
		if views[i].Device != nil {
			d.unreachable(views[i])
		}
		for _, pool := range decision.DistinctPools(views[i].Candidates) {
			updates[pool] = append(updates[pool], slots.Update{Kind: slots.WaiterPassedOver, Device: r.Device})
		}
	}
	var failed error
	for pool, poolUpdates := range updates {
		failed = errors.Join(failed, d.offers.runRounds(ctx, pool, offerRound{updates: poolUpdates}))
	}
	return errors.Join(failed, d.relay.wakeReturnedDevices(ctx, gone))
}
