package meters

import "maps"

// Tally holds what a process has counted for one pool since the process started. Replicas publish their tallies to each other.
type Tally struct {
	Denied    int64 `json:"denied,omitempty"`    // reports of devices with open work that got no grant
	Conflicts int64 `json:"conflicts,omitempty"` // slots that Redis assigned and the ledger refused
	Drift     int64 `json:"drift,omitempty"`     // slots on which Redis and the ledger disagreed, counted in each reconciliation
}

// maxTallies is the maximum number of pools with a tally. It limits the size of the heartbeat of a replica.
const maxTallies = 5000

// AddTally adds the counts of the tally added to the tally of a pool. It ignores a pool without a tally if maxTallies pools already have one.
func (s *Set) AddTally(pool string, added Tally) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tally, isCounted := s.tally[pool]
	if !isCounted && len(s.tally) >= maxTallies {
		return
	}
	tally.Denied += added.Denied
	tally.Conflicts += added.Conflicts
	tally.Drift += added.Drift
	s.tally[pool] = tally
}

// Tallies returns what this process has counted since it started, by pool. It leaves out pools without a count.
func (s *Set) Tallies() (byPool map[string]Tally) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.tally)
}
