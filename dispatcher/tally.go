package dispatcher

import (
	"maps"
	"sync"
)

// Tally is what a process has counted of a pool since it started.
type Tally struct {
	Denied    int64 `json:"denied,omitempty"`    // reports with open work that were granted nothing
	Conflicts int64 `json:"conflicts,omitempty"` // slots that Redis gave and the ledger refused
	Drift     int64 `json:"drift,omitempty"`     // slots on which Redis and the ledger disagreed, each time it was found
}

// mostTallied pools are tallied, so that a replica's sign of life has a bound.
const mostTallied = 5000

// tallies are the counts that all replicas tell one another. They are the
// metrics' in a form that is read in the process.
type tallies struct {
	mu sync.Mutex
	of map[string]Tally
}

func (t *tallies) count(pool string, more Tally) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one, known := t.of[pool]
	if !known && len(t.of) >= mostTallied {
		return
	}
	one.Denied += more.Denied
	one.Conflicts += more.Conflicts
	one.Drift += more.Drift
	t.of[pool] = one
}

func (t *tallies) forget(pool string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, pool)
}

// Tallies are what this process has counted since it started, of each pool of
// which there is something.
func (d *Dispatcher) Tallies() map[string]Tally {
	t := &d.metrics.tallies
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.of)
}
