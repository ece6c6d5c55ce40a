package upkeep

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/store"
)

// A device has a lease of 10 s and stops reporting. Then the ledger's clock steps back by an hour. The slot must be freed an hour later
// than without the step. A lease that is granted after the step must end as usual.
func TestAStepBackDelaysTheEndOfALeaseByItsSize(t *testing.T) {
	t.Parallel()
	const lease, step, second = 10 * time.Second, time.Hour, time.Second
	guard, own := &clockGuard{}, time.Now()
	ended := func(at, shows, until time.Duration) bool {
		clock := store.LeaseClock{Now: clockStart().Add(shows), Lengths: []time.Duration{lease}}
		return clockStart().Add(until).Before(guard.lapseCutoffsAfterReading(clock, own.Add(at), own.Add(at))[lease])
	}
	guard.lapseCutoffsAfterReading(store.LeaseClock{Now: clockStart()}, own, own)
	older, newer := lease, 6*second-step+lease
	var back []time.Duration
	for _, c := range []struct {
		at, until time.Duration
		want      bool
	}{
		{5 * second, older, false},
		{45 * second, older, false},
		{15 * second, newer, false},
		{17 * second, newer, true},
		{step + lease - second, older, false},
		{step + lease + second, older, true},
	} {
		if got := ended(c.at, c.at-step, c.until); got != c.want {
			t.Errorf("%s after the grant of the older lease, a lease until %s: ended %t, want %t", c.at, c.until, got, c.want)
		}
		back = append(back, guard.takeClockStepBack())
	}
	if want := []time.Duration{step, 0, 0, 0, 0, 0}; !slices.Equal(back, want) {
		t.Errorf("steps back %s, want %s: each is reported once", back, want)
	}
}

// lateLeaseRun is one random history of the ledger's clock, with one lease that is granted by this clock.
type lateLeaseRun struct {
	guard         clockGuard
	start         time.Time
	elapsed       time.Duration
	lead          time.Duration // lead of the ledger's clock over the replica's own time
	lease         time.Duration
	until         time.Time // the end of the lease, by the ledger's clock
	leadAtGrant   time.Duration
	minLead       time.Duration // lowest lead since the grant
	firstReading  time.Duration // time of the first reading after the grant, or after the last start of a replica
	awaitsReading bool          // the next reading sets firstReading
}

// TestNoLeaseEndsLaterThanItsBound checks the bound of docs/operations.md for late ends of leases. Clocks step in both directions at random, and
// replicas start. The bound begins at the first reading after the grant, or after the latest start of a replica. From then on, a lease lasts at
// most its own length plus the time by which the clock stepped back.
func TestNoLeaseEndsLaterThanItsBound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		seconds := func(from, to int, what string) time.Duration {
			return time.Duration(rapid.IntRange(from, to).Draw(rt, what)) * time.Second
		}
		r := &lateLeaseRun{start: time.Now(), lease: seconds(1, 300, "lease")}
		r.readClock()
		r.lead = seconds(-3600, 3600, "step before the grant")
		r.readClock()
		r.elapsed += seconds(0, 10, "passes before the grant")
		r.until, r.leadAtGrant, r.minLead, r.awaitsReading = r.ledgerTime().Add(r.lease), r.lead, r.lead, true
		for range rapid.IntRange(1, 40).Draw(rt, "events") {
			r.elapsed += seconds(0, 20, "passes")
			switch rapid.IntRange(0, 9).Draw(rt, "event") {
			case 0:
				r.lead += seconds(-120, 600, "step")
				r.minLead = min(r.minLead, r.lead)
			case 1:
				r.guard, r.awaitsReading = clockGuard{}, true
			}
			ended := r.until.Before(r.readClock())
			if late := r.elapsed - r.firstReading - r.lease - (r.leadAtGrant - r.minLead); !ended && late > 0 {
				rt.Fatalf("a lease of %s has not ended %s after its bound", r.lease, late)
			}
		}
	})
}

func (r *lateLeaseRun) ledgerTime() time.Time { return clockStart().Add(r.elapsed + r.lead) }

// readClock takes a reading of the ledger's clock that needs no time. Leases that end before the returned time have
// ended.
func (r *lateLeaseRun) readClock() (endedBefore time.Time) {
	if r.awaitsReading {
		r.firstReading, r.awaitsReading = r.elapsed, false
	}
	at := r.start.Add(r.elapsed)
	return r.guard.lapseCutoffsAfterReading(store.LeaseClock{Now: r.ledgerTime(), Lengths: []time.Duration{r.lease}}, at, at)[r.lease]
}
