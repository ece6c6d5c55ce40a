package limits_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/fleetslots/dispatcher/limits"
)

// TestReservationsAreCountedInAnyOrder: what started first may be settled last,
// packed and in lists; the newest time still comes first.
func TestReservationsAreCountedInAnyOrder(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	s := serve(t, mini.Addr(), false)
	for _, most := range []int64{5, 100} { // packed, a list
		rules := s.rules(t, perAccount(limits.Window{Max: most, PerMS: 3_600_000}))
		var made []limits.Check
		for second := range 3 {
			mini.SetTime(time.Date(2026, 3, 1, 12, 0, second, 0, time.UTC))
			made = append(made, s.check(rules, "a"))
			s.mustReserve(t, made[second])
		}
		for _, next := range []int{2, 0, 1} {
			s.count(t, made[next])
		}
		newestFirst(t, s, rules[0], 3)
	}
}

// TestListsAreCut: more starts than a window takes, counted late from the ledger,
// leave only what can still matter.
func TestListsAreCut(t *testing.T) {
	t.Parallel()
	s := serve(t, miniredis.RunT(t).Addr(), false)
	rules := s.rules(t, perAccount(limits.Window{Max: 40, PerMS: 3_600_000}))
	for range 60 {
		c := s.check(rules, "a")
		if err := s.Count(t.Context(), scope, []limits.Check{c}, 0); err != nil {
			t.Fatal(err)
		}
	}
	newestFirst(t, s, rules[0], 40)
}

func newestFirst(t *testing.T, s *server, rule *limits.Rule, many int) {
	t.Helper()
	got := s.times(t, limits.SubjectKey(scope, rule, rule.Subject(facts("a"))))
	if len(got) != many || !slices.IsSortedFunc(got, func(a, b string) int { return strings.Compare(b, a) }) {
		t.Errorf("kept %d, want %d: %v", len(got), many, got)
	}
}
