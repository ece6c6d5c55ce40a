package upkeep

import (
	"cmp"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/store"
)

func clockStart() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// clockReading is one reading of the ledger's clock. All times are relative to the start.
type clockReading struct {
	elapsed    time.Duration // the replica's own time
	ledgerTime time.Duration // time of the ledger's clock
	wantEnded  time.Duration // time before which leases of 5 minutes have ended; -1 means that no lease has ended
	took       time.Duration // duration of the reading
}

const (
	usualLease = 5 * time.Minute
	noneEnded  = time.Duration(-1)
)

func clockReadings() map[string][]clockReading {
	step := usualLease + 10*time.Second // time of the first reading after the step and after the end of the lease
	return map[string][]clockReading{
		"both agree":     {{0, 0, 0, 0}, {10 * time.Second, 10 * time.Second, 10 * time.Second, 0}},
		"a step forward": {{0, 0, 0, 0}, {10 * time.Second, time.Hour, 10 * time.Second, 0}},
		"a step forward is doubted for the lease": {
			{0, 0, 0, 0},
			{10 * time.Second, time.Hour, 10 * time.Second, 0},
			{step - 1, time.Hour + usualLease - 1, step - 1, 0},
			{step, time.Hour + usualLease, time.Hour + usualLease, 0},
		},
		"a clock that gains a second with each reading": {
			{0, 0, 0, 0},
			{10 * time.Second, 11 * time.Second, 10 * time.Second, 0},
			{20 * time.Second, 22 * time.Second, 20 * time.Second, 0},
			{usualLease, usualLease + 30*time.Second, usualLease, 0},
			{step, step + 31*time.Second, step + time.Second, 0},
		},
		"a step back is followed at once": {
			{0, 0, 0, 0},
			{10 * time.Second, -time.Hour, -time.Hour, 0},
			{20 * time.Second, -time.Hour + 10*time.Second, -time.Hour + 10*time.Second, 0},
		},
		"a step to and fro": {
			{0, 0, 0, 0},
			{10 * time.Second, time.Hour, 10 * time.Second, 0},
			{20 * time.Second, 20 * time.Second, 20 * time.Second, 0},
			{30 * time.Second, time.Hour, 30 * time.Second, 0},
		},
		"a slow answer": {
			{0, 0, -4 * time.Second, 4 * time.Second},
			{10 * time.Second, 14 * time.Second, 10 * time.Second, 4 * time.Second},
			{20 * time.Second, 20 * time.Second, 20 * time.Second, 0},
			{30 * time.Second, 34 * time.Second, 30 * time.Second, 4 * time.Second},
		},
	}
}

func TestAClockThatStepsForwardEndsNoLeaseEarly(t *testing.T) {
	t.Parallel()
	own := time.Now()
	for name, all := range clockReadings() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			guard := &clockGuard{}
			guard.lapseCutoffsAfterReading(store.LeaseClock{Now: clockStart().Add(all[0].ledgerTime)}, own, own.Add(all[0].took))
			for i, l := range all {
				at := own.Add(l.elapsed)
				clock := store.LeaseClock{Now: clockStart().Add(l.ledgerTime), Lengths: []time.Duration{usualLease}}
				got := guard.lapseCutoffsAfterReading(clock, at, at.Add(l.took))[usualLease]
				if got := got.Sub(clockStart()); got != l.wantEnded {
					t.Fatalf("reading %d: leases ended by %s, want %s", i, got, l.wantEnded)
				}
			}
		})
	}
}

// A pool has leases of different lengths when the clock steps. Longer leases must not delay the end of a shorter one.
func TestEachLeaseIsDoubtedForItsOwnLength(t *testing.T) {
	t.Parallel()
	guard, own := &clockGuard{}, time.Now()
	day := 24 * time.Hour
	read := func(at, shows time.Duration) store.LapseCutoffs {
		clock := store.LeaseClock{Now: clockStart().Add(shows), Lengths: []time.Duration{day, time.Minute}}
		return guard.lapseCutoffsAfterReading(clock, own.Add(at), own.Add(at))
	}
	guard.lapseCutoffsAfterReading(store.LeaseClock{Now: clockStart()}, own, own)
	read(time.Second, time.Hour)
	lapses := read(time.Second+time.Minute, time.Hour+time.Minute)
	if got := lapses[time.Minute].Sub(clockStart()); got != time.Hour+time.Minute {
		t.Errorf("short leases ended by %s, want the time that the clock shows", got)
	}
	if got := lapses[day].Sub(clockStart()); got != time.Minute+time.Second {
		t.Errorf("long leases ended by %s, want the time that has passed", got)
	}
}

