package limits_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// TestReservationsAreCountedInAnyOrder counts reservations in another order than they were made. The stored times must stay sorted, newest
// first.
func TestReservationsAreCountedInAnyOrder(t *testing.T) {
	t.Parallel()
	s, mini := newClockLimiter(t, arbitraryTime())
	for _, most := range []int64{5, 100} {
		rules := s.newRules(t, hourlyPolicy(most))
		var made []limits.Check
		for second := range 3 {
			mini.SetTime(arbitraryTime().Add(time.Duration(second) * time.Second))
			made = append(made, s.newCheck(rules, "a"))
			s.mustReserve(t, made[second])
		}
		for _, next := range []int{2, 0, 1} {
			s.countStart(t, made[next])
		}
		expectNewestFirst(t, s, rules[0], 3)
	}
}

// TestLateCountsAreKeptInOrder checks starts that are counted late. The stored times must be in the order of the starts, whatever the order
// of the counts was.
func TestLateCountsAreKeptInOrder(t *testing.T) {
	t.Parallel()
	s, _ := newClockLimiter(t, arbitraryTime())
	for most, kept := range map[int64]int{4: 4, 1000: 7} {
		rules := s.newRules(t, hourlyPolicy(most))
		for _, ago := range []int{20, 40, 10, 30, 25, 5, 50} {
			s.countLate(t, s.newCheck(rules, "a"), time.Duration(ago)*time.Second)
		}
		expectNewestFirst(t, s, rules[0], kept)
	}
}

// TestListsAreCut counts more starts of a subject than the maximum of its window. The list must keep only the starts that can still have an
// effect.
func TestListsAreCut(t *testing.T) {
	t.Parallel()
	s, _ := newClockLimiter(t, arbitraryTime())
	rules := s.newRules(t, hourlyPolicy(40))
	for range 60 {
		s.countStart(t, s.newCheck(rules, "a"))
	}
	expectNewestFirst(t, s, rules[0], 40)
}

func expectNewestFirst(t *testing.T, s *redisLimiter, rule *limits.Rule, wantCount int) {
	t.Helper()
	got := s.client.LRange(t.Context(), s.subjectKey(rule), 0, -1).Val()
	if len(got) != wantCount || !slices.IsSortedFunc(got, func(a, b string) int { return strings.Compare(b, a) }) {
		t.Errorf("kept %d, want %d: %v", len(got), wantCount, got)
	}
}

// TestWindowOpensToTheMillisecond checks that a window blocks starts until its oldest start is exactly as old as the window is long. A
// refusal must return the time until then.
func TestWindowOpensToTheMillisecond(t *testing.T) {
	t.Parallel()
	now := arbitraryTime()
	s, mini := newClockLimiter(t, now)
	rules := compileRules(t, accountPolicy(policy.Window{Max: 2, PerMS: 1000}))
	s.rebuild(t, rules)
	first := s.newCheck(rules, "b")
	s.mustReserve(t, first)
	s.countStart(t, first)
	mini.SetTime(now.Add(400 * time.Millisecond))
	if !s.tryStart(t, rules, "b") {
		t.Fatal("the second is refused")
	}
	mini.SetTime(now.Add(999 * time.Millisecond))
	for _, ask := range []func(context.Context, string, []limits.Check) ([]limits.Answer, error){s.Reservations.Reserve, s.Reservations.Peek} {
		a, err := ask(t.Context(), s.scope, []limits.Check{s.newCheck(rules, "b")})
		if err != nil || a[0].Status != limits.StatusLimited || a[0].LongestRefusal().Wait != time.Millisecond || a[0].LongestRefusal().Oldest != 999*time.Millisecond {
			t.Errorf("a millisecond early: %+v, %v", a, err)
		}
	}
	mini.SetTime(now.Add(1000 * time.Millisecond))
	third := s.newCheck(rules, "b")
	s.mustReserve(t, third)
	s.release(t, third)
	if !s.tryStart(t, rules, "b") {
		t.Error("it is refused in time")
	}
	if a := s.reserve(t, s.newCheck(rules, "b")); a.Status != limits.StatusLimited || a.LongestRefusal().Wait != 400*time.Millisecond {
		t.Errorf("then: %+v", a)
	}
}

// TestReservationSentAgainLaterIsTheSame checks a reservation that is sent again later. No second reservation may be made.
func TestReservationSentAgainLaterIsTheSame(t *testing.T) {
	t.Parallel()
	s, mini := newClockLimiter(t, arbitraryTime())
	rules := s.newRules(t, accountPolicy(policy.Window{Max: 3, PerMS: 60_000}))
	c := s.newCheck(rules, "a")
	s.mustReserve(t, c)
	mini.SetTime(arbitraryTime().Add(5 * time.Millisecond))
	s.mustReserve(t, c)
	s.release(t, c)
	for _, left := range []string{"open", "pending"} {
		if n := s.client.ZCard(t.Context(), s.redisKey(left)).Val(); n != 0 {
			t.Errorf("%d are left in %s", n, left)
		}
	}
}
