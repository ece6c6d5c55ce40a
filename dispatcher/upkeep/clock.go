package upkeep

import (
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

const (
	// clockSlack is the maximum drift between the clocks of the ledger and of the host. After a larger drift, a replica does not trust the
	// times that an earlier replica stored.
	clockSlack = time.Second
	// pairSlack is the maximum error of the difference between the two times of the stored clock pair. If the error is larger, both times are
	// stored again.
	pairSlack = clockSlack / 2
)

// clockGuard decides which leases have ended. The end of a lease is a time of the ledger's clock, which may step or be slewed. So the guard
// measures elapsed time by the monotonic clock of this process, called own time. The offset is the ledger's time minus the own time. A lease
// ends when own time, plus the offset at its grant or last renewal, reaches the end of the lease. That grant or renewal is at most the length
// of the lease ago, but its time is unknown. So the guard uses the lowest offset that was valid within the length of the lease:
//
//	trusted(length) = own time + the lowest offset since (own time - length)
//
// No lease ends early, whatever the ledger's clock does. If the clock steps back, older leases end later by the size of the step.
//
// The offset before the first reading is known only if an earlier replica stored the times of both clocks, and if both clocks have advanced
// equally since then, within clockSlack. Otherwise no lease that may be older than the first reading ends.
//
// The guard does not notice a step in three cases: if both clocks step by the same time while no replica runs, if the clock steps and steps back
// between two readings, or if the step is shorter than the duration of a slow reading.
type clockGuard struct {
	mu      sync.Mutex
	origin  time.Time     // own time is the time since origin
	offsets []clockOffset // oldest first; each offset is higher than the one before
	back    time.Duration // minimum total step back of the ledger's clock since the last call of takeClockStepBack
}

// clockOffset is an offset and the own time (since) from which it is valid. The offset is a range, because a reading of the ledger's clock takes
// some time.
type clockOffset struct {
	since     time.Duration // own time
	low, high time.Time     // the ledger's time at origin; zero means unknown
}

func (o clockOffset) overlaps(other clockOffset) bool {
	return !o.high.Before(other.low) && !other.high.Before(o.low)
}

// lapseCutoffsAfterReading records a reading of the ledger's clock. It returns the trusted time for each length of a lease. A lease of this
// length has ended if its end is before the trusted time. askedAt and answeredAt are the times of this process's clock before and after the
// reading.
func (g *clockGuard) lapseCutoffsAfterReading(clock store.LeaseClock, askedAt, answeredAt time.Time) store.LapseCutoffs {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.offsets == nil {
		g.origin = askedAt
	}
	own := askedAt.Sub(g.origin)
	reading := clockOffset{since: own, low: clock.Now.Add(-answeredAt.Sub(g.origin)), high: clock.Now.Add(-own)}
	switch {
	case len(clock.Lengths) == 0: // without leases, earlier offsets do not matter
		g.offsets = []clockOffset{reading}
	case g.offsets == nil:
		g.offsets = []clockOffset{clockOffsetBeforeFirst(clock.StoredPair, reading, askedAt)}
	}
	g.addClockOffset(reading)
	lapses := store.LapseCutoffs{}
	var longest time.Duration
	for _, length := range clock.Lengths {
		lapses[length] = g.offsets[g.indexOfOffsetAt(own-length)].low.Add(own)
		longest = max(longest, length)
	}
	g.offsets = slices.Delete(g.offsets, 0, g.indexOfOffsetAt(own-longest))
	return lapses
}

// clockOffsetBeforeFirst returns the offset that was valid before the first reading. It computes the offset from stored, the clock pair of an
// earlier replica. askedAt is the time at
// which the first reading began. firstOffset is the offset of the first reading. The result is zero if the offset is unknown.
func clockOffsetBeforeFirst(stored *store.ClockPair, firstOffset clockOffset, askedAt time.Time) clockOffset {
	if stored == nil {
		return clockOffset{}
	}
	shown := stored.Ledger.Add(askedAt.Round(0).Sub(stored.Wall))
	if !firstOffset.overlaps(clockOffset{low: shown.Add(-clockSlack), high: shown.Add(clockSlack)}) {
		return clockOffset{}
	}
	return clockOffset{low: shown, high: shown}
}

// addClockOffset adds the offset of a new reading. If the new offset overlaps the last offset, it narrows the range of the last offset.
// Otherwise the new offset becomes the last offset, and replaces all offsets that are not lower.
func (g *clockGuard) addClockOffset(reading clockOffset) {
	last := &g.offsets[len(g.offsets)-1]
	if last.overlaps(reading) {
		if reading.low.After(last.low) {
			last.low = reading.low
		}
		if reading.high.Before(last.high) {
			last.high = reading.high
		}
		return
	}
	g.back += max(last.low.Sub(reading.high), 0)
	// The offsets rise along the list, so the replaced offsets are at its end. The reading is the lowest offset since the first of them began.
	if first := slices.IndexFunc(g.offsets, func(o clockOffset) bool { return !o.low.Before(reading.low) }); first >= 0 {
		reading.since = g.offsets[first].since
		g.offsets = g.offsets[:first]
	}
	g.offsets = append(g.offsets, reading)
}

// takeClockStepBack returns how far the ledger's clock has stepped back, at least, since the last call.
func (g *clockGuard) takeClockStepBack() (minStepBack time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	back := g.back
	g.back = 0
	return back
}

// indexOfOffsetAt returns the index of the offset that was valid at the own time ownTime. This offset is also the lowest offset since then.
func (g *clockGuard) indexOfOffsetAt(ownTime time.Duration) int {
	later := slices.IndexFunc(g.offsets, func(o clockOffset) bool { return o.since > ownTime })
	if later < 0 {
		later = len(g.offsets)
	}
	return max(later-1, 0)
}

// changedClockPair returns the pair of times to store: the trusted time of the ledger for the longest lease in force, and the host's time at
// askedAt. mustStore is false if no time is trusted, or if the difference of the two times differs by at most pairSlack from the difference of
// the times in the stored pair.
func (g *clockGuard) changedClockPair(stored *store.ClockPair, askedAt time.Time) (pair store.ClockPair, mustStore bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	trusted := g.offsets[0].low
	if trusted.IsZero() {
		return store.ClockPair{}, false
	}
	pair = store.ClockPair{Ledger: trusted.Add(askedAt.Sub(g.origin)), Wall: askedAt.Round(0)}
	isUnchanged := stored != nil && (pair.Ledger.Sub(stored.Ledger)-pair.Wall.Sub(stored.Wall)).Abs() <= pairSlack
	return pair, !isUnchanged
}
