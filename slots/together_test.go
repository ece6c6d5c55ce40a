package slots_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// acquireCalls returns one call for each pool. Each call asks for one slot.
func acquireCalls(pools ...string) []slots.Call {
	calls := make([]slots.Call, len(pools))
	for i, pool := range pools {
		calls[i] = slots.Call{Pool: pool, Exchange: slots.Exchange{Requests: newRequests(1e9, "lease")}}
	}
	return calls
}

// TestPoolsHaveTheirOwnOutcome checks calls for several pools that are served in one round trip. The failure of one pool must not affect
// the others.
func TestPoolsHaveTheirOwnOutcome(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		known, spoiled, empty := s.restorePool(t, 1), t.Name()+".spoiled", t.Name()+".empty"
		s.restore(t, spoiled, slots.Config{Capacity: 1, Version: 1})
		s.restore(t, empty, slots.Config{Version: 1})
		must.Succeed(t, s.client.Set(t.Context(), slots.Keys(spoiled)[3], "text", 0).Err())
		got := s.Serve(t.Context(), acquireCalls(spoiled, known, "no{pool", t.Name()+".unknown", empty))
		expectEqual(t, "known", got[1].Acquisitions, []slots.Acquisition{acquiredSlot(0)})
		expectEqual(t, "unknown", got[3].Acquisitions, []slots.Acquisition{{}})
		expectEqual(t, "without slots", got[4].Acquisitions[0].Status, slots.StatusFull)
		if err := got[0].Err; !errors.Is(err, slots.ErrUnavailable) || got[0].Acquisitions != nil {
			t.Errorf("spoiled: %+v", got[0])
		}
		if err := got[2].Err; !errors.Is(err, slots.ErrInvalid) {
			t.Errorf("no pool: %v", err)
		}
		for _, i := range []int{1, 3, 4} {
			if got[i].Err != nil {
				t.Error(i, got[i].Err)
			}
		}
	})
}

// TestPoolsGoInOneRoundTrip checks that calls for several pools together need one round trip to Redis. They may need two if Redis has lost
// the script, and more if a call is large.
func TestPoolsGoInOneRoundTrip(t *testing.T) {
	t.Parallel()
	s, _ := newStoppableRedis(t)
	pools := []string{"a", "b", "c"}
	for _, pool := range pools {
		s.restore(t, pool, slots.Config{Capacity: 1, Version: 1})
	}
	s.acquire(t, "a", "lease")
	trips := &roundTripCounter{}
	s.client.AddHook(trips)
	for _, c := range []struct {
		leases, want int
		forgotten    bool
	}{{leases: 1, want: 1}, {leases: 1, want: 2, forgotten: true}, {leases: 1200, want: 3}} {
		if c.forgotten {
			s.client.ScriptFlush(t.Context())
		}
		calls := acquireCalls(pools...)
		for i := range calls {
			calls[i].Leases = numberedNames("old", 0, c.leases)
		}
		trips.n = 0
		for i, got := range s.Serve(t.Context(), calls) {
			if got.Err != nil || len(got.Freed) != c.leases {
				t.Errorf("pool %d: %d leases, %v", i, len(got.Freed), got.Err)
			}
			expectEqual(t, "got", got.Acquisitions, []slots.Acquisition{acquiredSlot(0)})
		}
		if trips.n != c.want {
			t.Errorf("%+v: %d round trips", c, trips.n)
		}
	}
}

// roundTripCounter counts the round trips to Redis in which scripts are called.
type roundTripCounter struct{ n int }

func (r *roundTripCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *roundTripCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.count(cmd)
		return next(ctx, cmd)
	}
}

func (r *roundTripCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.count(cmds[0])
		return next(ctx, cmds)
	}
}

func (r *roundTripCounter) count(cmd redis.Cmder) {
	if strings.HasPrefix(cmd.Name(), "eval") {
		r.n++
	}
}
