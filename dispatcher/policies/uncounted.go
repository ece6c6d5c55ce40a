package policies

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/limits"
)

// uncountedStarts holds, by pool, the rules that may have missed a start. Only a start whose rules all have on_error: open can be missed. Any
// other start has a reservation, which is settled when it is overdue. The ledger does not record which starts were counted.
// SettleAllReservations counts a recent start again, which has no effect if the start was counted. An older start could be counted twice. So
// SettleAllReservations makes the rules of an older start unknown, and the next check rebuilds their counts from the ledger.
type uncountedStarts struct {
	mu    sync.Mutex
	pools map[string]missedRules
}

type missedRules struct {
	since time.Time // time of the first missed start, by this process's clock
	rules map[*limits.Rule]bool
}

func newUncountedStarts() *uncountedStarts {
	return &uncountedStarts{pools: make(map[string]missedRules)}
}

// addMissedChecks records that the rules of checks may have missed a start. It ignores a check unless all its rules have on_error: open.
func (u *uncountedStarts) addMissedChecks(pool string, now time.Time, checks []limits.Check) {
	rules := make(map[*limits.Rule]bool)
	for _, c := range checks {
		if allFailOpen(rulesOfItems(c.Items)) {
			for _, item := range c.Items {
				rules[item.Rule] = true
			}
		}
	}
	if len(rules) > 0 {
		u.addMissedRules(pool, missedRules{since: now, rules: rules})
	}
}

func (u *uncountedStarts) addMissedRules(pool string, missed missedRules) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if other, ok := u.pools[pool]; ok {
		maps.Copy(missed.rules, other.rules)
		if other.since.Before(missed.since) {
			missed.since = other.since
		}
	}
	u.pools[pool] = missed
}

// removeMissedRules removes and returns the rules of a pool that missed starts, because Redis did not answer when the starts were to be counted.
func (u *uncountedStarts) removeMissedRules(pool string) (missed missedRules, found bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	missed, found = u.pools[pool]
	delete(u.pools, pool)
	return missed, found
}

func (u *uncountedStarts) poolNames() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Keys(u.pools))
}
