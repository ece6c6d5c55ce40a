package simulator

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// visitCounter counts the devices inside the external system and the arrivals that violate the rules.
type visitCounter struct {
	leases       *leases    // nil if no leases are known, so that none excuses a late device
	readCapacity func() int // nil if the capacity cannot change

	mu       sync.Mutex
	capacity int
	changed  time.Time // when stats.Inside last changed
	stats    ExternalStats
	inside   map[*visit]*lease // the visits in progress, with the lease of each; nil if the lease is unknown
	tokens   map[int]int64     // slot -> highest token so far
	holders  map[int]*visit    // slot -> the visit that uses it
	suspects suspectedBreaches
	turnover slotTurnover
}

// newVisitCounter returns the visitCounter of an External. knownLeases is the parameter leases of NewExternal.
func newVisitCounter(capacity int, knownLeases *leases, readCapacity func() int) *visitCounter {
	return &visitCounter{
		leases: knownLeases, readCapacity: readCapacity, capacity: capacity, changed: time.Now(),
		inside: map[*visit]*lease{}, tokens: map[int]int64{}, holders: map[int]*visit{}, turnover: newSlotTurnover(),
	}
}

// ExternalStats contains the counts of External at one time. It also counts violations by devices whose leases have
// ended. Breaches does not count them.
type ExternalStats struct {
	Inside            int
	HighWater         int           // maximum inside at once, including late devices
	Arrivals          int64         // number of hellos read
	OverLimitInstants int64         // arrivals that exceeded the capacity
	OverLimit         time.Duration // time spent above the capacity
	StaleTokens       int64         // arrivals with a lower token than an earlier arrival at the slot
	SharedSlots       int64         // arrivals at a slot that another device was using
	InsideTime        time.Duration // sum of the times that devices spent inside
}

// Capacity returns the number of devices above which an arrival is a violation.
func (j *visitCounter) Capacity() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.capacity
}

// SetCapacity changes the capacity (the number of devices above which an arrival is a violation) for later arrivals.
func (j *visitCounter) SetCapacity(capacity int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.addElapsedTime()
	j.capacity = capacity
}

// countBreaches returns the violations that are not explained by devices that stayed after their leases. Call it after all
// devices have left.
func (j *visitCounter) countBreaches(margin time.Duration) Breaches {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.suspects.countBreaches(margin)
}

// Stats returns all counts at one instant.
func (j *visitCounter) Stats() ExternalStats {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.addElapsedTime()
	return j.stats
}

// clearIfCapacityRaised clears the suspicion if an operator has just raised the capacity to at least devicesInside, the number
// of devices inside. It is called after the arrival was counted, because readCapacity may take long.
func (j *visitCounter) clearIfCapacityRaised(overSuspicion *suspectedBreach, devicesInside int) {
	if j.readCapacity == nil {
		return
	}
	now := j.readCapacity()
	j.mu.Lock()
	defer j.mu.Unlock()
	if now < devicesInside {
		return
	}
	j.addElapsedTime()
	overSuspicion.cleared = true
	j.stats.OverLimitInstants--
	j.capacity = max(j.capacity, now)
}

// countArrival counts a device that arrives. It returns the number of devices inside, and a suspicion if this number exceeds the capacity.
func (j *visitCounter) countArrival(visitor *visit) (overSuspicion *suspectedBreach, devicesInside int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.addElapsedTime()
	var ownLease *lease
	if j.leases != nil && !visitor.isCaller() { // the fleet does not know a caller's lease, so nothing excuses a caller that stays
		ownLease = j.leases.leaseOf(visitor.token)
	}
	j.inside[visitor] = ownLease
	j.stats.Arrivals++
	j.stats.Inside = len(j.inside)
	j.stats.HighWater = max(j.stats.HighWater, j.stats.Inside)
	if visitor.token < j.tokens[visitor.slot] {
		j.stats.StaleTokens++
		j.addSuspicion(staleToken, 0, ownLease)
	}
	if holder := j.holders[visitor.slot]; holder != nil && holder.token != visitor.token {
		j.stats.SharedSlots++
		j.addSuspicion(sharedSlot, 1, ownLease, j.inside[holder])
	}
	if j.stats.Inside > j.capacity {
		j.stats.OverLimitInstants++
		overSuspicion = j.addSuspicion(overCapacity, j.capacity, slices.Collect(maps.Values(j.inside))...)
	}
	j.tokens[visitor.slot] = max(j.tokens[visitor.slot], visitor.token)
	j.holders[visitor.slot] = visitor
	j.turnover.recordEntry(visitor.slot, visitor.token, j.changed)
	return overSuspicion, j.stats.Inside
}

// addSuspicion records that more of the leases concerned may be in force now than the number allowed. The caller holds mu.
func (j *visitCounter) addSuspicion(kind breach, allowed int, concerned ...*lease) *suspectedBreach {
	return j.suspects.add(&suspectedBreach{kind: kind, at: j.changed, allowed: allowed, leases: concerned})
}

func (j *visitCounter) countExit(visitor *visit) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.addElapsedTime()
	delete(j.inside, visitor)
	j.stats.Inside = len(j.inside)
	if j.holders[visitor.slot] == visitor {
		delete(j.holders, visitor.slot)
		j.turnover.recordExit(visitor.slot, j.changed)
	}
}

// Gaps returns the times between two consecutive visits to a slot. It returns at most the last maxGaps of them.
func (j *visitCounter) Gaps() []Gap {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.turnover.gaps)
}

// idleAtStartAndEnd calls slotTurnover.idleAtStartAndEnd for the slots of the capacity.
func (j *visitCounter) idleAtStartAndEnd(begin, end time.Time) (before, after time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.turnover.idleAtStartAndEnd(j.capacity, begin, end)
}

// addElapsedTime adds the time since the last change to the totals. The caller holds mu.
func (j *visitCounter) addElapsedTime() {
	now := time.Now()
	d := now.Sub(j.changed)
	j.changed = now
	j.stats.InsideTime += d * time.Duration(j.stats.Inside)
	if j.stats.Inside > j.capacity {
		j.stats.OverLimit += d
	}
}
