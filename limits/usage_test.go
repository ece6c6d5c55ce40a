package limits_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

func (s *redisLimiter) highestUses(tb testing.TB, l *limits.Limiter, rules []*limits.Rule, limit int) (out []string) {
	tb.Helper()
	uses, err := l.Usage.HighestUses(tb.Context(), s.scope, rules, limit)
	if err != nil {
		tb.Fatalf("highest: %v", err)
	}
	for _, u := range uses {
		out = append(out, fmt.Sprintf("%s %s %d/%d", u.Rule.Name, u.Subject.Label, u.Used, u.Max))
	}
	return out
}

// TestHighestAreExact checks that HighestUses returns exactly the subjects (for example accounts) with the highest current use, for starts of
// tasks and for takes. This must hold in every process, and even if there are more subjects than the list of candidates keeps. Subjects
// whose use has ended must not be returned.
func TestHighestAreExact(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		rules := s.newRules(t, hourlyPolicy(10))
		for i := range 3 {
			for range 2 * (i + 1) {
				s.tryStart(t, rules, fmt.Sprint("account ", i))
			}
		}
		s.reserve(t, s.newCheck(rules, "account 1")) // a reservation does not count as use
		want := fmt.Sprint([]string{"per-account tags.account=account 2 6/10", "per-account tags.account=account 1 4/10"})
		if got := fmt.Sprint(s.highestUses(t, s.Limiter, rules, 2)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if got := fmt.Sprint(s.highestUses(t, limits.New(s.client), rules, 2)); got != want {
			t.Errorf("at another process: %s, want %s", got, want)
		}
		set := compileSet(t, hourlyPolicy(10), policy.Policy{Name: "soon-over", Per: "facts.account", Algorithm: policy.Sliding, Windows: []policy.Window{{Max: 5, PerMS: 1}}})
		for i := range 700 {
			s.takeWithID(t, set, "", int64(1+i%5), fmt.Sprint("account ", i))
		}
		s.takeWithID(t, set, "", 4, "account 4")
		must.Succeed(t, s.Usage.Publish(t.Context()))
		got := s.highestUses(t, limits.New(s.client), set, 1000)
		if len(got) != 256 || got[0] != "per-account "+set[0].Subject(accountFacts("account 4")).Label+" 9/10" {
			t.Errorf("%d: %.200s", len(got), fmt.Sprint(got))
		}
		for _, line := range got[1:] {
			var label string
			var used, most int
			if _, err := fmt.Sscanf(line, "per-account %s %d/%d", &label, &used, &most); err != nil || used < 4 {
				t.Fatalf("%s, %v: it is not one of the highest", line, err)
			}
		}
		if n := s.client.ZCard(t.Context(), s.redisKey("h:"+limits.CandidateListKey(set[0]))).Val(); n > 512 {
			t.Errorf("%d are kept", n)
		}
	})
}

// TestUsageOfWhatIsNotKnown checks the usage of rules that Redis has lost. The usage of a rule that counts starts must be Unknown. The
// usage of a rule that counts takes must be 0.
func TestUsageOfWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		rules := append(compileRules(t, hourlyPolicy(3)), compileSet(t, hourlyPolicy(3))...)
		use := func() []limits.SubjectUse {
			var items []limits.Item
			for _, r := range rules {
				items = append(items, limits.Item{Rule: r, Subject: r.Subject(accountFacts("a"))})
			}
			u, err := s.Usage.ReadUses(t.Context(), s.scope, items)
			if err != nil || len(u) != 2 {
				t.Fatalf("usage: %v, %v", u, err)
			}
			return u
		}
		if u := use(); !u[0].Unknown || u[1].Unknown || u[1].Remaining != 3 || u[1].Reset != 0 {
			t.Errorf("before: %+v", u)
		}
		s.rebuild(t, rules[:1])
		s.tryStart(t, rules[:1], "a")
		s.take(t, rules[1:], "a")
		for _, u := range use() {
			if u.Unknown || u.Used != 1 || u.Remaining != 2 || u.Reset < 50*time.Minute || u.Reset > time.Hour || u.Refuses {
				t.Errorf("after one: %+v", u)
			}
		}
	})
}
