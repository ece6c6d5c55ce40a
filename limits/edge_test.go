package limits_test

import (
	"context"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/limits"
)

// TestWindowOpensToTheMillisecond: a window is shut until the very millisecond at which its oldest
// start is as old as the window, and says so; packed, as a list and the long way, for
// starts that are reserved and for such as are counted at once.
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
			if a := s.take(t, rules, "b"); a.Status != limits.StatusPassed {
				t.Fatalf("the second: %+v", a)
			}
			mini.SetTime(now.Add(999 * time.Millisecond))
			for _, ask := range []func(context.Context, string, []limits.Check) ([]limits.Answer, error){s.Reserve, s.Take, s.Look} {
				a, err := ask(t.Context(), s.scope, []limits.Check{s.check(rules, "b")})
				if err != nil || a[0].Status != limits.StatusLimited || a[0].Last().Wait != time.Millisecond || a[0].Last().Oldest != 999*time.Millisecond {
					t.Errorf("a millisecond early: %+v, %v", a, err)
				}
			}
			mini.SetTime(now.Add(1000 * time.Millisecond))
			third := s.check(rules, "b")
			s.mustReserve(t, third)
			s.release(t, third)
			if a := s.take(t, rules, "b"); a.Status != limits.StatusPassed {
				t.Errorf("in time: %+v", a)
			}
			if a := s.reserve(t, s.check(rules, "b")); a.Status != limits.StatusLimited || a.Last().Wait != 400*time.Millisecond {
				t.Errorf("then: %+v", a)
			}
		})
	}
}

// TestReservationSentAgainLaterIsTheSame.
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
