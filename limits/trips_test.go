package limits_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/limits"
)

// trips counts the round trips of a client.
type trips struct{ made atomic.Int64 }

func (c *trips) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.made.Add(1)
		return next(ctx, cmd)
	}
}

func (c *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.made.Add(1)
		return next(ctx, cmds)
	}
}

// A pool has one hash slot: all policies of all the tasks that a device may start
// there are asked in one round trip.
func TestOneRoundTripForAllPoliciesOfAPool(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, s *server) {
		t.Helper()
		rules := s.rules(t,
			perAccount(limits.Window{Max: 9, PerMS: 60_000}, limits.Window{Max: 50, PerMS: 3_600_000}),
			limits.Policy{Name: "daily", Per: "device", Algorithm: limits.Calendar, Period: "day", Timezone: "Asia/Shanghai", Max: 1000},
			limits.Policy{Name: "same", Algorithm: limits.Duplicate, Max: 20, PerMS: 60_000},
		)
		checks := []limits.Check{s.check(rules, "a"), s.check(rules, "b"), s.check(rules, "c")}
		s.release(t, s.check(rules, "warm")) // scripts and connections are there
		s.reserve(t, s.check(rules, "warm"))
		counted := &trips{}
		s.client.AddHook(counted)
		answers, err := s.Reserve(t.Context(), s.scope, checks)
		if err != nil || len(answers) != len(checks) {
			t.Fatalf("%v, %v", answers, err)
		}
		if made := counted.made.Load(); made != 1 {
			t.Errorf("%d round trips for %d checks of %d policies each", made, len(checks), len(rules))
		}
	})
}
