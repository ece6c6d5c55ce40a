package upkeep

import (
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

const (
	// clockSlack is how far the clocks of the ledger and of the hosts may have gone
	// apart for what another replica kept of them to be believed.
	clockSlack = time.Second
	// pairSlack is how far the pair that is kept may be off before it is kept anew.
	pairSlack = clockSlack / 2
)

// clockGuard says which leases have ended. The ledger's clock gives a lease its
// end, and a clock may step or be slewed; the time that has passed is told by
// this process' monotonic clock. The offset is what the ledger showed less what
// we showed. A lease that is in force was given at most its own length ago, by
// an offset of that time, and has ended when our own time and that offset have
// reached its end. So the least offset of that time is believed:
//
//	believed(lease) = own time + the least offset since (own time - lease)
//
// No lease ends early, whatever the ledger's clock does: not by a step, for every
// lease that was given before the step has ended by then in real time; not by
// a slew; and not because other leases are longer or shorter. After a step back
// leases end later, by as much as that.
//
// The time before the first reading is known only from a pair of clocks that a
// replica kept: where the ledger's clock and that of the host have gone on alike
// since, within clockSlack, the offset was the same. Elsewhere it is unknown, and
// no lease that may be older than the first reading ends.
//
// The guard does not notice that both clocks stepped by the same time while no
// replica ran, a step to and fro between two readings, nor a step that is shorter
// than a slow reading was on its way.
type clockGuard struct {
	mu      sync.Mutex
	origin  time.Time     // our own time is counted from here
	offsets []clockOffset // the oldest first; each is above the one before
	back    time.Duration // by which the ledger's clock stepped back, at least, since steppedBack was called
}

// clockOffset is the offset since a moment: between least and most, for a
// reading was on its way for some time.
type clockOffset struct {
	since       time.Duration // in our own time
	least, most time.Time     // what the ledger showed at our origin; zero: unknown
}

// agrees: both may be the same offset.
func (o clockOffset) agrees(other clockOffset) bool {
	return !o.most.Before(other.least) && !other.most.Before(o.least)
}

// ends takes a reading, and returns which leases have ended. asked and
// answered are this process' clock, with its monotonic part, around the reading.
func (g *clockGuard) ends(clock store.LeaseClock, asked, answered time.Time) store.Lapses {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.offsets == nil {
		g.origin = asked
	}
	own := asked.Sub(g.origin)
	reading := clockOffset{since: own, least: clock.Now.Add(-answered.Sub(g.origin)), most: clock.Now.Add(-own)}
	switch {
	case len(clock.Leases) == 0: // it does not matter what was before
		g.offsets = []clockOffset{reading}
	case g.offsets == nil:
		g.offsets = []clockOffset{before(clock.Kept, reading, asked)}
	}
	g.note(reading)
	lapses := store.Lapses{}
	var longest time.Duration
	for _, lease := range clock.Leases {
		lapses[lease] = g.offsets[g.at(own-lease)].least.Add(own)
		longest = max(longest, lease)
	}
	g.offsets = slices.Delete(g.offsets, 0, g.at(own-longest))
	return lapses
}

// before is the offset before the first reading.
func before(kept *store.ClockPair, first clockOffset, asked time.Time) clockOffset {
	if kept == nil {
		return clockOffset{}
	}
	shown := kept.Ledger.Add(asked.Round(0).Sub(kept.Wall))
	if !first.agrees(clockOffset{least: shown.Add(-clockSlack), most: shown.Add(clockSlack)}) {
		return clockOffset{}
	}
	return clockOffset{least: shown, most: shown}
}

// note adds a reading. Where it may be of the same offset as the last one, that
// becomes more exact; otherwise it replaces all that are not below it.
func (g *clockGuard) note(reading clockOffset) {
	last := &g.offsets[len(g.offsets)-1]
	if last.agrees(reading) {
		if reading.least.After(last.least) {
			last.least = reading.least
		}
		if reading.most.Before(last.most) {
			last.most = reading.most
		}
		return
	}
	g.back += max(last.least.Sub(reading.most), 0)
	// The new reading replaces all offsets that are not below it. They are the last ones in the list,
	// so the reading is the lowest offset since the first of these began.
	if first := slices.IndexFunc(g.offsets, func(o clockOffset) bool { return !o.least.Before(reading.least) }); first >= 0 {
		reading.since = g.offsets[first].since
		g.offsets = g.offsets[:first]
	}
	g.offsets = append(g.offsets, reading)
}

// steppedBack returns by how much the ledger's clock stepped back since the last call, at least. The
// leases that were given before the step end as much later.
func (g *clockGuard) steppedBack() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	back := g.back
	g.back = 0
	return back
}

// at is where the offset of that moment stands. It is the least one since then.
func (g *clockGuard) at(moment time.Duration) int {
	later := slices.IndexFunc(g.offsets, func(o clockOffset) bool { return o.since > moment })
	if later < 0 {
		later = len(g.offsets)
	}
	return max(later-1, 0)
}

// pair is what is believed of the ledger's clock for the longest lease in force,
// and our host's clock; false: nothing is, or what is kept says so already.
func (g *clockGuard) pair(kept *store.ClockPair, asked time.Time) (store.ClockPair, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	believed := g.offsets[0].least
	if believed.IsZero() {
		return store.ClockPair{}, false
	}
	pair := store.ClockPair{Ledger: believed.Add(asked.Sub(g.origin)), Wall: asked.Round(0)}
	known := kept != nil && (pair.Ledger.Sub(kept.Ledger)-pair.Wall.Sub(kept.Wall)).Abs() <= pairSlack
	return pair, !known
}
