package limits_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/internal/testservers"
	"github.com/fleetslots/dispatcher/limits"
)

// TestMemoryOfASubject is bounded by its policy, however often it starts: what
// docs/limits.md says, with room for other versions of Redis.
func TestMemoryOfASubject(t *testing.T) {
	t.Parallel()
	s := serve(t, testservers.Redis(t).Addr, false)
	for most, policy := range map[int64]limits.Policy{
		400:    perAccount(limits.Window{Max: 10, PerMS: 3_600_000}),
		2_500:  perAccount(limits.Window{Max: 100, PerMS: 3_600_000}),
		30_000: perAccount(limits.Window{Max: 1000, PerMS: 3_600_000}),
		401:    {Name: "d", Algorithm: limits.Duplicate, PerMS: 3_600_000, Max: 10},
		300:    {Name: "f", Per: "tags.account", Algorithm: limits.Fixed, PerMS: 3_600_000, Max: 1_000_000},
		301:    {Name: "c", Per: "tags.account", Algorithm: limits.Calendar, Period: limits.Month, Max: 1_000_000},
	} {
		rules := s.rules(t, policy)
		for range 1500 {
			if _, err := s.Take(t.Context(), scope, []limits.Check{s.check(rules, "a")}); err != nil {
				t.Fatal(err)
			}
		}
		used, err := s.client.MemoryUsage(t.Context(), limits.SubjectKey(scope, rules[0], rules[0].Subject(facts("a")))).Result()
		if err != nil || used > most {
			t.Errorf("%s: %d bytes, %v; want at most %d", policy.Name, used, err, most)
		}
	}
}
