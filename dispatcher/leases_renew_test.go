package dispatcher_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/store"
)

// acquireWithLength requests a lease of this length in pool "a", and returns it.
func (b *testBench) acquireWithLength(holder string, length time.Duration) dispatcher.Lease {
	b.t.Helper()
	got, err := b.leases().Acquire(b.ctx, dispatcher.LeaseRequest{Leaser: testCaller(), Pool: "a", Holder: holder, Lease: length})
	if err != nil || got.Grant == nil {
		b.t.Fatalf("lease of %s: %+v, %v", holder, got.Cause, err)
	}
	return got
}

// TestAShorterRenewalKeepsTheClockGuard checks a caller that was promised a lease of an hour and then renews it
// with 30 s, before or after the database clock steps forward. No replica may end the lease early, because the
// caller may use it for the hour.
func TestAShorterRenewalKeepsTheClockGuard(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]struct{ before, after time.Duration }{
		"the end stays": {0, 2 * time.Hour},
		"the end moves": {time.Hour - 20*time.Second, minute}, // less than 30 s are left by that clock
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runOnBackends(t, func(b *testBench) {
				b.createPool("a", 1, minute)
				g := *b.acquireWithLength("job", time.Hour).Grant
				b.ageGrants(step.before)
				_, err := b.leases().Renew(b.ctx, testCaller(), "a", g.Task, g.Token, minute/2)
				b.must(err)
				b.ageGrants(step.after)
				b.expectClockDistrusted()
			})
		})
	}
}

// expectClockDistrusted starts a new replica. From the stored times of the database clock and of the host's clock, the replica must see that the
// database clock stepped. It must not end any lease within a minute.
func (b *testBench) expectClockDistrusted() {
	b.t.Helper()
	clock, err := b.store.LeaseClock(b.ctx)
	b.must(err)
	b.must(b.store.StoreClockPair(b.ctx, store.ClockPair{Ledger: clock.StoredPair.Ledger.Add(-2 * time.Hour), Wall: clock.StoredPair.Wall}))
	start := time.Now()
	// By the clock of this replica, the first reading of the database clock takes a minute. The database clock advances by far less.
	var readings []time.Time
	other := dispatcher.New(dispatcher.Config{Store: b.store, Semaphore: b.semaphore, Now: func() time.Time {
		if len(readings) == 0 {
			return start.Add(minute)
		}
		first := readings[0]
		readings = readings[1:]
		return first
	}})
	readings = append(readings, start)
	for range 2 {
		if r, err := other.Upkeep.Reap(b.ctx); err != nil || r.Ended+r.Retried != 0 {
			b.t.Fatalf("reaped %+v, %v, while the caller may use the slot for an hour", r, err)
		}
	}
}

// TestALeaseIsShortenedOnlyAtItsEnd checks a renewal with a shorter length. If the lease has more time left than this length, the renewal
// must change nothing. Otherwise the lease must get the new length.
func TestALeaseIsShortenedOnlyAtItsEnd(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		g := *b.acquireWithLength("job", time.Hour).Grant
		for _, renewal := range []struct {
			passes, length, least, most time.Duration
		}{
			{0, 30 * time.Second, 59 * minute, time.Hour - 10*time.Second},
			{30 * minute, 30 * time.Second, 29 * minute, 30*minute - 10*time.Second}, // more than a third of the lease is over
			{0, 0, 59 * minute, time.Hour - 10*time.Second},                          // the current length of the lease
			{time.Hour - minute, 10 * minute, 9 * minute, 10*minute - 10*time.Second},
			{9*minute + 50*time.Second, 2 * minute, minute, 2*minute - 10*time.Second},
			{minute, 0, minute, 2*minute - 10*time.Second},
			{110 * time.Second, 20 * time.Second, time.Second, 16 * time.Second}, // the margin is again a fifth of the lease
		} {
			b.ageGrants(renewal.passes)
			got, err := b.leases().Renew(b.ctx, testCaller(), "a", g.Task, g.Token, renewal.length)
			if err != nil || got.Usable < renewal.least || got.Usable > renewal.most {
				b.t.Fatalf("%+v: usable for %s, %v", renewal, got.Usable, err)
			}
		}
	})
}

// promisedLease records the responses about one lease of a caller. All times are relative to the request for the
// lease. Time passes by the clock, and also because the test makes the grant older.
type promisedLease struct {
	b             *testBench
	task          int64
	token         int64
	start         time.Time
	aged          time.Duration
	latestEnd     time.Duration // latest end in a response
	longestUsable time.Duration // longest remaining time in a response
}

func (p *promisedLease) elapsed() time.Duration { return p.aged + time.Since(p.start) }

// renewAfter waits for the time pause and then renews the lease with this length. It returns false if the lease has
// ended.
func (p *promisedLease) renewAfter(rt *rapid.T, pause, length time.Duration) bool {
	p.b.ageGrants(pause)
	p.aged += pause
	asked := p.elapsed()
	got, err := p.b.leases().Renew(p.b.ctx, testCaller(), "a", p.task, p.token, length)
	if err != nil {
		return false
	}
	took := p.elapsed() - asked
	p.longestUsable = max(p.longestUsable, got.Usable)
	if end := asked + got.Waited + got.Usable; end < p.latestEnd-took-time.Second {
		rt.Fatalf("renewed for %s: the answer ends %s before an earlier one", length, p.latestEnd-end)
	}
	p.latestEnd = max(p.latestEnd, asked+got.Usable)
	if got.Grant.LongestLease < p.longestUsable {
		rt.Fatalf("renewed for %s: the clock guard waits for %s, and an answer said %s", length, got.Grant.LongestLease, p.longestUsable)
	}
	return true
}

// TestNoRenewalTakesAnAnswerBack checks renewals with random lengths, also near the maximum time for which a lease may be held. No response
// may name an earlier end of the lease than an earlier response did. The clock guard must never use a shorter length for the lease than the
// longest time that a response named.
func TestNoRenewalTakesAnAnswerBack(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 1, minute)
	lengths := rapid.SampledFrom([]time.Duration{0, 5 * time.Second, 10 * time.Second, 49 * time.Second, 51 * time.Second, 20 * minute, time.Hour, 24 * time.Hour})
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		defer func() { b.endAllLeases(); b.reap() }()
		p := &promisedLease{b: b, start: time.Now()}
		got := b.acquireWithLength(fmt.Sprint("job", run), max(5*time.Second, lengths.Draw(rt, "length")))
		p.task, p.token, p.latestEnd, p.longestUsable = got.Grant.Task, got.Grant.Token, got.Usable, got.Usable
		if rapid.Bool().Draw(rt, "near the end of the longest run") {
			const day = 24*time.Hour - 10*minute
			p.renewAfter(rt, 0, 24*time.Hour)
			for range 6 {
				p.renewAfter(rt, day, 24*time.Hour)
			}
			p.renewAfter(rt, day, 10*time.Second)
		}
		for range rapid.IntRange(1, 8).Draw(rt, "renewals") {
			left := max(0, p.latestEnd-p.elapsed()-time.Second)
			if !p.renewAfter(rt, time.Duration(rapid.Int64Range(0, int64(left)).Draw(rt, "passes")), lengths.Draw(rt, "renewed for")) {
				break
			}
		}
	})
}
