package upkeep

import (
	"cmp"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/store"
)

// moment returns the time at which the ledger's clock starts in these tests.
func moment() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// look is one reading of the ledger's clock. All times are relative to the start.
type look struct {
	at    time.Duration // own time
	shows time.Duration // time of the ledger's clock
	want  time.Duration // time before which leases of 5 minutes have ended; -1 means that no lease has ended
	slow  time.Duration // duration of the reading
}

const (
	usualLease = 5 * time.Minute
	none       = time.Duration(-1)
)

func looks() map[string][]look {
	step := usualLease + 10*time.Second // time of the first reading after the step and after the end of the lease
	return map[string][]look{
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
	for name, all := range looks() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			guard := &clockGuard{}
			guard.ends(store.LeaseClock{Now: moment().Add(all[0].shows)}, own, own.Add(all[0].slow))
			for i, l := range all {
				at := own.Add(l.at)
				clock := store.LeaseClock{Now: moment().Add(l.shows), Leases: []time.Duration{usualLease}}
				got := guard.ends(clock, at, at.Add(l.slow))[usualLease]
				if got := got.Sub(moment()); got != l.want {
					t.Fatalf("reading %d: leases ended by %s, want %s", i, got, l.want)
				}
			}
		})
	}
}

// Longer leases do not delay the end of a shorter lease.
func TestEachLeaseIsDoubtedForItsOwnLength(t *testing.T) {
	t.Parallel()
	guard, own := &clockGuard{}, time.Now()
	day := 24 * time.Hour
	read := func(at, shows time.Duration) store.Lapses {
		clock := store.LeaseClock{Now: moment().Add(shows), Leases: []time.Duration{day, time.Minute}}
		return guard.ends(clock, own.Add(at), own.Add(at))
	}
	guard.ends(store.LeaseClock{Now: moment()}, own, own)
	read(time.Second, time.Hour)
	lapses := read(time.Second+time.Minute, time.Hour+time.Minute)
	if got := lapses[time.Minute].Sub(moment()); got != time.Hour+time.Minute {
		t.Errorf("short leases ended by %s, want the time that the clock shows", got)
	}
	if got := lapses[day].Sub(moment()); got != time.Minute+time.Second {
		t.Errorf("long leases ended by %s, want the time that has passed", got)
	}
}

// TestAReplicaThatStartsKnowsOfAStep checks that a new replica uses a stored clock pair if both clocks have
// advanced equally since. Otherwise it ends no lease before the length of the lease has passed.
func TestAReplicaThatStartsKnowsOfAStep(t *testing.T) {
	t.Parallel()
	own := time.Now()
	for name, c := range map[string]struct {
		pair  *store.ClockPair
		alike bool
	}{
		"nothing kept":        {nil, false},
		"alike":               {&store.ClockPair{Ledger: moment().Add(-time.Hour), Wall: own.Add(-time.Hour)}, true},
		"alike from far":      {&store.ClockPair{Ledger: moment().Add(-time.Hour), Wall: own.Add(-time.Hour + 900*time.Millisecond)}, true},
		"the ledger's ahead":  {&store.ClockPair{Ledger: moment().Add(-2 * time.Hour), Wall: own.Add(-time.Hour)}, false},
		"the ledger's behind": {&store.ClockPair{Ledger: moment().Add(-time.Hour), Wall: own.Add(-2 * time.Hour)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			guard := &clockGuard{}
			read := func(at time.Duration) time.Time {
				clock := store.LeaseClock{Now: moment().Add(at), Leases: []time.Duration{usualLease}, Kept: c.pair}
				return guard.ends(clock, own.Add(at), own.Add(at))[usualLease]
			}
			for _, at := range []time.Duration{0, time.Second, usualLease - 1} {
				behind := moment().Add(at).Sub(read(at))
				if c.alike && (behind < 0 || behind > clockSlack) || !c.alike && behind < 24*time.Hour {
					t.Errorf("after %s leases ended by %s before", at, behind)
				}
			}
			if got := read(usualLease); !got.Equal(moment().Add(usualLease)) {
				t.Errorf("after the lease: by %s", got)
			}
		})
	}
}

// A replica stores no clock pair while it does not trust the ledger's clock.
func TestWhatIsKeptForTheNextReplicaIsBelieved(t *testing.T) {
	t.Parallel()
	guard, own := &clockGuard{}, time.Now()
	clock := store.LeaseClock{Now: moment(), Leases: []time.Duration{usualLease}}
	guard.ends(clock, own, own)
	if pair, changed := guard.pair(nil, own); changed {
		t.Errorf("kept %+v, of a clock of which nothing is known", pair)
	}
	clock.Leases = nil
	guard.ends(clock, own, own)
	pair, changed := guard.pair(nil, own)
	if !changed || !pair.Ledger.Equal(moment()) || !pair.Wall.Equal(own) {
		t.Errorf("keeps %+v, %t", pair, changed)
	}
	clock = store.LeaseClock{Now: moment().Add(time.Hour), Leases: []time.Duration{usualLease}}
	guard.ends(clock, own.Add(time.Second), own.Add(time.Second))
	if again, changed := guard.pair(&pair, own.Add(time.Second)); changed {
		t.Errorf("keeps %+v after a step that is doubted", again)
	}
	own = own.Add(time.Second + usualLease)
	clock.Now = clock.Now.Add(usualLease)
	guard.ends(clock, own, own)
	if pair, changed = guard.pair(&pair, own); !changed || !pair.Ledger.Equal(clock.Now) {
		t.Errorf("keeps %+v, %t after a step that is believed", pair, changed)
	}
}

