package waiters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// departuresAtOnce are looked at in one reading of the ledger: a
// network that breaks ends thousands of connections together.
const departuresAtOnce = 500

// Departed gives back at once what is kept for a device whose connection broke
// while its report was parked, beside the caller: nobody could tell it. It keeps
// its turn in the queue, and is offered nothing until it asks again. A newer report of
// the device, parked anywhere, makes the end of this one no news.
func (n *Notifier) Departed(p *Park) {
	if n.Parks.Leave(p) != Parked {
		return
	}
	if n.gone.add("", []parked.Report{{Device: p.Device, Number: p.number}}) {
		n.background.start(n.tellDepartures)
	}
}

// together is how what comes up meanwhile is merged (serial).
func together[T any](earlier, more []T) []T { return append(earlier, more...) }

func (n *Notifier) tellDepartures(ctx context.Context) {
	err := n.gone.run("", func(all []parked.Report) (failed error) {
		for part := range slices.Chunk(all, departuresAtOnce) {
			failed = errors.Join(failed, n.letGo(ctx, part))
		}
		return failed
	})
	if n.config.Panicked.Tell("letting go who left", err) != nil {
		n.config.Logger.WarnContext(ctx, "devices that left are passed over when they miss their offers", "err", err)
	}
}

// letGo tells the queues. A device may come back meanwhile, and stand in a queue
// before its queues hear that it left: so it is looked for again, and whoever is
// parked after that is told of the gap and looks again by itself.
func (n *Notifier) letGo(ctx context.Context, all []parked.Report) error {
	ctx, cancel := context.WithTimeout(ctx, handoffLimit)
	defer cancel()
	views, err := n.viewsOf(ctx, all) // first: who comes back is seen later
	if err != nil {
		return err
	}
	gone, err := n.stillGone(ctx, all)
	if err != nil {
		return err
	}
	updates := make(map[string][]slots.Update)
	for _, r := range gone {
		view := views[r.Device]
		if view.Device != nil {
			n.config.Unreachable(view)
		}
		for _, pool := range decision.PoolsOf(view.Candidates) {
			updates[pool] = append(updates[pool], slots.Update{Kind: slots.WaiterAway, Device: r.Device})
		}
	}
	var failed error
	for pool, of := range updates {
		failed = errors.Join(failed, n.offerNow(ctx, pool, offering{updates: of}))
	}
	return errors.Join(failed, n.callBack(ctx, gone))
}

func (n *Notifier) viewsOf(ctx context.Context, all []parked.Report) (map[string]store.View, error) {
	names := make([]string, len(all))
	for i, r := range all {
		names[i] = r.Device
	}
	views, err := n.config.Ledger.Views(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("looking at devices that left: %w", err)
	}
	of := make(map[string]store.View, len(all))
	for i, name := range names {
		of[name] = views[i]
	}
	return of, nil
}

// stillGone are those whose device has parked no newer report.
func (n *Notifier) stillGone(ctx context.Context, all []parked.Report) (gone []parked.Report, err error) {
	for _, r := range all {
		if !n.Parks.has(r.Device) {
			gone = append(gone, r)
		}
	}
	if n.config.Parking == nil || len(gone) == 0 {
		return gone, nil
	}
	if gone, err = n.config.Parking.Gone(ctx, gone); err != nil {
		return nil, fmt.Errorf("letting devices go that left: %w", err)
	}
	return gone, nil
}

// callBack lets those look again that came back while the queues were told that
// they left.
func (n *Notifier) callBack(ctx context.Context, left []parked.Report) error {
	gone, err := n.stillGone(ctx, left)
	if err != nil {
		return err
	}
	var back []parked.Call
	for _, r := range left {
		if !slices.Contains(gone, r) {
			back = append(back, parked.Call{Device: r.Device})
		}
	}
	if len(back) == 0 {
		return nil
	}
	return n.WakeParked(ctx, back)
}

// WakeParked lets the parked reports of devices look again. Those that are not
// parked here may be elsewhere: the other replicas are told, and whether one of
// them has the report is not known.
func (n *Notifier) WakeParked(ctx context.Context, calls []parked.Call) error {
	others := n.Parks.wake(calls)
	if len(others) == 0 || n.config.Parking == nil {
		return nil
	}
	return n.config.Parking.Wake(ctx, others) //nolint:wrapcheck // the board says what it was doing
}

// Park ends the older parked reports of the device at other replicas, and parks this one.
// remembered is how long it may be parked. It is done for a device that has gone
// meanwhile, too: that is told by its number.
func (n *Notifier) Park(ctx context.Context, p *Park, remembered time.Duration) error {
	var number int64
	var gap bool
	if n.config.Parking != nil {
		var err error
		if number, gap, err = n.config.Parking.Newest(context.WithoutCancel(ctx), p.Device, remembered); err != nil {
			return err //nolint:wrapcheck // the board says what it was doing
		}
	}
	n.Parks.begin(p, number)
	if gap { // the queues may have heard since that the device left
		n.Parks.wake([]parked.Call{{Device: p.Device}})
	}
	return nil
}
