package limits_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// TestTakesSayWhatRemains checks the answers to takes (requests to a limit set). An answer must have the remaining number of each rule. The
// answer to a refused take must name the rule that refuses and the time until the cost is allowed. A refused take and a peek must count
// nothing.
func TestTakesSayWhatRemains(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		rules := compileSet(t,
			accountPolicy(policy.Window{Max: 3, PerMS: 60_000}, policy.Window{Max: 40, PerMS: 3_600_000}),
			policy.Policy{Name: "daily", Per: "facts.account", Algorithm: policy.Calendar, Period: policy.Month, Timezone: servers.NoonZone(), Max: 4},
			policy.Policy{Name: "same", Algorithm: policy.Duplicate, PerMS: 3_600_000, Max: 100},
		)
		takeSummary := func(a limits.TakeResult) string {
			text := fmt.Sprintf("%t %d", a.Allowed, a.RefusingItem())
			for _, i := range a.Items {
				text += fmt.Sprintf(", %d/%d left %d of window %d", i.Used, i.Max, i.Remaining, i.Window)
			}
			return text
		}
		peek := func(cost int64) limits.TakeResult {
			a, err := s.Takes.Peek(t.Context(), s.scope, []limits.Taking{limits.NewTaking("", cost, rules, accountFacts("a"))})
			must.Succeed(t, err)
			return a[0]
		}
		for i, step := range []struct {
			does func() limits.TakeResult
			want string
		}{
			{func() limits.TakeResult { return peek(2) }, "true -1, 0/3 left 3 of window 0, 0/4 left 4 of window 0, 0/100 left 100 of window 0"},
			{func() limits.TakeResult { return s.takeWithID(t, rules, "", 2, "a") }, "true -1, 2/3 left 1 of window 0, 2/4 left 2 of window 0, 2/100 left 98 of window 0"},
			{func() limits.TakeResult { return s.takeWithID(t, rules, "", 2, "a") }, "false 0, 2/3 left 1 of window 0, 2/4 left 2 of window 0, 2/100 left 98 of window 0"},
			{func() limits.TakeResult { return peek(3) }, "false 1, 2/3 left 1 of window 0, 2/4 left 2 of window 0, 2/100 left 98 of window 0"},
			{func() limits.TakeResult { return s.take(t, rules, "a") }, "true -1, 3/3 left 0 of window 0, 3/4 left 1 of window 0, 3/100 left 97 of window 0"},
			{func() limits.TakeResult { return s.take(t, rules, "b") }, "true -1, 1/3 left 2 of window 0, 1/4 left 3 of window 0, 1/100 left 99 of window 0"},
		} {
			if a := step.does(); takeSummary(a) != step.want {
				t.Errorf("step %d: %s, want %s", i, takeSummary(a), step.want)
			}
		}
		if a := peek(1); a.Wait <= 30*time.Second || a.Wait > time.Minute || a.Items[0].Reset != a.Wait || a.Items[1].Wait != 0 {
			t.Errorf("refused: %+v", a)
		}
	})
}

// TestATakeUnderAnIDCountsOnce checks a take with an id that is sent several times. It must count once. If
// another cost or other facts are sent under the same id, this must be detected.
func TestATakeUnderAnIDCountsOnce(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		for name, rules := range map[string][]*limits.Rule{
			"one window": compileSet(t, hourlyPolicy(10)), "several": compileSet(t, hourlyPolicy(10), policy.Policy{Name: "f", Per: "facts.account", Algorithm: policy.Fixed, PerMS: 3_600_000, Max: 10}),
		} {
			s.scope += name
			for i := range 3 {
				if a := s.takeWithID(t, rules, "id", 2, "a"); !a.Allowed || a.Repeated != (i > 0) || a.Items[0].Used != 2 {
					t.Errorf("%s, sending %d: %+v", name, i, a)
				}
			}
			for cost, want := range map[int64]int64{3: 3, 2: 2} {
				if a := s.takeWithID(t, rules, "id", cost, "b"+fmt.Sprint(cost)); a.Repeated || a.Items[0].Used != want {
					t.Errorf("%s, with other facts: %+v", name, a)
				}
			}
			if a := s.takeWithID(t, rules, "id", 4, "a"); a.Repeated || a.Allowed || !a.OtherCost || a.Items[0].Used != 2 {
				t.Errorf("%s, with another cost: %+v", name, a)
			}
			if a := s.takeWithID(t, rules, "id", 2, "a"); !a.Repeated || a.Items[0].Used != 2 {
				t.Errorf("%s, again after another cost: %+v", name, a)
			}
			for range 2 {
				if a := s.takeWithID(t, rules, "refused", 9, "a"); a.Allowed || a.Repeated {
					t.Errorf("%s, refused: %+v", name, a)
				}
			}
		}
	})
}

