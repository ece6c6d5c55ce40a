package web

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
)

const (
	countEvery      = 5 * time.Second
	denialsKept     = time.Hour
	troubleShownFor = 10 * time.Minute // how long a conflict or drift is shown
)

// poolCounts holds counts of one pool. Denied counts reports that got no grant. Conflicts counts slots that Redis proposed and the ledger
// refused. Drift counts slots on which Redis and the ledger disagreed.
type poolCounts struct{ Grants, Reaps, Denied, Conflicts, Drift int64 }

// plus returns the sums of the counts in c and other.
func (c poolCounts) plus(other poolCounts) poolCounts {
	return poolCounts{c.Grants + other.Grants, c.Reaps + other.Reaps, c.Denied + other.Denied, c.Conflicts + other.Conflicts, c.Drift + other.Drift}
}

// hasTrouble reports whether Redis and the ledger disagreed.
func (c poolCounts) hasTrouble() bool { return c.Conflicts+c.Drift > 0 }

// intervalCounts holds the counts of one interval, which has the length countEvery and ended at the time in the field end.
type intervalCounts struct {
	poolCounts

	end time.Time
}

// recentPoolCounts holds the recent counts of the pools in which something happened. It is kept in memory, so it has no counts from before
// the start of the replica.
type recentPoolCounts struct {
	mu           sync.Mutex
	sinceLast    map[string]poolCounts       // by pool: counts after the last interval
	intervals    map[string][]intervalCounts // by pool, oldest first: intervals of the last minute, and intervals with trouble, which are kept for troubleShownFor
	denied       map[string]map[int64]int64  // denials by pool and minute (minuteOf), kept for denialsKept
	last         time.Time                   // end of the last interval
	talliesSince time.Time                   // time since which the counts of the replicas are known; zero if they are not known yet
}

func newRecentPoolCounts() *recentPoolCounts {
	return &recentPoolCounts{sinceLast: map[string]poolCounts{}, intervals: map[string][]intervalCounts{}, denied: map[string]map[int64]int64{}}
}

// addSlotChanges adds the grants and reaps in changes, which come from the log of events, to the current interval.
func (h *recentPoolCounts) addSlotChanges(changes []slotChanges) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range changes {
		h.sinceLast[m.Pool] = h.sinceLast[m.Pool].plus(poolCounts{Grants: int64(m.Granted), Reaps: int64(m.Lapsed)})
	}
}

// addTally adds counts of a pool to the current interval: the denials, conflicts and drift that the replicas counted.
func (h *recentPoolCounts) addTally(pool string, counts meters.Tally) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sinceLast[pool] = h.sinceLast[pool].plus(poolCounts{Denied: counts.Denied, Conflicts: counts.Conflicts, Drift: counts.Drift})
}

// isIntervalOver reports whether the current interval has ended at the time now.
func (h *recentPoolCounts) isIntervalOver(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Sub(h.last) >= countEvery
}

// endInterval ends the current interval at the time now, and deletes the counts that are too old to be shown.
func (h *recentPoolCounts) endInterval(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for pool, counts := range h.sinceLast {
		h.intervals[pool] = append(h.intervals[pool], intervalCounts{counts, now})
		if counts.Denied > 0 {
			if h.denied[pool] == nil {
				h.denied[pool] = map[int64]int64{}
			}
			h.denied[pool][minuteOf(now)] += counts.Denied
		}
	}
	h.sinceLast, h.last = map[string]poolCounts{}, now
	if h.talliesSince.IsZero() {
		h.talliesSince = now
	}
	h.deleteOldCounts()
}

// deleteOldCounts deletes the counts that are too old to be shown. The caller must hold h.mu.
func (h *recentPoolCounts) deleteOldCounts() {
	for pool, list := range h.intervals {
		h.intervals[pool] = slices.DeleteFunc(list, func(i intervalCounts) bool {
			age := h.last.Sub(i.end)
			return age >= troubleShownFor || age >= time.Minute && !i.hasTrouble()
		})
		if len(h.intervals[pool]) == 0 {
			delete(h.intervals, pool)
		}
	}
	oldest := minuteOf(h.last.Add(-denialsKept))
	for pool, byMinute := range h.denied {
		maps.DeleteFunc(byMinute, func(minute, _ int64) bool { return minute < oldest })
		if len(byMinute) == 0 {
			delete(h.denied, pool)
		}
	}
}

// minuteOf returns the number of the minute, counted from 1970, that contains a time. A boundary between two minutes belongs to the earlier
// one.
func minuteOf(at time.Time) (minuteNumber int64) {
	return (at.UnixMilli() - 1) / time.Minute.Milliseconds()
}

// denials holds the number of denied reports of a pool.
type denials struct {
	since    time.Time       // time since which denials were counted
	byMinute map[int64]int64 // key: the minute (minuteOf)
}

// recentDenials returns the denials of a pool in the last hour.
func (h *recentPoolCounts) recentDenials(pool string) denials {
	h.mu.Lock()
	defer h.mu.Unlock()
	return denials{h.talliesSince, maps.Clone(h.denied[pool])}
}

// recentCounts returns the recent counts of a pool: grants, reaps and denials in the last minute, conflicts
// and drift in the last ten minutes. The precision is countEvery.
func (h *recentPoolCounts) recentCounts(pool string) poolCounts {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum := h.sinceLast[pool]
	for _, i := range h.intervals[pool] {
		if h.last.Sub(i.end) >= time.Minute {
			i.Grants, i.Reaps, i.Denied = 0, 0, 0
		}
		sum = sum.plus(i.poolCounts)
	}
	return sum
}

// poolsWithDrift returns at most maxPools pools with recent conflicts or drift, sorted by name. hasMore reports
// whether there are more such pools.
func (h *recentPoolCounts) poolsWithDrift(maxPools int) (pools []string, hasMore bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for pool, list := range h.intervals {
		if slices.ContainsFunc(list, func(i intervalCounts) bool { return i.hasTrouble() }) {
			pools = append(pools, pool)
		}
	}
	slices.Sort(pools)
	return pools[:min(len(pools), maxPools)], len(pools) > maxPools
}
