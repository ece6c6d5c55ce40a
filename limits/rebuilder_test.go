package limits_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// TestRuleIsUnknownUntilRebuilt checks that a rule is unknown until it is filled from its history, also after Redis has lost all data.
// Starts that happen while the rule is filled must be counted.
func TestRuleIsUnknownUntilRebuilt(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		for _, p := range []policy.Policy{
			hourlyPolicy(3),
			{Name: "two", Per: "tags.account", Algorithm: policy.Sliding, Windows: []policy.Window{{Max: 3, PerMS: 3_600_000}, {Max: 200, PerMS: 4_000_000}}},
			{Name: "fixed", Per: "tags.account", Algorithm: policy.Fixed, PerMS: 3_600_000, Max: 3},
			{Name: "calendar", Per: "tags.account", Algorithm: policy.Calendar, Period: policy.Month, Timezone: servers.NoonZone(), Max: 3},
		} {
			rules := compileRules(t, p)
			s.expectUnknown(t, rules, "a new rule")
			if err := s.Rebuilder.Rebuild(t.Context(), s.scope, rules, s.historyWithLateStarts(t, rules)); err != nil {
				t.Fatalf("%s: %v", p.Name, err)
			}
			s.countStart(t, limits.NewCheck("4.1.x", "x", rules, accountFacts("a"))) // the process that made this start counts it only now
			if s.tryStart(t, rules, "a") {
				t.Errorf("%s: a fourth start", p.Name)
			}
			got := []bool{s.tryStart(t, rules, "b"), s.tryStart(t, rules, "b"), s.tryStart(t, rules, "b")}
			if !slices.Equal(got, []bool{true, false, false}) {
				t.Errorf("%s: starts of b, of which one committed during the filling: %v", p.Name, got)
			}
			must.Succeed(t, s.client.Del(t.Context(), s.redisKeys(t)...).Err())
			s.expectUnknown(t, rules, "after Redis lost all")
		}
	})
}

func (s *redisLimiter) expectUnknown(t *testing.T, rules []*limits.Rule, when string) {
	t.Helper()
	if a := s.reserve(t, s.newCheck(rules, "a")); a.Status != limits.StatusUnknown {
		t.Errorf("%s: known, %s: %+v", rules[0].Name, when, a)
	}
}

// historyWithLateStarts returns a history with two starts of account a and one start of account b. During the first reading of the history,
// two more starts happen. One is a third start of account a, which is counted. The other is a second start of account b, which was allowed
// ten seconds before and is committed now. Only the second reading contains these two.
func (s *redisLimiter) historyWithLateStarts(t *testing.T, rules []*limits.Rule) limits.History {
	t.Helper()
	past := []limits.Start{
		{Lease: "1.1.x", Ago: time.Second, Facts: accountFacts("a")},
		{Lease: "2.1.x", Ago: 2 * time.Second, Facts: accountFacts("a")},
		{Lease: "3.1.x", Ago: 3 * time.Second, Facts: accountFacts("b")},
	}
	third := limits.Start{Lease: "4.1.x", Facts: accountFacts("a")}
	slow := limits.Start{Lease: "5.1.x", Ago: 10 * time.Second, Facts: accountFacts("b")}
	return func(ctx context.Context, within time.Duration) iter.Seq2[limits.Start, error] {
		if within < time.Minute {
			return newHistory(slices.Concat([]limits.Start{third}, past, []limits.Start{slow})...)(ctx, within)
		}
		s.expectUnknown(t, rules, "while it is filled")
		s.countStart(t, limits.NewCheck(third.Lease, "x", rules, third.Facts)) // without the second reading, this count would be lost
		return newHistory(past...)(ctx, within)
	}
}

// TestPeriodBeginsWithItsFirst checks that a start in the first millisecond of a day counts for this day, even if the start is read from
// the history.
func TestPeriodBeginsWithItsFirst(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 5, 0, 0, time.UTC)
	s, mini := newClockLimiter(t, now)
	rules := compileRules(t, policy.Policy{Name: "n", Per: "pool", Algorithm: policy.Calendar, Period: policy.Day, Max: 1})
	s.Limiter = limits.NewWithLocalClock(s.client, func() time.Time { return now })
	for ago, full := range map[time.Duration]bool{5 * time.Minute: true, 5*time.Minute + time.Millisecond: false} {
		mini.FlushAll()
		s.rebuild(t, rules, limits.Start{Lease: "1.1.x", Ago: ago, Facts: accountFacts("a")})
		if got := !s.tryStart(t, rules, "a"); got != full {
			t.Errorf("a start %s ago: the day is full: %t", ago, got)
		}
	}
}

