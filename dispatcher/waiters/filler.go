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
	poolsAtOnce   = 8  // maximum number of pools that one pass fills concurrently
	searchesAPass = 40 // maximum number of pools in which one pass searches for devices that sleep
)

// Filler finds devices for free slots that were not offered to a waiter when they became free.
type Filler struct {
	pools        *Pools
	localReports *ParkedReports
	offers       *Offers
	sleepers     *sleepingDeviceFinder
	ledger       Ledger
	semaphore    Semaphore
	requests     *mergedWork[fillRequest]
}

// fillRequest asks to find devices for the free slots of a pool. The zero value asks only for devices in the queue of the pool.
type fillRequest struct {
	searchesSleepers bool // also search for devices that sleep and are in no queue (sleepers)
	restarts         bool // begin the search with the first batch, because there are new tasks or slots
	hasUrgent        bool // a task of an urgent batch may start
}

func (r fillRequest) add(other fillRequest) fillRequest {
	return fillRequest{searchesSleepers: r.searchesSleepers || other.searchesSleepers, restarts: r.restarts || other.restarts, hasUrgent: r.hasUrgent || other.hasUrgent}
}

// FillPool finds devices for the free slots of a pool, in the background. Call it after the pool was resumed or has grown, or after tasks were
// queued. If FillPool is not called, the next pass of any replica finds the devices.
func (f *Filler) FillPool(pool string) {
	f.requests.start(pool, fillRequest{searchesSleepers: true, restarts: true})
}

// FillAllPools finds devices for the free slots of all pools, and handles offers that lapsed or were not sent. It is cheap enough to run twice a
// second. Each call also visits some other pools in turn, and removes from their queues the devices that no longer report. If a node of Redis
// does not answer, FillAllPools handles the pools of the other nodes, and returns the error.
func (f *Filler) FillAllPools(ctx context.Context) error {
	waiting, due, failed := f.semaphore.FindWaitingPools(ctx, f.pools.Names())
	requests := make(map[string]fillRequest, len(due))
	for _, pool := range append(due, f.pools.setPoolsWithWaiters(waiting, failed == nil)...) {
		requests[pool] = fillRequest{}
	}
	work, err := f.ledger.PoolsWithWork(ctx, f.pools.nextPoolsToRead())
	failed = errors.Join(failed, err)
	searched := f.pools.poolsToSearch(work)
	var urgent []string
	if len(searched) > 0 { // a window may have opened, or a backoff have ended, without a call of FillPool
		urgent, err = f.ledger.PoolsWithUrgent(ctx, searched)
		failed = errors.Join(failed, err)
	}
	for _, pool := range searched {
		requests[pool] = fillRequest{searchesSleepers: true, hasUrgent: slices.Contains(urgent, pool)}
	}
	var group rescue.Group
	group.SetLimit(poolsAtOnce)
	for pool, request := range requests {
		if f.requests.add(pool, request) {
			group.Go(func() error { return f.requests.run(ctx, pool) })
		}
	}
	return errors.Join(failed, group.Wait())
}

// offerFreeSlots lets the semaphore offer the free slots of a pool to waiters. If the queue has too few waiters, offerFreeSlots adds sleeping
// devices.
func (f *Filler) offerFreeSlots(ctx context.Context, pool string, request fillRequest) error {
	ctx, cancel := context.WithTimeout(ctx, handoffLimit)
	defer cancel()
	var updates []slots.Update
	if f.localReports.parkedReportCount() > 0 { // only this replica can wake its parked reports, and a message to do so may have been lost
		updates = []slots.Update{{Kind: slots.ResendParkedOffers}}
	}
	queue, err := f.semaphore.OfferSlots(ctx, pool, f.pools.Pace(pool), updates)
	if err != nil {
		return fmt.Errorf("handing off slots of pool %s: %w", pool, err)
	}
	f.offers.NotifyOfOffers(pool, queue.Offers, time.Time{})
	if !queue.PoolKnown || !request.searchesSleepers {
		return nil
	}
	joiners, err := f.sleepers.findSleepingDevices(ctx, pool, queue, request)
	if err != nil || len(joiners) == 0 {
		return err
	}
	if queue, err = f.semaphore.Join(ctx, pool, f.pools.Pace(pool), joiners); err != nil {
		return fmt.Errorf("queueing devices in pool %s: %w", pool, err)
	}
	f.offers.NotifyOfOffers(pool, queue.Offers, time.Time{})
	return nil
}
