package limits_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// TestAllWindowsHold checks a rule with several windows. A start needs room in every window. A refusal must name the window that blocks the
// start longest, and the time until this window allows a start.
func TestAllWindowsHold(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		rules := s.newRules(t, accountPolicy(policy.Window{Max: 1, PerMS: 60_000}, policy.Window{Max: 2, PerMS: 3_600_000}))
		if !s.tryStart(t, rules, "a") {
			t.Fatal("the first is refused")
		}
		got := s.reserve(t, s.newCheck(rules, "a")).LongestRefusal()
		if got.Window != 0 || got.Wait <= 30*time.Second || got.Wait > time.Minute || got.Pending {
			t.Errorf("second at once: %+v", got)
		}
		if !s.tryStart(t, rules, "b") {
			t.Error("another account is refused")
		}
		// This start happened ten minutes ago, and is counted only now.
		s.countLate(t, s.newCheck(rules, "a"), 10*time.Minute)
		got = s.reserve(t, s.newCheck(rules, "a")).LongestRefusal()
		if got.Window != 1 || got.Wait <= 49*time.Minute || got.Wait > 50*time.Minute || got.Oldest < 10*time.Minute {
			t.Errorf("with two in the hour: %+v", got)
		}
	})
}

// TestRefusedStartCostsNothing checks a start that one rule allows and another rule refuses. The rule that allows it must not count it.
func TestRefusedStartCostsNothing(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		rules := s.newRules(t,
			policy.Policy{Name: "starts", Per: "pool", Algorithm: policy.Fixed, PerMS: 3_600_000, Max: 3},
			hourlyPolicy(1),
		)
		for i := range 5 {
			if got := s.tryStart(t, rules, "a"); got != (i == 0) {
				t.Errorf("start %d of a: %t", i, got)
			}
		}
		for i, account := range []string{"b", "c", "d"} {
			if got := s.tryStart(t, rules, account); got != (i < 2) {
				t.Errorf("start of %s: %t", account, got)
			}
		}
	})
}

// TestOneOfManyAtOncePasses checks many concurrent starts against a rule that has room for one start. Exactly one start must pass.
func TestOneOfManyAtOncePasses(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		rules := s.newRules(t, hourlyPolicy(1))
		replicas := []*limits.Limiter{s.Limiter, limits.New(s.client)}
		for round := range 20 {
			var passed atomic.Int64
			var all sync.WaitGroup
			for i := range 8 {
				c := s.newCheck(rules, fmt.Sprintf("account %d", round))
				all.Go(func() {
					a, err := replicas[i%2].Reservations.Reserve(t.Context(), s.scope, []limits.Check{c})
					if err != nil {
						t.Error(err)
					} else if a[0].Status == limits.StatusPassed {
						passed.Add(1)
					}
				})
			}
			all.Wait()
			if passed.Load() != 1 {
				t.Fatalf("%d passed", passed.Load())
			}
		}
	})
}

// TestTopAreWhoIsRefusedMost checks that MostRefused returns the subjects of each policy that were refused most often. Refusals that only
// open reservations cause must not be counted.
func TestTopAreWhoIsRefusedMost(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		rules := s.newRules(t, hourlyPolicy(1))
		for i := range 3 {
			for range 5 * (i + 1) {
				s.tryStart(t, rules, fmt.Sprintf("account %d", i))
			}
		}
		top, err := s.Refusals.MostRefused(t.Context(), s.scope, 2)
		want := []limits.RefusedSubject{{Policy: "per-account", Subject: "tags.account=account 2", RefusalCount: 14}, {Policy: "per-account", Subject: "tags.account=account 1", RefusalCount: 9}}
		if err != nil || !slices.Equal(top, want) {
			t.Errorf("top: %v, %v", top, err)
		}
		var rare []limits.Check
		for i := range 300 { // more labels than are kept
			account := fmt.Sprintf("rare %d", i)
			rare = append(rare, s.newCheck(rules, account), s.newCheck(rules, account))
		}
		for _, c := range rare {
			if s.reserve(t, c).Status == limits.StatusPassed {
				s.countStart(t, c)
			}
		}
		must.Succeed(t, s.Refusals.Publish(t.Context()))
		if top, err = limits.New(s.client).Refusals.MostRefused(t.Context(), s.scope, 2); err != nil || !slices.Equal(top, want) {
			t.Errorf("top of many, at another process: %v, %v", top, err)
		}
	})
}

// TestNothingPassesWithoutRedis checks that no start passes while Redis is not reachable, and that the second call
// fails without waiting.
func TestNothingPassesWithoutRedis(t *testing.T) {
	t.Parallel()
	s, mini := newClockLimiter(t, arbitraryTime())
	rules := s.newRules(t, accountPolicy(policy.Window{Max: 1, PerMS: 60_000}))
	mini.Close()
	for range 3 {
		if _, err := s.Reservations.Reserve(t.Context(), s.scope, []limits.Check{s.newCheck(rules, "a")}); !errors.Is(err, limits.ErrUnavailable) {
			t.Errorf("want ErrUnavailable, got %v", err)
		}
	}
}

// roundTripCounter counts the round trips of a Redis client.
type roundTripCounter struct{ count atomic.Int64 }

func (c *roundTripCounter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *roundTripCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count.Add(1)
		return next(ctx, cmd)
	}
}

func (c *roundTripCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.count.Add(1)
		return next(ctx, cmds)
	}
}

// TestOneRoundTripForAllPoliciesOfAPool checks a device that may start one of several tasks in one pool. All policies for all these tasks
// must be checked in one round trip, which is possible because all keys of a pool have one hash slot.
func TestOneRoundTripForAllPoliciesOfAPool(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisLimiter) {
		t.Helper()
		rules := s.newRules(t,
			accountPolicy(policy.Window{Max: 9, PerMS: 60_000}, policy.Window{Max: 50, PerMS: 3_600_000}),
			policy.Policy{Name: "daily", Per: "device", Algorithm: policy.Calendar, Period: "day", Timezone: "Asia/Shanghai", Max: 1000},
			policy.Policy{Name: "same", Algorithm: policy.Duplicate, Max: 20, PerMS: 60_000},
		)
		checks := []limits.Check{s.newCheck(rules, "a"), s.newCheck(rules, "b"), s.newCheck(rules, "c")}
		s.release(t, s.newCheck(rules, "warm")) // now the scripts are loaded and the connections are open
		s.reserve(t, s.newCheck(rules, "warm"))
		counted := &roundTripCounter{}
		s.client.AddHook(counted)
		answers, err := s.Reservations.Reserve(t.Context(), s.scope, checks)
		if err != nil || len(answers) != len(checks) {
			t.Fatalf("%v, %v", answers, err)
		}
		if made := counted.count.Load(); made != 1 {
			t.Errorf("%d round trips for %d checks of %d policies each", made, len(checks), len(rules))
		}
	})
}