// TestOneFillsAtATime checks that only one process at a time fills a rule from the history, and that another
// process can take over if the first process has ended.
func TestOneFillsAtATime(t *testing.T) {
	t.Parallel()
	s, mini := newClockLimiter(t, arbitraryTime())
	rules := compileRules(t, accountPolicy(policy.Window{Max: 1, PerMS: 1000}))
	gone := errors.New("the process ended")
	broken := func(context.Context, time.Duration) iter.Seq2[limits.Start, error] {
		return func(yield func(limits.Start, error) bool) { yield(limits.Start{}, gone) }
	}
	if err := s.Rebuilder.Rebuild(t.Context(), s.scope, rules, broken); !errors.Is(err, gone) {
		t.Fatalf("a history that cannot be read: %v", err)
	}
	if err := s.Rebuilder.Rebuild(t.Context(), s.scope, rules, newHistory()); !errors.Is(err, limits.ErrBusy) {
		t.Errorf("beside another one: %v", err)
	}
	mini.SetTime(arbitraryTime().Add(10 * time.Second))
	s.rebuild(t, rules)
	if !s.tryStart(t, rules, "a") {
		t.Error("refused")
	}
}

// TestNobodyTakesOverFromWhoIsAtIt checks a process that needs longer than takeOverAfter to fill a rule, but makes progress. No other
// process may take over the rule.
func TestNobodyTakesOverFromWhoIsAtIt(t *testing.T) {
	t.Parallel()
	now := arbitraryTime()
	s, mini := newClockLimiter(t, now)
	one, other := limits.NewWithLocalClock(s.client, func() time.Time { return now }), limits.New(s.client)
	rules := compileRules(t, hourlyPolicy(1))
	slow := func(context.Context, time.Duration) iter.Seq2[limits.Start, error] {
		return func(yield func(limits.Start, error) bool) {
			for n := range 30 {
				now = now.Add(4 * time.Second)
				mini.SetTime(now)
				mini.FastForward(4 * time.Second)
				if err := other.Rebuilder.Rebuild(t.Context(), s.scope, rules, newHistory()); !errors.Is(err, limits.ErrBusy) {
					t.Errorf("another one, after %d starts: %v", n, err)
				}
				if !yield(limits.Start{Lease: fmt.Sprintf("%d.1.x", n), Ago: time.Duration(n) * time.Second, Facts: accountFacts("a")}, nil) {
					return
				}
			}
		}
	}
	must.Succeed(t, one.Rebuilder.Rebuild(t.Context(), s.scope, rules, slow))
	if s.tryStart(t, rules, "a") {
		t.Error("what was read is not counted")
	}
}

// TestSubjectOfTheFutureIsUnknown checks a subject with counted times in the future, which exist because the clock of Redis was set back.
// The rule of the subject must become unknown, so that it is filled again. Otherwise the subject would block starts until the clock reaches
// these times. After the rule was filled, only the history decides, also if it has no start of the subject.
func TestSubjectOfTheFutureIsUnknown(t *testing.T) {
	t.Parallel()
	lastSecond := limits.Start{Lease: "1.1.g1", Ago: time.Second, Facts: accountFacts("a")}
	for _, p := range []policy.Policy{
		accountPolicy(policy.Window{Max: 1, PerMS: 60_000}),
		{Name: "f", Per: "tags.account", Algorithm: policy.Fixed, PerMS: 60_000, Max: 1},
		{Name: "c", Per: "tags.account", Algorithm: policy.Calendar, Period: policy.Day, Timezone: "UTC", Max: 1}, // where arbitraryTime is noon
	} {
		for status, history := range map[limits.Status][]limits.Start{limits.StatusLimited: {lastSecond}, limits.StatusPassed: nil} {
			s, mini := newClockLimiter(t, arbitraryTime())
			rules := s.newRules(t, p)
			s.tryStart(t, rules, "a")
			mini.SetTime(arbitraryTime().Add(-48 * time.Hour))
			if a := s.reserve(t, s.newCheck(rules, "a")); a.Status != limits.StatusUnknown {
				t.Errorf("%s: %+v", p.Name, a)
			}
			s.rebuild(t, rules, history...)
			a := s.reserve(t, s.newCheck(rules, "a"))
			if a.Status != status || a.Status == limits.StatusLimited && a.LongestRefusal().Wait > 36*time.Hour {
				t.Errorf("%s: filled again with %d starts: %+v", p.Name, len(history), a)
			}
		}
	}
}

