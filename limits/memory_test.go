package limits_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/limits"
)

// TestMemoryOfASubject is bounded by its policy, however often it starts: what
// docs/limits.md says, with room for other versions of Redis.
func TestMemoryOfASubject(t *testing.T) {
	t.Parallel()
	s := onRedis(t)
	for most, policy := range map[int64]limits.Policy{
		400:    hourly(10),
		2_500:  hourly(100),
		30_000: hourly(1000),
		401:    {Name: "d", Algorithm: limits.Duplicate, PerMS: 3_600_000, Max: 10},
		300:    {Name: "f", Per: "tags.account", Algorithm: limits.Fixed, PerMS: 3_600_000, Max: 1_000_000},
		301:    {Name: "c", Per: "tags.account", Algorithm: limits.Calendar, Period: limits.Month, Max: 1_000_000},
	} {
		rules := s.rules(t, policy)
		for range 15 {
			checks := make([]limits.Check, 100)
			for i := range checks {
				checks[i] = s.check(rules, "a")
			}
			if _, err := s.Take(t.Context(), s.scope, checks); err != nil {
				t.Fatal(err)
			}
		}
		used, err := s.client.MemoryUsage(t.Context(), s.subject(rules[0])).Result()
		if err != nil || used > most {
			t.Errorf("%s: %d bytes, %v; want at most %d", policy.Name, used, err, most)
		}
	}
}