// clockRun is a history of a ledger's clock, and of leases that are granted by this clock.
type clockRun struct {
	guard   clockGuard
	start   time.Time
	own     time.Duration // elapsed time
	ahead   time.Duration // lead of the ledger's clock over own time
	slowest time.Duration // duration of the slowest reading
	pair    *store.ClockPair
	leases  []givenLease
}

// givenLease is a lease as the ledger stores it. promised is the latest end that a reply to its holder has
// contained.
type givenLease struct {
	length, longest time.Duration
	until           time.Time
	promised        time.Duration
}

// answer sends the remaining time to the holder, as a report or a renewal does.
func (l *givenLease) answer(r *clockRun) {
	l.promised = max(l.promised, r.own+min(l.until.Sub(r.shows()), l.length))
}

// renew follows the rule of store.Renew. If length is 0, the lease keeps its length.
func (l *givenLease) renew(r *clockRun, length time.Duration) {
	length = cmp.Or(length, l.length)
	if end := r.shows().Add(length); l.until.After(r.shows()) && end.After(l.until) {
		l.until, l.length, l.longest = end, length, max(l.longest, length)
	}
	if l.until.After(r.shows()) {
		l.answer(r)
	}
}

// TestNoLeaseEndsBeforeItsTime checks that no lease ends early in random histories with steps, slews, slow
// readings, leases of all lengths, renewals with other lengths, and replicas that start.
func TestNoLeaseEndsBeforeItsTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		r := &clockRun{start: time.Now()}
		r.read(rt)
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			r.own += time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(rt, "passes"))
			switch rapid.IntRange(0, 7).Draw(rt, "event") {
			case 0:
				r.step(rt)
				r.read(rt) // the guard does not notice a step forward and back between two readings
			case 1:
				r.ahead += time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(rt, "slew"))
			case 2:
				length := time.Duration(rapid.SampledFrom([]int{1, 30, 300, 1200}).Draw(rt, "lease")) * time.Second
				r.leases = append(r.leases, givenLease{length: length, longest: length, until: r.shows().Add(length), promised: r.own + length})
			case 3:
				r.guard = clockGuard{}
				r.read(rt)
			case 4, 5:
				if len(r.leases) > 0 {
					of := rapid.IntRange(0, len(r.leases)-1).Draw(rt, "renewed")
					r.leases[of].renew(r, time.Duration(rapid.SampledFrom([]int{0, 1, 5, 30, 300, 1200}).Draw(rt, "for"))*time.Second)
				}
			default:
				r.read(rt)
			}
		}
	})
}

// step lets the ledger's clock jump to a random time, or to shortly before the end of a lease. In the second
// case a shorter renewal still moves that end.
func (r *clockRun) step(rt *rapid.T) {
	if len(r.leases) > 0 && rapid.Bool().Draw(rt, "to an end") {
		of := rapid.IntRange(0, len(r.leases)-1).Draw(rt, "whose")
		left := time.Duration(rapid.Int64Range(0, int64(30*time.Second)).Draw(rt, "left"))
		r.ahead += r.leases[of].until.Sub(r.shows()) - left
		return
	}
	r.ahead += time.Duration(rapid.Int64Range(-int64(time.Minute), int64(time.Hour)).Draw(rt, "step"))
}

func (r *clockRun) shows() time.Time { return moment().Add(r.own + r.ahead) }

func (r *clockRun) read(rt *rapid.T) {
	asked := r.start.Add(r.own)
	r.own += time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(rt, "way there"))
	clock := store.LeaseClock{Now: r.shows(), Kept: r.pair}
	for _, l := range r.leases {
		clock.Leases = append(clock.Leases, l.longest)
	}
	r.own += time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(rt, "way back"))
	r.slowest = max(r.slowest, r.start.Add(r.own).Sub(asked))
	lapses := r.guard.ends(clock, asked, r.start.Add(r.own))
	if pair, changed := r.guard.pair(r.pair, asked); changed {
		r.pair = &pair
	}
	var left []givenLease
	for _, l := range r.leases {
		if !l.until.Before(lapses[l.longest]) {
			left = append(left, l)
			continue
		}
		if early := l.promised - r.own; early > r.slowest+pairSlack {
			rt.Fatalf("a lease of %s, once %s, ended %s before the end that its holder was told", l.length, l.longest, early)
		}
	}
	r.leases = left
}