// TestAReplicaThatStartsKnowsOfAStep checks a replica that starts. It trusts the stored times of the ledger's clock
// and the host's clock if both clocks have advanced equally since then. Otherwise it ends no lease before the
// length of the lease has passed.
func TestAReplicaThatStartsKnowsOfAStep(t *testing.T) {
	t.Parallel()
	own := time.Now()
	for name, c := range map[string]struct {
		pair  *store.ClockPair
		alike bool
	}{
		"nothing kept":        {nil, false},
		"alike":               {&store.ClockPair{Ledger: clockStart().Add(-time.Hour), Wall: own.Add(-time.Hour)}, true},
		"alike from far":      {&store.ClockPair{Ledger: clockStart().Add(-time.Hour), Wall: own.Add(-time.Hour + 900*time.Millisecond)}, true},
		"the ledger's ahead":  {&store.ClockPair{Ledger: clockStart().Add(-2 * time.Hour), Wall: own.Add(-time.Hour)}, false},
		"the ledger's behind": {&store.ClockPair{Ledger: clockStart().Add(-time.Hour), Wall: own.Add(-2 * time.Hour)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			guard := &clockGuard{}
			read := func(at time.Duration) time.Time {
				clock := store.LeaseClock{Now: clockStart().Add(at), Lengths: []time.Duration{usualLease}, StoredPair: c.pair}
				return guard.lapseCutoffsAfterReading(clock, own.Add(at), own.Add(at))[usualLease]
			}
			for _, at := range []time.Duration{0, time.Second, usualLease - 1} {
				lag := clockStart().Add(at).Sub(read(at))
				if c.alike && (lag < 0 || lag > clockSlack) || !c.alike && lag < 24*time.Hour {
					t.Errorf("after %s leases ended by %s before", at, lag)
				}
			}
			if got := read(usualLease); !got.Equal(clockStart().Add(usualLease)) {
				t.Errorf("after the lease: by %s", got)
			}
		})
	}
}

// While a replica does not trust the ledger's clock, it must not store the times of the two clocks (ledger and host).
func TestWhatIsKeptForTheNextReplicaIsBelieved(t *testing.T) {
	t.Parallel()
	guard, own := &clockGuard{}, time.Now()
	clock := store.LeaseClock{Now: clockStart(), Lengths: []time.Duration{usualLease}}
	guard.lapseCutoffsAfterReading(clock, own, own)
	if pair, changed := guard.changedClockPair(nil, own); changed {
		t.Errorf("kept %+v, of a clock of which nothing is known", pair)
	}
	clock.Lengths = nil
	guard.lapseCutoffsAfterReading(clock, own, own)
	pair, changed := guard.changedClockPair(nil, own)
	if !changed || !pair.Ledger.Equal(clockStart()) || !pair.Wall.Equal(own) {
		t.Errorf("keeps %+v, %t", pair, changed)
	}
	clock = store.LeaseClock{Now: clockStart().Add(time.Hour), Lengths: []time.Duration{usualLease}}
	guard.lapseCutoffsAfterReading(clock, own.Add(time.Second), own.Add(time.Second))
	if again, changed := guard.changedClockPair(&pair, own.Add(time.Second)); changed {
		t.Errorf("keeps %+v after a step that is doubted", again)
	}
	own = own.Add(time.Second + usualLease)
	clock.Now = clock.Now.Add(usualLease)
	guard.lapseCutoffsAfterReading(clock, own, own)
	if pair, changed = guard.changedClockPair(&pair, own); !changed || !pair.Ledger.Equal(clock.Now) {
		t.Errorf("keeps %+v, %t after a step that is believed", pair, changed)
	}
}

// clockRun is one random history of the ledger's clock, with several leases that are granted by this clock.
type clockRun struct {
	guard   clockGuard
	start   time.Time
	elapsed time.Duration
	lead    time.Duration // lead of the ledger's clock over the replica's own time
	slowest time.Duration // duration of the slowest reading
	pair    *store.ClockPair
	leases  []modelLease
}

