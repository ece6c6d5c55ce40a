package limits_test

import (
	"fmt"
	"testing"

	"github.com/fleetslots/dispatcher/internal/testservers"
	"github.com/fleetslots/dispatcher/limits"
)

// TestRolledBackRedis: what Redis knows after a start with older data is not believed
// by any replica, not even by the first call, until it was filled again.
func TestRolledBackRedis(t *testing.T) {
	t.Parallel()
	r := testservers.Redis(t)
	replicas := []*server{serve(t, r.Addr, false), serve(t, r.Addr, false)}
	policies := []limits.Policy{
		perAccount(limits.Window{Max: 2, PerMS: 3_600_000}),
		{Name: "several", Per: "tags.account", Algorithm: limits.Sliding, Windows: []limits.Window{{Max: 2, PerMS: 3_600_000}, {Max: 3, PerMS: 7_200_000}}},
		{Name: "month", Per: "tags.account", Algorithm: limits.Calendar, Period: limits.Month, Max: 2},
	}
	var past []limits.Start
	rules := make([][]*limits.Rule, len(replicas))
	for i, s := range replicas {
		for _, p := range policies {
			compiled, err := limits.Compile("p", []limits.Policy{p})
			if err != nil {
				t.Fatal(err)
			}
			rules[i] = append(rules[i], compiled...)
		}
		s.know(t, rules[i])
		s.reserveEach(t, rules[i], limits.StatusPassed)
	}
	for round := range 3 {
		snapshot := r.Snapshot(t)
		if round == 0 {
			for n := range 2 {
				past = append(past, limits.Start{Lease: fmt.Sprintf("%d.1.past", n), Facts: facts("a")})
				for _, rule := range rules[0] {
					replicas[0].count(t, limits.NewCheck(past[n].Lease, "g", []*limits.Rule{rule}, facts("a")))
				}
			}
			replicas[1].reserveEach(t, rules[1], limits.StatusLimited)
		}
		r.Kill()
		r.Restore(t, snapshot)
		r.Start()
		for i, s := range replicas {
			s.reserveEach(t, rules[i], limits.StatusUnknown)
			s.know(t, rules[i], past...)
			s.reserveEach(t, rules[i], limits.StatusLimited)
		}
	}
}

// reserveEach expects an answer of each rule, and gives back what passes.
func (s *server) reserveEach(t *testing.T, rules []*limits.Rule, want limits.Status) {
	t.Helper()
	for _, rule := range rules {
		c := s.check([]*limits.Rule{rule}, "a")
		if a := s.reserve(t, c); a.Status != want {
			t.Fatalf("%s: %+v, want status %d", rule.Name, a, want)
		}
		s.release(t, c)
	}
}
