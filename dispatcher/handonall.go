package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/slots"
)

const (
	poolsAtOnce   = 8  // that one pass hands on in
	searchesAPass = 40 // for devices that sleep
)

// looking is how a pool is looked at.
type looking struct {
	search bool // for devices that stand in no line, too
	anew   bool // from the beginning: something has come
}

func (l looking) and(more looking) looking {
	return looking{search: l.search || more.search, anew: l.anew || more.anew}
}

// HandOn finds devices for the free places of a pool, beside the caller: it was
// resumed or has grown, or something was queued in it. The next pass of every
// replica would, too.
func (d *Dispatcher) HandOn(pool string) {
	d.refusals.freed(pool)
	if d.lookings.add(pool, looking{search: true, anew: true}) {
		d.errands.start(func(ctx context.Context) {
			if err := d.panicked.Tell("handing on", d.lookInTurn(ctx, pool)); err != nil {
				d.log.WarnContext(ctx, "free places are offered by the next pass", "pool", pool, "err", err)
			}
		})
	}
}

// HandOnAnew lets the next pass look through all pools from the beginning: tasks
// may wait again that were over.
func (d *Dispatcher) HandOnAnew() { d.searches.forget() }

// HandOnAll is HandOn for all pools, with what is left of the offers in them:
// those that lapsed, and those of which nobody said that they were sent. It is
// cheap enough to run twice a second: a pool in which nothing can be handed on,
// since all who wait poll or nothing is free, only has its turn with the others:
// then who does not come any more leaves its line.
func (d *Dispatcher) HandOnAll(ctx context.Context) error {
	waiting, due, err := d.semaphore.Lines(ctx, d.lines.names())
	if err != nil {
		return fmt.Errorf("handing on: %w", err)
	}
	looks := make(map[string]looking, len(due))
	for _, pool := range append(due, d.lines.setWaiting(waiting)...) {
		looks[pool] = looking{}
	}
	work, failed := d.store.PoolsWithWork(ctx, d.lines.next())
	for _, pool := range d.lines.search(work) {
		looks[pool] = looking{search: true}
	}
	var group rescue.Group
	group.SetLimit(poolsAtOnce)
	for pool, look := range looks {
		if d.lookings.add(pool, look) {
			group.Go(func() error { return d.lookInTurn(ctx, pool) })
		}
	}
	return errors.Join(failed, group.Wait())
}

func (d *Dispatcher) lookInTurn(ctx context.Context, pool string) error {
	return d.lookings.inTurn(pool, func(look looking) error { return d.lookIn(ctx, pool, look) })
}

// lookIn lets the semaphore offer what is free, to devices that are found for it
// if too few stand in line.
func (d *Dispatcher) lookIn(ctx context.Context, pool string, look looking) error {
	ctx, cancel := context.WithTimeout(ctx, handoffLimit)
	defer cancel()
	line, err := d.semaphore.HandOn(ctx, pool, d.pace(pool), d.missed())
	if err != nil {
		return fmt.Errorf("handing on in pool %s: %w", pool, err)
	}
	d.handOn(pool, line.Offers, time.Time{})
	if !line.Known || !look.search || d.wanting(pool, line) <= 0 {
		return nil
	}
	seats, err := d.findSeats(ctx, pool, look.anew)
	if err == nil {
		seats, err = d.notLimited(ctx, pool, seats)
	}
	if err != nil || len(seats) == 0 {
		return err
	}
	if line, err = d.semaphore.LineUp(ctx, pool, d.pace(pool), seats); err != nil {
		return fmt.Errorf("lining up in pool %s: %w", pool, err)
	}
	d.handOn(pool, line.Offers, time.Time{})
	return nil
}

// missed asks for what the others may have told in vain: a parked report is told
// by its replica alone, and that may have heard nothing.
func (d *Dispatcher) missed() []slots.News {
	if d.parks.count() == 0 {
		return nil
	}
	return []slots.News{{What: slots.AnyMissed}}
}
