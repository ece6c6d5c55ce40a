package waiters

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	search bool // for devices that stand in no queue, too
	anew   bool // from the beginning: something has come
	urgent bool // something urgent may start
}

func (l looking) and(more looking) looking {
	return looking{search: l.search || more.search, anew: l.anew || more.anew, urgent: l.urgent || more.urgent}
}

// Fill finds devices for the free slots of a pool, beside the caller: it was
// resumed or has grown, or something was queued in it. The next pass of every
// replica would, too.
func (n *Notifier) Fill(pool string) {
	if n.looks.add(pool, looking{search: true, anew: true}) {
		n.background.start(func(ctx context.Context) {
			if err := n.config.Panicked.Tell("handing on", n.runLooks(ctx, pool)); err != nil {
				n.config.Logger.WarnContext(ctx, "free slots are offered by the next pass", "pool", pool, "err", err)
			}
		})
	}
}

// FillAnew lets the next pass look through all pools from the beginning: tasks
// may wait again that were over.
func (n *Notifier) FillAnew() { n.Pools.searchAnew() }

// FillAll is Fill for all pools, with what is left of the offers in them:
// those that lapsed, and those of which nobody said that they were sent. It is
// cheap enough to run twice a second: a pool in which nothing can be handed on,
// since all who wait poll or nothing is free, only has its turn with the others:
// then devices that do not come any more leave its queue.
func (n *Notifier) FillAll(ctx context.Context) error {
	waiting, due, err := n.config.Semaphore.Queues(ctx, n.Pools.Names())
	if err != nil {
		return fmt.Errorf("handing on: %w", err)
	}
	looks := make(map[string]looking, len(due))
	for _, pool := range append(due, n.Pools.setWaiting(waiting)...) {
		looks[pool] = looking{}
	}
	work, failed := n.config.Ledger.PoolsWithWork(ctx, n.Pools.next())
	searched := n.Pools.toSearch(work)
	urgent, err := n.withUrgent(ctx, searched)
	failed = errors.Join(failed, err)
	for _, pool := range searched {
		looks[pool] = looking{search: true, urgent: slices.Contains(urgent, pool)}
	}
	var group rescue.Group
	group.SetLimit(poolsAtOnce)
	for pool, look := range looks {
		if n.looks.add(pool, look) {
			group.Go(func() error { return n.runLooks(ctx, pool) })
		}
	}
	return errors.Join(failed, group.Wait())
}

// withUrgent are those of the pools in which something urgent may start: a window may have
// opened, or a backoff may be over, and nobody said so.
func (n *Notifier) withUrgent(ctx context.Context, pools []string) ([]string, error) {
	if len(pools) == 0 {
		return nil, nil
	}
	return n.config.Ledger.PoolsWithUrgent(ctx, pools)
}

func (n *Notifier) runLooks(ctx context.Context, pool string) error {
	return n.looks.run(pool, func(look looking) error { return n.lookIn(ctx, pool, look) })
}

// lookIn lets the semaphore offer what is free, to devices that are found for it
// if too few stand in the queue.
func (n *Notifier) lookIn(ctx context.Context, pool string, look looking) error {
	ctx, cancel := context.WithTimeout(ctx, handoffLimit)
	defer cancel()
	queue, err := n.config.Semaphore.OfferSlots(ctx, pool, n.Pace(pool), n.missed())
	if err != nil {
		return fmt.Errorf("handing on in pool %s: %w", pool, err)
	}
	n.Offer(pool, queue.Offers, time.Time{})
	if !queue.Known || !look.search {
		return nil
	}
	joiners, err := n.findFor(ctx, pool, queue, look)
	if err == nil {
		joiners, err = n.notLimited(ctx, pool, joiners)
	}
	if err != nil || len(joiners) == 0 {
		return err
	}
	if queue, err = n.config.Semaphore.Join(ctx, pool, n.Pace(pool), joiners); err != nil {
		return fmt.Errorf("queueing devices in pool %s: %w", pool, err)
	}
	n.Offer(pool, queue.Offers, time.Time{})
	return nil
}

// missed asks for what the others may have told in vain: a parked report is told
// by its replica alone, and that may have heard nothing.
func (n *Notifier) missed() []slots.Update {
	if n.Parks.count() == 0 {
		return nil
	}
	return []slots.Update{{Kind: slots.OffersMissed}}
}
