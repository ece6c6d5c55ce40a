package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fleetslots/dispatcher/parked"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// departuresAtOnce is how many are looked at in one reading of the ledger: a
// network that breaks ends thousands of connections together.
const departuresAtOnce = 500

// departed gives back at once what is kept for a device whose connection broke
// while its report was parked, beside the caller: nobody could tell it. It keeps
// its place in line, and is offered nothing until it asks again. A newer report of
// the device, parked anywhere, makes the end of this one no news.
func (d *Dispatcher) departed(p *park) {
	if d.parks.leave(p) != parkedStill {
		return
	}
	if d.gone.add("", []parked.Report{{Device: p.device, Number: p.number}}) {
		d.errands.start(d.tellDepartures)
	}
}

// together is how what comes up meanwhile is merged (turns).
func together[T any](earlier, more []T) []T { return append(earlier, more...) }

func (d *Dispatcher) tellDepartures(ctx context.Context) {
	err := d.gone.inTurn("", func(all []parked.Report) (failed error) {
		for part := range slices.Chunk(all, departuresAtOnce) {
			failed = errors.Join(failed, d.letGo(ctx, part))
		}
		return failed
	})
	if d.panicked.Tell("letting go who left", err) != nil {
		d.log.WarnContext(ctx, "devices that left are passed over when they miss their offers", "err", err)
	}
}

// letGo tells the lines. A device may come back meanwhile, and stand in line
// before its lines hear that it left: so it is looked for again, and whoever is
// parked after that is told of the gap and looks again by itself.
func (d *Dispatcher) letGo(ctx context.Context, all []parked.Report) error {
	ctx, cancel := context.WithTimeout(ctx, handoffLimit)
	defer cancel()
	views, err := d.viewsOf(ctx, all) // first: who comes back is seen later
	if err != nil {
		return err
	}
	gone, err := d.stillGone(ctx, all)
	if err != nil {
		return err
	}
	news := make(map[string][]slots.News)
	for _, r := range gone {
		view := views[r.Device]
		d.unreachable(view)
		for _, pool := range poolsOf(view.Candidates) {
			news[pool] = append(news[pool], slots.News{What: slots.WaiterAway, Device: r.Device})
		}
	}
	var failed error
	for pool, of := range news {
		failed = errors.Join(failed, d.relayNow(ctx, pool, telling{news: of}))
	}
	return errors.Join(failed, d.callBack(ctx, gone))
}

func (d *Dispatcher) viewsOf(ctx context.Context, all []parked.Report) (map[string]store.View, error) {
	names := make([]string, len(all))
	for i, r := range all {
		names[i] = r.Device
	}
	views, err := d.store.Views(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("looking at devices that left: %w", err)
	}
	of := make(map[string]store.View, len(all))
	for i, name := range names {
		of[name] = views[i]
	}
	return of, nil
}

// unreachable notes for the ledger that a device can be told of nothing.
func (d *Dispatcher) unreachable(view store.View) {
	if view.Device == nil {
		return
	}
	seen := store.Seen{At: view.Now, Reach: store.ReachNone}
	d.mark(view.Device.ID, seen)
	d.reached.mark(view.Device.ID, seen)
}

// stillGone are those whose device has parked no newer report.
func (d *Dispatcher) stillGone(ctx context.Context, all []parked.Report) (gone []parked.Report, err error) {
	for _, r := range all {
		if !d.parks.has(r.Device) {
			gone = append(gone, r)
		}
	}
	if d.config.Parking == nil || len(gone) == 0 {
		return gone, nil
	}
	if gone, err = d.config.Parking.Gone(ctx, gone); err != nil {
		return nil, fmt.Errorf("letting devices go that left: %w", err)
	}
	return gone, nil
}

// callBack lets those look again that came back while the lines were told that
// they left.
func (d *Dispatcher) callBack(ctx context.Context, left []parked.Report) error {
	gone, err := d.stillGone(ctx, left)
	if err != nil {
		return err
	}
	var back []parked.Call
	for _, r := range left {
		if !slices.Contains(gone, r) {
			back = append(back, parked.Call{Device: r.Device, Age: -1})
		}
	}
	if len(back) == 0 {
		return nil
	}
	return d.wakeParked(ctx, back)
}
