package meters

import "maps"

// Tally is what a process has counted of a pool since it started.
type Tally struct {
	Denied    int64 `json:"denied,omitempty"`    // reports with open work that were granted nothing
	Conflicts int64 `json:"conflicts,omitempty"` // slots that Redis gave and the ledger refused
	Drift     int64 `json:"drift,omitempty"`     // slots on which Redis and the ledger disagreed, each time it was found
}

// mostTallied pools are tallied, so that a replica's heartbeat has a bound.
const mostTallied = 5000

// Count adds to what all replicas tell one another of a pool.
func (s *Set) Count(pool string, more Tally) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, known := s.tally[pool]
	if !known && len(s.tally) >= mostTallied {
		return
	}
	one.Denied += more.Denied
	one.Conflicts += more.Conflicts
	one.Drift += more.Drift
	s.tally[pool] = one
}

// Tallies are what this process has counted since it started, of each pool of
// which there is something.
func (s *Set) Tallies() map[string]Tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.tally)
}