// modelLease is a lease as the ledger stores it. promised is the latest end of the lease that any reply to its
// holder named.
type modelLease struct {
	length, longest time.Duration
	until           time.Time
	promised        time.Duration
}

// promiseRemaining tells the holder how much time of the lease is left, as the reply to a report or a renewal does.
func (l *modelLease) promiseRemaining(r *clockRun) {
	l.promised = max(l.promised, r.elapsed+min(l.until.Sub(r.ledgerTime()), l.length))
}

// renew renews the lease by the same rule as store.Renew. If length is 0, the lease keeps its length.
func (l *modelLease) renew(r *clockRun, length time.Duration) {
	length = cmp.Or(length, l.length)
	if end := r.ledgerTime().Add(length); l.until.After(r.ledgerTime()) && end.After(l.until) {
		l.until, l.length, l.longest = end, length, max(l.longest, length)
	}
	if l.until.After(r.ledgerTime()) {
		l.promiseRemaining(r)
	}
}

// TestNoLeaseEndsBeforeItsTime checks random histories of the ledger's clock: steps, slews and slow readings, with
// leases of all lengths, renewals with other lengths, and replicas that start. No lease may end early.
func TestNoLeaseEndsBeforeItsTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		r := &clockRun{start: time.Now()}
		r.readClock(rt)
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			r.elapsed += time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(rt, "passes"))
			switch rapid.IntRange(0, 7).Draw(rt, "event") {
			case 0:
				r.stepClock(rt)
				r.readClock(rt) // the guard does not notice a step forward and back between two readings
			case 1:
				r.lead += time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(rt, "slew"))
			case 2:
				length := time.Duration(rapid.SampledFrom([]int{1, 30, 300, 1200}).Draw(rt, "lease")) * time.Second
				r.leases = append(r.leases, modelLease{length: length, longest: length, until: r.ledgerTime().Add(length), promised: r.elapsed + length})
			case 3:
				r.guard = clockGuard{}
				r.readClock(rt)
			case 4, 5:
				if len(r.leases) > 0 {
					of := rapid.IntRange(0, len(r.leases)-1).Draw(rt, "renewed")
					r.leases[of].renew(r, time.Duration(rapid.SampledFrom([]int{0, 1, 5, 30, 300, 1200}).Draw(rt, "for"))*time.Second)
				}
			default:
				r.readClock(rt)
			}
		}
	})
}

// stepClock lets the ledger's clock jump to a random time, or to a time shortly before the end of a lease. In the
// second case, a shorter renewal can still move the end of this lease.
func (r *clockRun) stepClock(rt *rapid.T) {
	if len(r.leases) > 0 && rapid.Bool().Draw(rt, "to an end") {
		index := rapid.IntRange(0, len(r.leases)-1).Draw(rt, "whose")
		left := time.Duration(rapid.Int64Range(0, int64(30*time.Second)).Draw(rt, "left"))
		r.lead += r.leases[index].until.Sub(r.ledgerTime()) - left
		return
	}
	r.lead += time.Duration(rapid.Int64Range(-int64(time.Minute), int64(time.Hour)).Draw(rt, "step"))
}

func (r *clockRun) ledgerTime() time.Time { return clockStart().Add(r.elapsed + r.lead) }

func (r *clockRun) readClock(rt *rapid.T) {
	asked := r.start.Add(r.elapsed)
	r.elapsed += time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(rt, "way there"))
	clock := store.LeaseClock{Now: r.ledgerTime(), StoredPair: r.pair}
	for _, l := range r.leases {
		clock.Lengths = append(clock.Lengths, l.longest)
	}
	r.elapsed += time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(rt, "way back"))
	r.slowest = max(r.slowest, r.start.Add(r.elapsed).Sub(asked))
	lapses := r.guard.lapseCutoffsAfterReading(clock, asked, r.start.Add(r.elapsed))
	if pair, changed := r.guard.changedClockPair(r.pair, asked); changed {
		r.pair = &pair
	}
	var left []modelLease
	for _, l := range r.leases {
		if !l.until.Before(lapses[l.longest]) {
			left = append(left, l)
			continue
		}
		if early := l.promised - r.elapsed; early > r.slowest+pairSlack {
			rt.Fatalf("a lease of %s, once %s, ended %s before the end that its holder was told", l.length, l.longest, early)
		}
	}
	r.leases = left
}
