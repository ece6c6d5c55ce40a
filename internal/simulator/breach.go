package simulator

import (
	"sync"
	"time"
)

// Breaches counts the violations in the external system. An arrival is not counted if it exceeds a limit only because
// devices stayed after the end of their leases.
type Breaches struct {
	OverCapacity int64 // arrivals that exceeded the capacity
	MaxExcess    int   // the largest number of devices above the capacity
	Shared       int64 // arrivals at a slot that another device was using
	Stale        int64 // arrivals with a lower token than an earlier arrival at the slot
}

// leases holds the leases of the devices at work, by token.
type leases struct {
	mu      sync.Mutex
	running map[int64]*lease
}

func newLeases() *leases { return &leases{running: map[int64]*lease{}} }

func (l *leases) add(token int64, held *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running[token] = held
}

func (l *leases) remove(token int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, token)
}

// leaseOf returns the lease of the device that works under this token. If there is no such device, it returns a lease
// that has ended.
func (l *leases) leaseOf(token int64) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.running[token]; one != nil {
		return one
	}
	return &lease{}
}

// isInForceAt reports whether a time is before the end of the lease plus margin. margin is Config.Margin.
func (l *lease) isInForceAt(at time.Time, margin time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return at.Before(l.until.Add(margin))
}

type breach int

const (
	overCapacity breach = iota
	sharedSlot
	staleToken
	breachKinds
)

// maxSuspicions limits the memory that an endless run needs. Each suspicion beyond this number counts as a violation.
const maxSuspicions = 1 << 10

// suspectedBreach is an arrival that may be a violation. The arrival is a violation if more leases than allowed were in force
// at its time. This is known only at the end of the run, because a device may read a renewal late.
type suspectedBreach struct {
	kind    breach
	at      time.Time
	allowed int
	leases  []*lease // the leases concerned; an entry is nil for a caller or if no leases are known, and always counts as in force
	cleared bool
}

// countExcessLeases returns the number of leases in force at the time of the suspicion, minus the allowed number.
func (s *suspectedBreach) countExcessLeases(margin time.Duration) (excessLeases int) {
	inForce := 0
	for _, l := range s.leases {
		if l == nil || l.isInForceAt(s.at, margin) {
			inForce++
		}
	}
	return inForce - s.allowed
}

// suspectedBreaches holds the suspicions of a run. The mutex of the visitCounter guards it.
type suspectedBreaches struct {
	all      []*suspectedBreach
	overflow [breachKinds]int64 // number of suspicions beyond maxSuspicions
}

// add stores a suspicion and returns it. If maxSuspicions are already stored, add only counts the suspicion.
func (s *suspectedBreaches) add(added *suspectedBreach) *suspectedBreach {
	if len(s.all) < maxSuspicions {
		s.all = append(s.all, added)
	} else {
		s.overflow[added.kind]++
	}
	return added
}

// countBreaches returns how many of the suspicions are violations, by kind.
func (s *suspectedBreaches) countBreaches(margin time.Duration) Breaches {
	count := s.overflow
	var b Breaches
	for _, one := range s.all {
		excess := one.countExcessLeases(margin)
		if one.cleared || excess <= 0 {
			continue
		}
		count[one.kind]++
		if one.kind == overCapacity {
			b.MaxExcess = max(b.MaxExcess, excess)
		}
	}
	b.OverCapacity, b.Shared, b.Stale = count[overCapacity], count[sharedSlot], count[staleToken]
	return b
}
