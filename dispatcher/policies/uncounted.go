package policies

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/limits"
)

// uncountedStarts holds, by pool, the rules that let a task start while they could not be checked (on_error: open),
// until a pass over the limits has counted the start. They must be remembered, because the ledger does not
// record which starts were counted, and a rule that counted all starts again would count too many.
type uncountedStarts struct {
	mu    sync.Mutex
	pools map[string]missedRules
}

// missedRules holds the rules of one pool that may have missed a start.
type missedRules struct {
	since time.Time // time of the first missed start, by this process's clock
	rules map[*limits.Rule]bool
}

func newUncountedStarts() *uncountedStarts {
	return &uncountedStarts{pools: make(map[string]missedRules)}
}

// add records, for the policies of checks that let pass what cannot be checked, that a start may be missing in their counts.
func (u *uncountedStarts) add(pool string, now time.Time, checks []limits.Check) {
	rules := make(map[*limits.Rule]bool)
	for _, c := range checks {
		if failsOpen(itemRules(c.Items)) { // otherwise the start has a reservation, which is settled when it is overdue
			for _, item := range c.Items {
				rules[item.Rule] = true
			}
		}
	}
	if len(rules) > 0 {
		u.put(pool, missedRules{since: now, rules: rules})
	}
}

func (u *uncountedStarts) put(pool string, m missedRules) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if other, ok := u.pools[pool]; ok {
		maps.Copy(m.rules, other.rules)
		if other.since.Before(m.since) {
			m.since = other.since
		}
	}
	u.pools[pool] = m
}

// take returns the missed starts of a pool and removes them.
func (u *uncountedStarts) take(pool string) (m missedRules, found bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	m, found = u.pools[pool]
	delete(u.pools, pool)
	return m, found
}

// names returns the pools with missed starts.
func (u *uncountedStarts) names() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Keys(u.pools))
}
