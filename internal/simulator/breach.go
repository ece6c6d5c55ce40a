package simulator

import (
	"sync"
	"time"
)

// Breaches counts the violations that the external system observed, without those that late devices explain. A late
// device uses the system after its lease has ended. Each counted device was within its lease by its own clock.
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

// newLeases returns leases without a device at work.
func newLeases() *leases { return &leases{running: map[int64]*lease{}} }

// add adds the lease held by a device that starts to work under this token.
func (l *leases) add(token int64, held *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running[token] = held
}

// remove removes the lease of a device that has stopped working.
func (l *leases) remove(token int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, token)
}

// leaseOf returns the lease of the device that works under this token. If the device has stopped working, it returns a lease that has
// ended.
func (l *leases) leaseOf(token int64) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.running[token]; one != nil {
		return one
	}
	return &lease{}
}

// inForceAt reports whether the time at is before the end of the lease plus margin. margin is the time for which the server keeps the slot
// after the lease that the device knows.
func (l *lease) inForceAt(at time.Time, margin time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return at.Before(l.until.Add(margin))
}

// breach is a kind of violation of the dispatcher's promises.
type breach int

const (
	overCapacity breach = iota
	sharedSlot
	staleToken
	breachKinds
)

// maxSuspicions limits the suspicions that are kept, so that an endless run does not grow. Each suspicion beyond the
// limit counts as a violation.
const maxSuspicions = 1 << 10

// suspicion is an arrival that looked like a violation. It is a violation if more leases were in force at that time
// than allowed. This is known only when the leases have ended: a device may read a renewal late, but the renewed
// lease counts from the time at which the report was sent.
type suspicion struct {
	kind    breach
	at      time.Time
	allowed int
	leases  []*lease // the leases concerned; nil (a caller, or no leases are known) always counts as in force
	cleared bool
}

// excess returns by how much the number of leases in force exceeded the allowed number, at the time of the suspicion. margin is the time
// for which the server keeps a slot after the lease that the device knows.
func (s *suspicion) excess(margin time.Duration) int {
	inForce := 0
	for _, l := range s.leases {
		if l == nil || l.inForceAt(s.at, margin) {
			inForce++
		}
	}
	return inForce - s.allowed
}

// suspicions holds the suspicions of a run. Their owner must guard them by a mutex.
type suspicions struct {
	all      []*suspicion
	overflow [breachKinds]int64 // number of suspicions beyond maxSuspicions
}

// add adds a suspicion and returns it. Beyond maxSuspicions it only counts it.
func (s *suspicions) add(added *suspicion) *suspicion {
	if len(s.all) < maxSuspicions {
		s.all = append(s.all, added)
	} else {
		s.overflow[added.kind]++
	}
	return added
}

// breaches counts the suspicions that are violations. margin is the time for which the server keeps a slot after the lease that the device
// knows.
func (s *suspicions) breaches(margin time.Duration) Breaches {
	count := s.overflow
	var b Breaches
	for _, one := range s.all {
		excess := one.excess(margin)
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