// TestSlowReadingOfTheHistory checks a rebuild that reads the history twice, for 22 s each. A window must open when its start is as old as
// the window is long. A start in the first seconds of a calendar period must count.
func TestSlowReadingOfTheHistory(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy policy.Policy
		wait   time.Duration
	}{
		{accountPolicy(policy.Window{Max: 1, PerMS: 60_000}), 6 * time.Second},
		{policy.Policy{Name: "f", Per: "tags.account", Algorithm: policy.Fixed, PerMS: 60_000, Max: 1}, 6 * time.Second},
		{policy.Policy{Name: "c", Per: "tags.account", Algorithm: policy.Calendar, Period: policy.Day, Max: 1}, 24*time.Hour - 64*time.Second},
	} {
		began := time.Date(2026, 3, 1, 0, 0, 20, 0, time.UTC)
		s, passTime := newPassingLimiter(t, began)
		rules := compileRules(t, c.policy)
		must.Succeed(t, s.Rebuilder.Rebuild(t.Context(), s.scope, rules, slowHistory(passTime, began.Add(-10*time.Second))))
		if a := s.reserve(t, s.newCheck(rules, "a")); a.Status != limits.StatusLimited || a.LongestRefusal().Wait != c.wait {
			t.Errorf("%s: %+v, want a wait of %s", c.policy.Name, a, c.wait)
		}
	}
}

// TestRebuildAcrossTheEndOfAPeriod checks a calendar period that ends while the history is read. The rule must be filled again, for the new
// period: starts of the ended period must not count in it, and starts of the new period must.
func TestRebuildAcrossTheEndOfAPeriod(t *testing.T) {
	t.Parallel()
	april := time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	s, passTime := newPassingLimiter(t, april.Add(-10*time.Second))
	rules := compileRules(t, policy.Policy{Name: "n", Per: "pool", Algorithm: policy.Calendar, Period: policy.Month, Max: 2})
	history := slowHistory(passTime, april.Add(500*time.Millisecond), april.Add(-time.Minute))
	if err := s.Rebuilder.Rebuild(t.Context(), s.scope, rules, history); !errors.Is(err, limits.ErrBusy) {
		t.Errorf("the period ended: %v", err)
	}
	passTime(10 * time.Second) // now another rebuild may fill the rule
	must.Succeed(t, s.Rebuilder.Rebuild(t.Context(), s.scope, rules, history))
	if got := []bool{s.tryStart(t, rules, "a"), s.tryStart(t, rules, "a")}; !slices.Equal(got, []bool{true, false}) {
		t.Errorf("starts in April, which had one start and allows two: %v", got)
	}
}

// newPassingLimiter returns a limiter on an in-process Redis. passTime advances the clocks of the limiter and of this Redis, and returns the
// new time.
func newPassingLimiter(t *testing.T, now time.Time) (s *redisLimiter, passTime func(time.Duration) time.Time) {
	t.Helper()
	s, mini := newClockLimiter(t, now)
	s.Limiter = limits.NewWithLocalClock(s.client, func() time.Time { return now })
	return s, func(d time.Duration) time.Time {
		now = now.Add(d)
		mini.SetTime(now)
		return now
	}
}

// slowHistory returns a history with one start of account a at each of these times, newest first. A reading takes 11 s before the first start,
// and 11 s after each start.
func slowHistory(passTime func(time.Duration) time.Time, starts ...time.Time) limits.History {
	return func(_ context.Context, within time.Duration) iter.Seq2[limits.Start, error] {
		return func(yield func(limits.Start, error) bool) {
			for i, at := range starts {
				start := limits.Start{Lease: fmt.Sprintf("%d.1.x", i), Ago: passTime(11 * time.Second).Sub(at), Facts: accountFacts("a")}
				if start.Ago < within && !yield(start, nil) {
					return
				}
			}
			passTime(11 * time.Second)
		}
	}
}
