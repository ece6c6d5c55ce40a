package waiters

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const (
	batchesPerSearch = 100              // maximum number of batches in one search
	tasksPerSearch   = 400              // number of tasks that one search examines, divided among its batches
	fewestTasks      = 4                // minimum number of tasks of each batch that one search examines, even if this exceeds tasksPerSearch
	missedReports    = 3                // number of missed reports after which no search returns a device
	seenSlack        = 10 * time.Second // maximum delay with which the last-seen time of a device that can be notified is written (seen.Devices.Flush)

	// When a search has reached its end, the next search begins after a rest. The rest takes restPerTask for each examined task, so at most
	// about 200 tasks a second are examined.
	minRest     = 400 * time.Millisecond
	restPerTask = 5 * time.Millisecond
	maxRest     = 10 * time.Second
)

// sleepingDeviceFinder finds devices that sleep. A sleeping device could start a task of a pool and can be notified, but is in no queue.
type sleepingDeviceFinder struct {
	pools       *Pools
	forecast    *forecast
	ledger      Ledger
	seenWithin  time.Duration // no search returns a device whose last report is older; time for which the device was asked not to report does not count
	urgentShare int           // percent of a pool for which urgent batches go before all other batches
	now         func() time.Time
}

// searchProgress is the progress of the search for sleeping devices in a pool.
type searchProgress struct {
	after     int64                        // batches up to this id were examined in this round
	positions map[int64]store.TaskPosition // position in each batch; the zero value means that the batch was examined to its end
	examined  int                          // number of tasks examined in this round
	rest      time.Time                    // before this time, the search does not begin again
}

// findSleepingDevices returns the sleeping devices that should join the queue of a pool. It searches only if the queue has too few waiters. But
// if there are new tasks or slots, or if an urgent task may start, it always searches for devices with urgent tasks, because they go before all
// other waiters.
func (s *sleepingDeviceFinder) findSleepingDevices(ctx context.Context, pool string, queue slots.QueueState, request fillRequest) (joiners []slots.Joiner, err error) {
	if request.restarts || request.hasUrgent && !s.pools.isUrgentSearchPaused(pool, s.now()) {
		if joiners, err = s.findSleepingUrgentDevices(ctx, pool); err != nil {
			return nil, err
		}
	}
	if hold, _ := s.pools.UsualHoldTime(pool); missingWaiterCount(queue, hold) > 0 {
		more, err := s.findNextSleepingDevices(ctx, pool, request.restarts)
		if err != nil {
			return nil, err
		}
		joiners = append(joiners, more...)
	}
	return s.forecast.removeLimitedDevices(ctx, pool, joiners)
}

// missingWaiterCount returns the number of waiters that a queue lacks. Only waiters that can be notified count. A queue needs one waiter for
// each free slot. It also needs one for each slot that probably becomes free within two seconds, but at least 4 and at most tasksPerSearch. If
// the result is negative, the queue has more waiters than it needs. meanHoldTime is the mean hold time.
func missingWaiterCount(queue slots.QueueState, meanHoldTime time.Duration) int {
	free := max(queue.Capacity-queue.Held-queue.Reserved, 0)
	soon := int(2 * time.Second * time.Duration(queue.Capacity) / max(meanHoldTime, time.Millisecond))
	return free + min(max(soon, 4), tasksPerSearch) - queue.Notifiable
}

// findSleepingUrgentDevices examines the first tasks of the newest urgent batches of a pool and returns their sleeping devices.
func (s *sleepingDeviceFinder) findSleepingUrgentDevices(ctx context.Context, pool string) ([]slots.Joiner, error) {
	open, err := s.ledger.UrgentBatches(ctx, pool, batchesPerSearch)
	if err != nil {
		return nil, fmt.Errorf("finding devices for pool %s: %w", pool, err)
	}
	progress := &searchProgress{positions: make(map[int64]store.TaskPosition)}
	found, _, err := s.searchBatches(ctx, pool, progress, open)
	s.pools.pauseUrgentSearch(pool, s.now().Add(restAfterSearch(progress.examined)))
	return found, err
}

// findNextSleepingDevices examines the next tasks of the open batches of a pool and returns their sleeping devices. If fromFirstBatch is true,
// it begins with the first batch.
func (s *sleepingDeviceFinder) findNextSleepingDevices(ctx context.Context, pool string, fromFirstBatch bool) ([]slots.Joiner, error) {
	progress := s.pools.progressOfSearch(pool, fromFirstBatch)
	if s.now().Before(progress.rest) {
		return nil, nil
	}
	open, err := s.ledger.OpenBatches(ctx, pool, progress.after, batchesPerSearch)
	if err != nil {
		return nil, fmt.Errorf("finding devices for pool %s: %w", pool, err)
	}
	joiners, reachedEnd, err := s.searchBatches(ctx, pool, progress, open)
	if err != nil {
		return nil, err
	}
	switch {
	case !reachedEnd: // the next pass continues
	case len(open) == batchesPerSearch:
		progress.after = open[len(open)-1].ID
	default:
		*progress = searchProgress{positions: make(map[int64]store.TaskPosition), rest: s.now().Add(restAfterSearch(progress.examined))}
	}
	return joiners, nil
}

func restAfterSearch(examinedTasks int) time.Duration {
	return min(minRest+time.Duration(examinedTasks)*restPerTask, maxRest)
}

// searchBatches examines the next tasks of those batches in the list openBatches whose tasks may start, and returns the sleeping devices of
// these tasks. It begins at the positions in progress. reachedEnd is true if it reached the last task of each batch.
func (s *sleepingDeviceFinder) searchBatches(ctx context.Context, pool string, progress *searchProgress, openBatches []store.OpenBatch) (joiners []slots.Joiner, reachedEnd bool, err error) {
	reachedEnd = true
	running := slices.DeleteFunc(slices.Clone(openBatches), func(b store.OpenBatch) bool { return !b.MayStart })
	for _, b := range running {
		position, begun := progress.positions[b.ID]
		if begun && !position.Set { // the batch was examined to its end in this round
			continue
		}
		limit := max(tasksPerSearch/len(running), fewestTasks)
		part, err := s.ledger.ReachableDevices(ctx, store.ReachableSearch{Pool: pool, Batch: b.ID, After: position, SeenWithin: s.seenWithin, Limit: limit})
		if err != nil {
			return nil, false, fmt.Errorf("finding devices for pool %s: %w", pool, err)
		}
		progress.examined += part.TasksRead
		if part.TasksRead < limit {
			part.Last = store.TaskPosition{}
		}
		progress.positions[b.ID] = part.Last
		reachedEnd = reachedEnd && !part.Last.Set
		for _, d := range part.Devices {
			joiner := slots.Joiner{
				Device: d.Device, Reach: d.Reach, Want: slots.Want{Batch: d.Batch, Task: d.Task, Weight: d.Weight, Priority: d.Priority},
			}
			if d.Urgent {
				joiner.LanePercent = s.urgentShare
			}
			joiners = append(joiners, joiner)
		}
	}
	return joiners, reachedEnd, nil
}
