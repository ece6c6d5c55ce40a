package policies

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/limits"
)

// uncounted are the rules that let something start while they could not be asked
// (on_error: open), by pool, until a pass over the limits has counted it. The ledger
// alone does not tell such starts from others, and a rule that counted all of them
// again would count too many.
type uncounted struct {
	mu    sync.Mutex
	pools map[string]missed
}

// missed is what the rules of one pool did not count.
type missed struct {
	since time.Time // the first of it, by our own clock
	rules map[*limits.Rule]bool
}

func newUncounted() *uncounted { return &uncounted{pools: make(map[string]missed)} }

// add notes what may have started without being counted.
func (u *uncounted) add(pool string, now time.Time, checks []limits.Check) {
	rules := make(map[*limits.Rule]bool)
	for _, c := range checks {
		if failsOpen(rulesOf(c.Items)) { // else it was reserved, and that is settled when it is overdue
			for _, item := range c.Items {
				rules[item.Rule] = true
			}
		}
	}
	if len(rules) > 0 {
		u.put(pool, missed{since: now, rules: rules})
	}
}

func (u *uncounted) put(pool string, m missed) {
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

// take is what is known of a pool, and is not any more.
func (u *uncounted) take(pool string) (m missed, found bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	m, found = u.pools[pool]
	delete(u.pools, pool)
	return m, found
}

// names are the pools of which anything is known.
func (u *uncounted) names() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Keys(u.pools))
}