// TestPartsOfATakeAreGivenBackInTotal checks several returns of one take, for rules of all kinds. The cost of a
// return is a total, so all returns together must give back the highest of their costs, and never more than the take counted.
func TestPartsOfATakeAreGivenBackInTotal(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		rules := compileSet(t,
			hourlyPolicy(10), namedHourlyPolicy("more", 200),
			policy.Policy{Name: "f", Per: "facts.account", Algorithm: policy.Fixed, PerMS: 3_600_000, Max: 10},
			policy.Policy{Name: "c", Per: "facts.account", Algorithm: policy.Calendar, Period: policy.Day, Timezone: servers.NoonZone(), Max: 10},
		)
		s.takeWithID(t, rules, "id", 5, "a")
		for _, step := range []struct{ cost, total int64 }{{1, 1}, {3, 3}, {3, 3}, {2, 3}, {9, 5}} {
			total, err := s.Takes.Return(t.Context(), s.scope, []limits.Taking{limits.NewTaking("id", step.cost, rules, accountFacts("a"))})
			if err != nil || total[0] != step.total {
				t.Errorf("return %d: %v in total, %v; want %d", step.cost, total, err, step.total)
			}
			left, err := s.Takes.Peek(t.Context(), s.scope, []limits.Taking{limits.NewTaking("", 1, rules, accountFacts("a"))})
			must.Succeed(t, err)
			for i, use := range left[0].Items {
				if use.Used != 5-step.total {
					t.Errorf("return %d: %d used of rule %s, want %d", step.cost, use.Used, rules[i].Name, 5-step.total)
				}
			}
		}
	})
}

// TestTakersAtOnceNeverOverGrant checks concurrent takes of several processes, with and without ids. All of them together must never exceed
// the maximum.
func TestTakersAtOnceNeverOverGrant(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		takers := []*limits.Limiter{s.Limiter, limits.New(s.client)}
		for form, policies := range map[string][]policy.Policy{"one": {hourlyPolicy(50)}, "all": policyOfEachKind(3_600_000)[1:2], "several": {hourlyPolicy(20), namedHourlyPolicy("more", 40)}} {
			rules, most := compileSet(t, policies...), compileSet(t, policies...)[0].MaxCost()
			var got atomic.Int64
			var all sync.WaitGroup
			for i := range 16 {
				all.Go(func() {
					for n := range 20 {
						id, cost := "", int64(1+n%3)
						if n%2 == 0 {
							id = fmt.Sprintf("%d-%d", i/2, n) // two callers share each id
						}
						a, err := takers[i%2].Takes.Take(t.Context(), s.scope, []limits.Taking{limits.NewTaking(id, cost, rules, accountFacts(form))})
						if err != nil {
							t.Error(err)
						} else if a[0].Allowed && !a[0].Repeated {
							got.Add(cost)
						}
					}
				})
			}
			all.Wait()
			use := s.peekStanding(t, rules, form)
			if got.Load() != use.Used || got.Load() > most || got.Load() < most-2 {
				t.Errorf("%s: %d of %d were allowed, %d are counted", form, got.Load(), most, use.Used)
			}
		}
	})
}

// peekStanding returns how much of the first rule the account has used, without counting anything.
func (s *redisLimiter) peekStanding(tb testing.TB, rules []*limits.Rule, account string) limits.WindowUse {
	tb.Helper()
	a, err := s.Takes.Peek(tb.Context(), s.scope, []limits.Taking{limits.NewTaking("", 1, rules, accountFacts(account))})
	must.Succeed(tb, err)
	return a[0].Items[0]
}

func namedHourlyPolicy(name string, maxStarts int64) policy.Policy {
	p := hourlyPolicy(maxStarts)
	p.Name = name
	return p
}

// TestWhatIsNoTakingIsRefused checks that an invalid take is refused before anything is sent to Redis.
func TestWhatIsNoTakingIsRefused(t *testing.T) {
	t.Parallel()
	s, _ := newClockLimiter(t, arbitraryTime())
	for name, taking := range map[string]limits.Taking{
		"cost":  limits.NewTaking("", 0, compileSet(t, hourlyPolicy(3)), accountFacts("a")),
		"dear":  limits.NewTaking("", 4, compileSet(t, hourlyPolicy(3)), accountFacts("a")),
		"start": limits.NewTaking("", 1, compileRules(t, hourlyPolicy(3)), accountFacts("a")),
		"id":    {ID: string(make([]byte, 129)), Cost: 1},
	} {
		if _, err := s.Takes.Take(t.Context(), s.scope, []limits.Taking{taking}); !errors.Is(err, limits.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if keys := s.redisKeys(t); len(keys) > 0 {
		t.Errorf("left: %v", keys)
	}
}

// TestATakeOutlivesTheExpiryOfItsList takes without pause from a rule with a window of 1 ms. Redis 7.0 deletes a list that expires while a
// script runs. No take may fail because of this.
func TestATakeOutlivesTheExpiryOfItsList(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		rules := compileSet(t, accountPolicy(policy.Window{Max: 50, PerMS: 1}))
		for range 300 {
			takings := make([]limits.Taking, 20)
			for i := range takings {
				takings[i] = limits.NewTaking("", 2, rules, accountFacts("a"))
			}
			_, err := s.Takes.Take(t.Context(), s.scope, takings)
			must.Succeed(t, err)
		}
	})
}
