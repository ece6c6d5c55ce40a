package slots_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/slots"
)

// calling returns a call for each pool that asks for one slot.
func calling(pools ...string) []slots.Call {
	calls := make([]slots.Call, len(pools))
	for i, pool := range pools {
		calls[i] = slots.Call{Pool: pool, Exchange: slots.Exchange{Requests: requests(1e9, "lease")}}
	}
	return calls
}

// TestPoolsHaveTheirOwnOutcome checks that pools that are served in one round trip have independent
// outcomes.
func TestPoolsHaveTheirOwnOutcome(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *server) {
		t.Helper()
		known, spoiled, empty := s.poolOf(t, 1), t.Name()+".spoiled", t.Name()+".empty"
		s.restore(t, spoiled, slots.Config{Capacity: 1, Version: 1})
		s.restore(t, empty, slots.Config{Version: 1})
		if err := s.client.Set(t.Context(), slots.Keys(spoiled)[3], "text", 0).Err(); err != nil {
			t.Fatal(err)
		}
		got := s.Serve(t.Context(), calling(spoiled, known, "no{pool", t.Name()+".unknown", empty))
		diff(t, "known", got[1].Got, []slots.Acquisition{acquired(0)})
		diff(t, "unknown", got[3].Got, []slots.Acquisition{{}})
		diff(t, "without slots", got[4].Got[0].Status, slots.StatusFull)
		if err := got[0].Err; !errors.Is(err, slots.ErrUnavailable) || got[0].Got != nil {
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

// TestPoolsGoInOneRoundTrip checks that calls for several pools need one round trip; two if Redis
// has forgotten the script, and more if a call is large.
func TestPoolsGoInOneRoundTrip(t *testing.T) {
	t.Parallel()
	s, _ := own(t)
	pools := []string{"a", "b", "c"}
	for _, pool := range pools {
		s.restore(t, pool, slots.Config{Capacity: 1, Version: 1})
	}
	s.acquire(t, "a", "lease")
	trips := &roundTrips{}
	s.client.AddHook(trips)
	for _, c := range []struct {
		leases, want int
		forgotten    bool
	}{{leases: 1, want: 1}, {leases: 1, want: 2, forgotten: true}, {leases: 1200, want: 3}} {
		if c.forgotten {
			s.client.ScriptFlush(t.Context())
		}
		calls := calling(pools...)
		for i := range calls {
			calls[i].Leases = names("old", 0, c.leases)
		}
		trips.n = 0
		for i, got := range s.Serve(t.Context(), calls) {
			if got.Err != nil || len(got.Freed) != c.leases {
				t.Errorf("pool %d: %d leases, %v", i, len(got.Freed), got.Err)
			}
			diff(t, "got", got.Got, []slots.Acquisition{acquired(0)})
		}
		if trips.n != c.want {
			t.Errorf("%+v: %d round trips", c, trips.n)
		}
	}
}

// roundTrips counts the round trips of scripts.
type roundTrips struct{ n int }

func (r *roundTrips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *roundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.count(cmd)
		return next(ctx, cmd)
	}
}

func (r *roundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.count(cmds[0])
		return next(ctx, cmds)
	}
}

func (r *roundTrips) count(cmd redis.Cmder) {
	if strings.HasPrefix(cmd.Name(), "eval") {
		r.n++
	}
}
