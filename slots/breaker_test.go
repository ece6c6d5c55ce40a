package slots_test

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
)

// TestBlackHoleCostsOneWait checks a Redis that accepts calls and never answers. All callers together must wait
// only once, not once for each call. As soon as Redis answers again, calls succeed.
func TestBlackHoleCostsOneWait(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, servers.StartRedis(t).Addr)
	var sent atomic.Int64
	proxy.OnRequest(func(b []byte) { sent.Add(int64(bytes.Count(bytes.ToLower(b), []byte("evalsha")))) })
	client := redis.NewUniversalClient(redisconn.Options(proxy.Addr))
	t.Cleanup(func() { _ = client.Close() })
	s := slots.New(client)
	eventually(t, "a pool", func() bool {
		_, err := s.Restore(t.Context(), "pool", slots.Config{Capacity: 100, Version: 1}, nil)
		return err == nil
	})
	before := s.Outages()
	proxy.HoldReplies()
	sent.Store(0)
	const calls = 40
	begin := time.Now()
	for range calls {
		if _, _, err := s.Acquire(t.Context(), "pool", slots.Pace{}, newRequests(time.Minute, "a")); !errors.Is(err, slots.ErrUnavailable) {
			t.Fatalf("%v, want ErrUnavailable", err)
		}
	}
	// Without a breaker, each call would be sent 3 times and would wait 500 ms each time: 60 s in total.
	took := time.Since(begin)
	if most := 3 + int64(took/(500*time.Millisecond)); sent.Load() > most || took > 30*time.Second {
		t.Errorf("%d calls took %s and were sent %d times, want at most %d", calls, took, sent.Load(), most)
	}
	t.Logf("%d calls took %s, sent %d times", calls, took, sent.Load())
	if got := s.Outages(); got != before+1 {
		t.Errorf("%d outages, want one more than %d", got, before)
	}
	proxy.ReleaseReplies()
	eventually(t, "an answer", func() bool {
		out, _, err := s.Acquire(t.Context(), "pool", slots.Pace{}, newRequests(time.Minute, "a"))
		return err == nil && (out[0].Status == slots.StatusAcquired)
	})
}
