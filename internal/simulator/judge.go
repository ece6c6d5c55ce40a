package simulator

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// judge counts the devices inside the external system, and what is wrong with
// their arrivals.
type judge struct {
	leases *leases    // nil: all are strangers
	onFull func() int // nil: the capacity stands

	mu       sync.Mutex
	capacity int
	changed  time.Time // when stats.Inside last changed
	stats    ExternalStats
	inside   map[*visit]*lease // nil: of a stranger
	tokens   map[int]int64     // slot -> highest token seen
	holders  map[int]*visit    // slot -> its visit
	suspects suspicions
	turnover turnover
}

func newJudge(capacity int, l *leases, onFull func() int) *judge {
	return &judge{
		leases: l, onFull: onFull, capacity: capacity, changed: time.Now(),
		inside: map[*visit]*lease{}, tokens: map[int]int64{}, holders: map[int]*visit{}, turnover: newTurnover(),
	}
}

// ExternalStats is one consistent reading of External: what it counted. Breaches
// are what is left of it when devices that left late are taken away.
type ExternalStats struct {
	Inside            int
	HighWater         int           // most ever inside at once, late ones included
	Arrivals          int64         // hellos read
	OverLimitInstants int64         // arrivals that made it more than the capacity
	OverLimit         time.Duration // time spent above the capacity
	StaleTokens       int64         // arrivals with a lower token than their slot has seen
	SharedSlots       int64         // arrivals at a slot somebody else was using
	InsideTime        time.Duration // device-time spent inside, summed
}

// Capacity is the number above which an arrival is one too many.
func (j *judge) Capacity() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.capacity
}

// SetCapacity changes what later arrivals are judged by.
func (j *judge) SetCapacity(n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.elapse()
	j.capacity = n
}

// breaches are what no late device explains, if the server keeps a slot for
// margin after the lease that it told its device. Ask when devices have left.
func (j *judge) breaches(margin time.Duration) Breaches {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.suspects.breaches(margin)
}

// Stats returns all counts as of one instant.
func (j *judge) Stats() ExternalStats {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.elapse()
	return j.stats
}

// reconsider takes back an arrival that was one too many only because the
// capacity had been raised a moment before. The answer may take a while, so
// the arrival counts first.
func (j *judge) reconsider(crowd *suspicion, inside int) {
	if j.onFull == nil {
		return
	}
	now := j.onFull()
	j.mu.Lock()
	defer j.mu.Unlock()
	if now < inside {
		return
	}
	j.elapse()
	crowd.cleared = true
	j.stats.OverLimitInstants--
	j.capacity = max(j.capacity, now)
}

// arrive counts a device inside. If that is too many it returns the suspicion,
// and how many are inside.
func (j *judge) arrive(v *visit) (crowd *suspicion, inside int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.elapse()
	var mine *lease
	if j.leases != nil && !v.caller() { // the fleet does not know a caller's lease: nothing excuses that it stays
		mine = j.leases.of(v.token)
	}
	j.inside[v] = mine
	j.stats.Arrivals++
	j.stats.Inside = len(j.inside)
	j.stats.HighWater = max(j.stats.HighWater, j.stats.Inside)
	if v.token < j.tokens[v.slot] {
		j.stats.StaleTokens++
		j.suspect(stale, 0, mine)
	}
	if holder := j.holders[v.slot]; holder != nil && holder.token != v.token {
		j.stats.SharedSlots++
		j.suspect(shared, 1, mine, j.inside[holder])
	}
	if j.stats.Inside > j.capacity {
		j.stats.OverLimitInstants++
		crowd = j.suspect(over, j.capacity, slices.Collect(maps.Values(j.inside))...)
	}
	j.tokens[v.slot] = max(j.tokens[v.slot], v.token)
	j.holders[v.slot] = v
	j.turnover.enter(v.slot, v.token, j.changed)
	return crowd, j.stats.Inside
}

// suspect notes that fewer of these leases may stand now. Callers hold mu.
func (j *judge) suspect(kind breach, allowed int, concerned ...*lease) *suspicion {
	return j.suspects.add(&suspicion{kind: kind, at: j.changed, allowed: allowed, leases: concerned})
}

func (j *judge) leave(v *visit) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.elapse()
	delete(j.inside, v)
	j.stats.Inside = len(j.inside)
	if j.holders[v.slot] == v {
		delete(j.holders, v.slot)
		j.turnover.leave(v.slot, j.changed)
	}
}

// Gaps are the last times that a slot was left and entered again; of very
// many, the last ones.
func (j *judge) Gaps() []Gap {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.turnover.gaps)
}

// edges are the times, summed over the slots, before their first visit and
// after their last.
func (j *judge) edges(from, to time.Time) (before, after time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.turnover.edges(j.capacity, from, to)
}

// elapse accounts for the time since the last change. Callers hold mu.
func (j *judge) elapse() {
	now := time.Now()
	d := now.Sub(j.changed)
	j.changed = now
	j.stats.InsideTime += d * time.Duration(j.stats.Inside)
	if j.stats.Inside > j.capacity {
		j.stats.OverLimit += d
	}
}
