package limits_test

import (
	"slices"
	"testing"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// TestReservationCountsUntilItIsSettled checks that a reservation counts until it is settled, and that each start counts only once. If only
// reservations cause a refusal, the refusal must be marked as Pending. Reservations of the same group (alternatives) must not block each
// other.
func TestReservationCountsUntilItIsSettled(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		for _, p := range []policy.Policy{
			hourlyPolicy(1),
			{Name: "f", Per: "tags.account", Algorithm: policy.Fixed, PerMS: 3_600_000, Max: 1},
			{Name: "c", Per: "tags.account", Algorithm: policy.Calendar, Period: policy.Month, Timezone: servers.NoonZone(), Max: 1},
			{Name: "d", Per: "tags.account", Algorithm: policy.Duplicate, PerMS: 3_600_000, Max: 1},
		} {
			rules := s.newRules(t, p)
			one, other := s.newCheck(rules, "a"), s.newCheck(rules, "a")
			twin := one
			twin.Lease += "x"
			for range 2 {
				if s.reserve(t, one).Status != limits.StatusPassed {
					t.Fatalf("%s: a reservation, or the same sent again, is refused", p.Name)
				}
			}
			if a := s.reserve(t, twin); a.Status != limits.StatusPassed {
				t.Errorf("%s: an alternative is refused: %+v", p.Name, a)
			}
			if a := s.reserve(t, other); a.Status != limits.StatusLimited || !a.LongestRefusal().Pending {
				t.Errorf("%s: beside a reservation: %+v", p.Name, a)
			}
			s.release(t, one)
			s.release(t, one)
			s.release(t, twin)
			if a := s.reserve(t, other); a.Status != limits.StatusPassed {
				t.Fatalf("%s: after a release: %+v", p.Name, a)
			}
			for range 3 {
				s.countStart(t, other)
			}
			if a := s.reserve(t, other); a.Status != limits.StatusPassed {
				t.Errorf("%s: a reservation that came late, after its count: %+v", p.Name, a)
			}
			if a := s.reserve(t, one); a.Status != limits.StatusLimited || a.LongestRefusal().Pending {
				t.Errorf("%s: beside a count: %+v", p.Name, a)
			}
		}
	})
}

// TestReservationAfterItsCountReservesNothing checks a reservation that arrives after its start was already counted. It must pass and
// reserve nothing, even if the rule has room for more starts.
func TestReservationAfterItsCountReservesNothing(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		for _, windows := range [][]policy.Window{{{Max: 3, PerMS: 3_600_000}}, {{Max: 3, PerMS: 3_600_000}, {Max: 9, PerMS: 7_200_000}}} {
			rules := s.newRules(t, accountPolicy(windows...))
			c := s.newCheck(rules, "a")
			for step, act := range []func(testing.TB, limits.Check){s.mustReserve, s.countStart, s.mustReserve, s.mustReserve} {
				act(t, c)
				if open := s.client.ZCard(t.Context(), s.redisKey("open")).Val(); (open == 1) != (step == 0) {
					t.Errorf("step %d: %d are open", step, open)
				}
			}
		}
	})
}

// TestOverdueReservationShutsItsScope checks a reservation that nobody settles. When it is overdue, it must block all starts of its scope
// (the pool) until it is settled. If its start happened, the start must be counted.
func TestOverdueReservationShutsItsScope(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		rules := s.newRules(t, hourlyPolicy(1))
		started, not := s.newCheck(rules, "a"), s.newCheck(rules, "b")
		s.reserve(t, started)
		s.reserve(t, not)
		s.SetSettleWithin(0)
		if a := s.reserve(t, s.newCheck(rules, "c")); a.Status != limits.StatusUnsettled {
			t.Fatalf("beside one that is overdue: %+v", a)
		}
		overdue, err := s.Reservations.Overdue(t.Context(), s.scope)
		slices.Sort(overdue)
		if err != nil || !slices.Equal(overdue, []string{started.Lease, not.Lease}) {
			t.Fatalf("overdue: %v, %v", overdue, err)
		}
		started.Group, not.Group, not.Items = "", "", nil // another process settles the reservations; it does not know the group
		s.countStart(t, started)
		s.release(t, not)
		s.SetSettleWithin(time.Minute)
		if a := s.reserve(t, s.newCheck(rules, "a")); a.Status != limits.StatusLimited || a.LongestRefusal().Pending {
			t.Errorf("what started does not count: %+v", a)
		}
		if !s.tryStart(t, rules, "b") {
			t.Error("what did not start counts")
		}
		if n := s.client.ZCard(t.Context(), s.redisKey("pending")).Val(); n != 0 {
			t.Errorf("%d reservations left", n)
		}
	})
}
