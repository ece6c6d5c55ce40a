package limits_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/limits"
)

// TestReservationsAreCountedInAnyOrder checks that reservations may be counted in any order, packed
// and in lists: the stored times stay sorted, newest first.
func TestReservationsAreCountedInAnyOrder(t *testing.T) {
	t.Parallel()
	s, mini := onClock(t, march())
	for _, most := range []int64{5, 100} { // packed times, then a list
		rules := s.rules(t, hourly(most))
		var made []limits.Check
		for second := range 3 {
			mini.SetTime(march().Add(time.Duration(second) * time.Second))
			made = append(made, s.check(rules, "a"))
			s.mustReserve(t, made[second])
		}
		for _, next := range []int{2, 0, 1} {
			s.count(t, made[next])
		}
		newestFirst(t, s, rules[0], 3)
	}
}

// TestLateCountsAreKeptInOrder checks that only the times of starts matter, not the order of the
// counts, packed and in lists.
func TestLateCountsAreKeptInOrder(t *testing.T) {
	t.Parallel()
	s, _ := onClock(t, march())
	for most, kept := range map[int64]int{4: 4, 1000: 7} { // 4: packed times; 1000: a list
		rules := s.rules(t, hourly(most))
		for _, ago := range []int{20, 40, 10, 30, 25, 5, 50} {
			s.countLate(t, s.check(rules, "a"), time.Duration(ago)*time.Second)
		}
		newestFirst(t, s, rules[0], kept)
	}
}

// TestListsAreCut checks that a list keeps only the starts that can still have an effect, if more
// starts than the maximum of the window are counted late from the ledger.
func TestListsAreCut(t *testing.T) {
	t.Parallel()
	s, _ := onClock(t, march())
	rules := s.rules(t, hourly(40))
	for range 60 {
		s.count(t, s.check(rules, "a"))
	}
	newestFirst(t, s, rules[0], 40)
}

func newestFirst(t *testing.T, s *server, rule *limits.Rule, many int) {
	t.Helper()
	got := s.times(t, s.subject(rule))
	if len(got) != many || !slices.IsSortedFunc(got, func(a, b string) int { return strings.Compare(b, a) }) {
		t.Errorf("kept %d, want %d: %v", len(got), many, got)
	}
}

// times returns the stored times of a subject, packed or in a list, newest first.
func (s *server) times(tb testing.TB, key string) (times []string) {
	tb.Helper()
	if s.client.Type(tb.Context(), key).Val() == "list" {
		return s.client.LRange(tb.Context(), key, 0, -1).Val()
	}
	for word := range slices.Chunk([]byte(s.client.Get(tb.Context(), key).Val()), 13) {
		times = append(times, string(word))
	}
	return times
}

// TestWindowOpensToTheMillisecond checks that a window blocks starts until its oldest start is
// exactly as old as the window, and returns this time: for packed times, for a list and without the
// shortcut.
func TestWindowOpensToTheMillisecond(t *testing.T) {
	t.Parallel()
	for form, as := range map[string]func(*limits.Rule) *limits.Rule{"packed": limits.AsPacked, "list": limits.AsList, "long way": limits.WithoutShortcut} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			now := march()
			s, mini := onClock(t, now)
			rules := compiled(t, perAccount(limits.Window{Max: 2, PerMS: 1000}))
			rules[0] = as(rules[0])
			s.know(t, rules)
			first := s.check(rules, "b")
			s.mustReserve(t, first)
			s.count(t, first)
			mini.SetTime(now.Add(400 * time.Millisecond))
			if !s.start(t, rules, "b") {
				t.Fatal("the second is refused")
			}
			mini.SetTime(now.Add(999 * time.Millisecond))
			for _, ask := range []func(context.Context, string, []limits.Check) ([]limits.Answer, error){s.Reservations.Reserve, s.Reservations.Look} {
				a, err := ask(t.Context(), s.scope, []limits.Check{s.check(rules, "b")})
				if err != nil || a[0].Status != limits.StatusLimited || a[0].Last().Wait != time.Millisecond || a[0].Last().Oldest != 999*time.Millisecond {
					t.Errorf("a millisecond early: %+v, %v", a, err)
				}
			}
			mini.SetTime(now.Add(1000 * time.Millisecond))
			third := s.check(rules, "b")
			s.mustReserve(t, third)
			s.release(t, third)
			if !s.start(t, rules, "b") {
				t.Error("it is refused in time")
			}
			if a := s.reserve(t, s.check(rules, "b")); a.Status != limits.StatusLimited || a.Last().Wait != 400*time.Millisecond {
				t.Errorf("then: %+v", a)
			}
		})
	}
}

// TestReservationSentAgainLaterIsTheSame checks that a reservation that is sent again later does
// not create a second reservation.
func TestReservationSentAgainLaterIsTheSame(t *testing.T) {
	t.Parallel()
	s, mini := onClock(t, march())
	rules := s.rules(t, perAccount(limits.Window{Max: 3, PerMS: 60_000}))
	c := s.check(rules, "a")
	s.mustReserve(t, c)
	mini.SetTime(march().Add(5 * time.Millisecond))
	s.mustReserve(t, c)
	s.release(t, c)
	for _, left := range []string{"open", "pending"} {
		if n := s.client.ZCard(t.Context(), s.key(left)).Val(); n != 0 {
			t.Errorf("%d are left in %s", n, left)
		}
	}
}
