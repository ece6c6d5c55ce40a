package upkeep

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

const (
	idleEvery = 900 * time.Millisecond // minimum time between two counts, over all replicas
	idleLimit = 25 * time.Millisecond  // a pass begins queries for the count only within this time
)

// idleCounts holds the counts of waiting devices. Each pass of this replica continues them.
type idleCounts struct {
	mu     sync.Mutex
	last   time.Time // time of the last pass; zero before the first one
	byPool map[string]*waitingCountLap
	resume string // the pool with which the next pass begins
}

// maxLaps is the maximum number of pools whose counts are kept, to limit memory.
const maxLaps = 10_000

// waitingCountLap is the progress of one count of the waiting devices of a pool. A lap can take several passes.
type waitingCountLap struct {
	after   string // device after which the count continues; empty at the beginning of a lap
	counted int    // number of devices counted in this lap
	before  int    // number of devices counted in the lap before
}

func newIdleCounts() *idleCounts { return &idleCounts{byPool: make(map[string]*waitingCountLap)} }

// CountIdleSlots adds up the slot-seconds in which slots were free although devices could have used them. For each pool it counts the devices
// (not callers) that could be granted a task, hold no slot, and have reported within three report periods plus store.SeenPrecision. It counts
// at most as many devices as there are free slots.
//
// A call spends at most about idleLimit on the count, and the next call continues it. So the count may include a device that no longer waits.
//
// The ledger gives each period to only one replica, so the sum over all replicas is correct. A call that fails counts nothing.
func (k *Keeper) CountIdleSlots(ctx context.Context) error {
	k.idle.mu.Lock()
	defer k.idle.mu.Unlock()
	started, last := k.config.Now(), k.idle.last
	k.idle.last = started
	open, err := k.config.Ledger.OpenPools(ctx)
	if err != nil || len(open) == 0 || last.IsZero() {
		return err
	}
	taken, err := k.config.Ledger.TakeIdleTime(ctx, idleEvery)
	if err != nil || taken == 0 {
		return err
	}
	if err := k.continueWaitingCounts(ctx, open); err != nil {
		return err
	}
	// The time before this replica's last call is left out, because it is unknown whether slots were idle then.
	elapsed := min(taken, started.Sub(last))
	for _, pool := range open {
		k.metrics.idle.WithLabelValues(pool.Name).Add(float64(k.idle.lapOf(pool.Name).waitingDevices(pool.Free)) * elapsed.Seconds())
	}
	return nil
}

// continueWaitingCounts continues the counts of the pools in the list openPools, each to the end of its lap, until idleLimit has passed. The
// next call begins with the pool at which this call stopped.
func (k *Keeper) continueWaitingCounts(ctx context.Context, openPools []store.OpenPool) error {
	started := k.config.Now()
	slices.SortFunc(openPools, func(a, b store.OpenPool) int { return cmp.Compare(a.Name, b.Name) })
	first, _ := slices.BinarySearchFunc(openPools, k.idle.resume, func(p store.OpenPool, name string) int { return cmp.Compare(p.Name, name) })
	for _, pool := range slices.Concat(openPools[first:], openPools[:first]) {
		for isDone := false; !isDone; {
			k.idle.resume = pool.Name
			if k.config.Now().Sub(started) > idleLimit {
				return nil
			}
			l := k.idle.lapOf(pool.Name)
			found, err := k.config.Ledger.CountWaitingDevices(ctx, pool.Name, 3*k.config.ReportPeriod+store.SeenPrecision, l.after, pool.Free)
			if err != nil {
				return fmt.Errorf("counting idle slots: %w", err)
			}
			isDone = l.addWaitingCount(found, pool.Free)
		}
	}
	return nil
}

func (c *idleCounts) lapOf(pool string) *waitingCountLap {
	found := c.byPool[pool]
	if found == nil {
		if len(c.byPool) >= maxLaps {
			clear(c.byPool)
		}
		found = &waitingCountLap{}
		c.byPool[pool] = found
	}
	return found
}

// addWaitingCount adds counted, a count of waiting devices, to the lap. The lap is complete if no more devices follow, or if at least as many
// devices wait as slots are free.
func (l *waitingCountLap) addWaitingCount(counted store.WaitingCount, freeSlots int) (isLapComplete bool) {
	l.counted += counted.Waiting
	if l.after = counted.Last; l.counted < freeSlots && counted.Last != "" {
		return false
	}
	*l = waitingCountLap{before: l.counted}
	return true
}

// waitingDevices returns the number of waiting devices, but at most freeSlots. The number is the count of the previous lap, or the count of this
// lap if that is already higher.
func (l *waitingCountLap) waitingDevices(freeSlots int) int {
	return min(freeSlots, max(l.counted, l.before))
}
