package limits_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// policyOfEachKind returns a policy for each way of storing counts: sliding with two windows, sliding with one window, fixed and calendar. The
// longest window of the first three is perMS ms long. The calendar policy counts days.
func policyOfEachKind(perMS int64) []policy.Policy {
	return []policy.Policy{
		accountPolicy(policy.Window{Max: 1, PerMS: 1000}, policy.Window{Max: 5, PerMS: perMS}),
		{Name: "one", Per: "tags.account", Algorithm: policy.Sliding, Windows: []policy.Window{{Max: 200, PerMS: perMS}}},
		{Name: "f", Per: "tags.account", Algorithm: policy.Fixed, PerMS: perMS, Max: 1},
		{Name: "c", Per: "tags.account", Algorithm: policy.Calendar, Period: policy.Day, Timezone: servers.NoonZone(), Max: 1},
	}
}

// TestIdleLeavesNothing checks a subject that makes no more starts. After its longest window, Redis must have no key of the subject. Later,
// it must have no key at all.
func TestIdleLeavesNothing(t *testing.T) {
	t.Parallel()
	s, mini := newClockLimiter(t, arbitraryTime())
	rules := s.newRules(t, policyOfEachKind(7_200_000)...)
	if !s.tryStart(t, rules, "a") || s.tryStart(t, rules, "a") {
		t.Fatal("want one start and one refusal")
	}
	mini.FastForward(25 * time.Hour)
	if left := slices.DeleteFunc(s.redisKeys(t), func(k string) bool { return !strings.Contains(k, ":s:") }); len(left) > 0 {
		t.Errorf("left of idle subjects: %v", left)
	}
	mini.FastForward(26 * time.Hour)
	if left := s.redisKeys(t); len(left) > 0 {
		t.Errorf("left of idle rules: %v", left)
	}
}

// TestKeysEndByThemselves checks on a real Redis that every key has a TTL as soon as no reservation is open.
func TestKeysEndByThemselves(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		rules := s.newRules(t, policyOfEachKind(3_600_000)...)
		s.tryStart(t, rules, "a")
		s.tryStart(t, rules, "a")
		for _, rule := range rules {
			if !s.tryStart(t, []*limits.Rule{rule}, "started alone") {
				t.Fatal("it may not start")
			}
		}
		for _, key := range s.redisKeys(t) {
			if ttl := s.client.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > 50*time.Hour {
				t.Errorf("%s ends in %s", key, ttl)
			}
		}
		set := compileSet(t, policyOfEachKind(3_600_000)...)
		s.scope += "/set"
		for i, rules := range [][]*limits.Rule{set, set[:1], set[1:2], set[2:3], set[3:]} {
			for _, id := range []string{"", "id"} {
				if a := s.takeWithID(t, rules, id, 1, strconv.Itoa(i)+id); !a.Allowed {
					t.Fatalf("it may not be taken: %+v", a)
				}
			}
		}
		for _, key := range s.redisKeys(t) {
			if ttl := s.client.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > 34*24*time.Hour {
				t.Errorf("%s ends in %s", key, ttl)
			}
		}
	})
}

// TestMemoryOfASubject checks the memory that Redis needs for one subject. It must stay below the bound in docs/limits.md for its policy,
// however many starts are counted. The bound leaves a margin for other versions of Redis.
func TestMemoryOfASubject(t *testing.T) {
	t.Parallel()
	s := newRedisLimiter(t)
	for most, policy := range map[int64]policy.Policy{
		400:    hourlyPolicy(10),
		2_500:  hourlyPolicy(100),
		30_000: hourlyPolicy(1000),
		401:    {Name: "d", Algorithm: policy.Duplicate, PerMS: 3_600_000, Max: 10},
		300:    {Name: "f", Per: "tags.account", Algorithm: policy.Fixed, PerMS: 3_600_000, Max: 1_000_000},
		301:    {Name: "c", Per: "tags.account", Algorithm: policy.Calendar, Period: policy.Month, Max: 1_000_000},
	} {
		rules := s.newRules(t, policy)
		for range 15 {
			checks := make([]limits.Check, 100)
			for i := range checks {
				checks[i] = s.newCheck(rules, "a")
			}
			must.Succeed(t, s.Reservations.Count(t.Context(), s.scope, checks, 0))
		}
		used, err := s.client.MemoryUsage(t.Context(), s.subjectKey(rules[0])).Result()
		if err != nil || used > most {
			t.Errorf("%s: %d bytes, %v; want at most %d", policy.Name, used, err, most)
		}
	}
}
