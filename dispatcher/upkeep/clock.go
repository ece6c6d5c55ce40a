package upkeep

import (
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

const (
	// clockSlack is the maximum drift between the clocks of ledger and host. After a larger drift, a replica does not trust the times that
	// an earlier replica stored.
	clockSlack = time.Second
	// pairSlack is the maximum error of the difference between the stored times. After a larger error, they are stored again.
	pairSlack = clockSlack / 2
)

// clockGuard decides which leases have ended. The end of a lease is a time of the ledger's clock, which may step or be slewed. Elapsed time
// comes from the monotonic clock of this process (own time). The offset is the time of the ledger minus the own time. A lease in force was
// granted or renewed at most its own length ago, with the offset of that moment, and has ended when own time plus that offset reaches its
// end. So the guard uses the lowest offset of that period. For leases of one length:
//
//	trusted(length) = own time + the least offset since (own time - length)
//
// No lease ends early, whatever the ledger's clock does. After a step back, the leases that were granted before end later by the size of
// the step.
//
// The offset before the first reading is known only if an earlier replica stored the times of both clocks, and both have advanced equally
// since, within clockSlack. Otherwise no lease that may be older than the first reading ends.
//
// The guard does not notice three cases: both clocks step by the same time while no replica runs; the clock steps and steps back between
// two readings; or a step is shorter than the duration of a slow reading.
type clockGuard struct {
	mu      sync.Mutex
	origin  time.Time     // own time is the time since origin
	offsets []clockOffset // oldest first; each offset is higher than the one before
	back    time.Duration // minimum total step back of the ledger's clock since the last call of takeStepBack
}

// clockOffset is the offset from the moment since. It is a range, because a reading of the ledger's clock takes some time.
type clockOffset struct {
	since     time.Duration // own time
	low, high time.Time     // the ledger's time at origin; zero means unknown
}

func (o clockOffset) overlaps(other clockOffset) bool {
	return !o.high.Before(other.low) && !other.high.Before(o.low)
}

// findLapses records a reading of the ledger's clock. It returns the trusted time for each length of a lease: such a lease has ended if its
// end is before that time. askedAt and answeredAt are the times of this process's clock before and after the reading.
func (g *clockGuard) findLapses(clock store.LeaseClock, askedAt, answeredAt time.Time) store.LapseCutoffs {
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
		g.offsets = []clockOffset{offsetBefore(clock.StoredPair, reading, askedAt)}
	}
	g.addReading(reading)
	lapses := store.LapseCutoffs{}
	var longest time.Duration
	for _, length := range clock.Lengths {
		lapses[length] = g.offsets[g.indexAt(own-length)].low.Add(own)
		longest = max(longest, length)
	}
	g.offsets = slices.Delete(g.offsets, 0, g.indexAt(own-longest))
	return lapses
}

// offsetBefore returns the offset before the first reading, which began at askedAt, from stored, the clock pair of an earlier replica. The
// zero value means unknown.
func offsetBefore(stored *store.ClockPair, first clockOffset, askedAt time.Time) clockOffset {
	if stored == nil {
		return clockOffset{}
	}
	shown := stored.Ledger.Add(askedAt.Round(0).Sub(stored.Wall))
	if !first.overlaps(clockOffset{low: shown.Add(-clockSlack), high: shown.Add(clockSlack)}) {
		return clockOffset{}
	}
	return clockOffset{low: shown, high: shown}
}

// addReading adds a reading. It narrows the range of the last offset, or replaces all offsets that are not below it.
func (g *clockGuard) addReading(reading clockOffset) {
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
	// The replaced offsets are at the end of the list, so the reading is the lowest offset since the first of them began.
	if first := slices.IndexFunc(g.offsets, func(o clockOffset) bool { return !o.low.Before(reading.low) }); first >= 0 {
		reading.since = g.offsets[first].since
		g.offsets = g.offsets[:first]
	}
	g.offsets = append(g.offsets, reading)
}

// takeStepBack returns the minimum by which the ledger's clock stepped back since the last call.
func (g *clockGuard) takeStepBack() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	back := g.back
	g.back = 0
	return back
}

// indexAt returns the index of the offset that was valid at moment (own time). This offset is also the lowest since moment.
func (g *clockGuard) indexAt(moment time.Duration) int {
	later := slices.IndexFunc(g.offsets, func(o clockOffset) bool { return o.since > moment })
	if later < 0 {
		later = len(g.offsets)
	}
	return max(later-1, 0)
}

// changedPair returns the pair to store: the trusted time of the ledger's clock, for the longest lease in force, and the host's time at
// askedAt. It returns false if no time is trusted, or if stored has the same difference within pairSlack.
func (g *clockGuard) changedPair(stored *store.ClockPair, askedAt time.Time) (store.ClockPair, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	trusted := g.offsets[0].low
	if trusted.IsZero() {
		return store.ClockPair{}, false
	}
	pair := store.ClockPair{Ledger: trusted.Add(askedAt.Sub(g.origin)), Wall: askedAt.Round(0)}
	isUnchanged := stored != nil && (pair.Ledger.Sub(stored.Ledger)-pair.Wall.Sub(stored.Wall)).Abs() <= pairSlack
	return pair, !isUnchanged
}
