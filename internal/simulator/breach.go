package simulator

import (
	"sync"
	"time"
)

// Breaches are what the external system saw and no late device explains: who
// was counted there was within its lease, on its own clock.
type Breaches struct {
	Over   int64 // arrivals that made it more than the capacity
	By     int   // by how many at most
	Shared int64 // arrivals at a slot somebody else was using
	Stale  int64 // arrivals with a lower token than their slot had seen
}

// leases are those of the devices at work, by token.
type leases struct {
	mu      sync.Mutex
	running map[int64]*lease
}

func newLeases() *leases { return &leases{running: map[int64]*lease{}} }

func (l *leases) add(token int64, one *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running[token] = one
}

func (l *leases) remove(token int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, token)
}

// of is the lease of a device at work; one that is over if it works no more.
func (l *leases) of(token int64) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.running[token]; one != nil {
		return one
	}
	return &lease{}
}

// stood says whether the lease, and the margin that the server keeps behind
// it, had not ended.
func (l *lease) stood(at time.Time, margin time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return at.Before(l.until.Add(margin))
}

// breach is a kind of what must not be.
type breach int

const (
	over breach = iota
	shared
	stale
	kinds
)

// maxSuspicions bounds what a run without end remembers. Further
// ones count against the dispatcher.
const maxSuspicions = 1 << 10

// suspicion is an arrival that looked like a breach. It is one if more leases
// stood than are allowed. That is known only when they have ended: a renewal
// that a device reads late still counts from when it asked.
type suspicion struct {
	kind    breach
	at      time.Time
	allowed int
	leases  []*lease // of those concerned; nil: of a stranger, which stands
	cleared bool
}

// beyond is how many more leases stood than are allowed.
func (s *suspicion) beyond(margin time.Duration) int {
	stood := 0
	for _, l := range s.leases {
		if l == nil || l.stood(s.at, margin) {
			stood++
		}
	}
	return stood - s.allowed
}

// suspicions are those of a run. Their owner guards them.
type suspicions struct {
	all  []*suspicion
	more [kinds]int64 // beyond maxSuspicions
}

func (s *suspicions) add(one *suspicion) *suspicion {
	if len(s.all) < maxSuspicions {
		s.all = append(s.all, one)
	} else {
		s.more[one.kind]++
	}
	return one
}

// breaches are the suspicions that hold.
func (s *suspicions) breaches(margin time.Duration) Breaches {
	count := s.more
	var b Breaches
	for _, one := range s.all {
		beyond := one.beyond(margin)
		if one.cleared || beyond <= 0 {
			continue
		}
		count[one.kind]++
		if one.kind == over {
			b.By = max(b.By, beyond)
		}
	}
	b.Over, b.Shared, b.Stale = count[over], count[shared], count[stale]
	return b
}
