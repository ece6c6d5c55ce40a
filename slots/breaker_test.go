package slots_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
)

// TestBlackHoleCostsOneWait checks a Redis that accepts calls and never answers. All callers together must wait
// only once, not once for each call. As soon as Redis answers again, calls succeed.
func TestBlackHoleCostsOneWait(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(ctx context.Context, s *slots.Semaphore) error{
		"a request": func(ctx context.Context, s *slots.Semaphore) error {
			_, _, err := s.Acquire(ctx, "pool", slots.Pace{}, newRequests(time.Minute, "a"))
			return err
		},
		"the offers of a device": func(ctx context.Context, s *slots.Semaphore) error {
			_, err := s.PoolsWithOffer(ctx, []string{"pool", "other"}, "a")
			return err
		},
		"the pools with waiters": func(ctx context.Context, s *slots.Semaphore) error {
			_, _, err := s.FindWaitingPools(ctx, []string{"pool", "other"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expectOneWait(t, call)
		})
	}
}

func expectOneWait(t *testing.T, call func(context.Context, *slots.Semaphore) error) {
	t.Helper()
	proxy := servers.NewProxy(t, servers.StartRedis(t).Addr)
	var sent atomic.Int64
	proxy.OnRequest(func(b []byte) { sent.Add(int64(min(bytes.Count(b, []byte("slots:{pool}:")), 1))) })
	client := redis.NewUniversalClient(redisconn.Options(proxy.Addr))
	t.Cleanup(func() { _ = client.Close() })
	s := slots.New(client)
	await.True(t, "a pool", func() bool {
		_, err := s.Restore(t.Context(), "pool", slots.Config{Capacity: 100, Version: 1}, nil)
		return err == nil
	})
	before := s.Outages()
	proxy.HoldReplies()
	sent.Store(0)
	const calls = 40
	begin := time.Now()
	for range calls {
		if err := call(t.Context(), s); !errors.Is(err, slots.ErrUnavailable) {
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
	await.True(t, "an answer", func() bool { return call(t.Context(), s) == nil })
}

// TestASilentNodeHidesOnlyItsPools checks a Cluster with one node that accepts calls and never answers. The pools of the other nodes must
// still be found.
func TestASilentNodeHidesOnlyItsPools(t *testing.T) {
	t.Parallel()
	cluster := servers.StartRedisNodes(t, false, "--cluster-require-full-coverage", "no")
	options, err := redisconn.ParseURL(cluster.Nodes[0].URL())
	must.Succeed(t, err)
	conn := redisconn.Open(options)
	t.Cleanup(func() { _ = conn.Close() })
	s := &redisSemaphore{Semaphore: slots.New(conn.Client)}
	pools := numberedNames("pool", 0, 12)
	var others []string // the pools of the other nodes
	for _, pool := range pools {
		s.restore(t, pool, slots.Config{Capacity: 1, Version: 1})
		s.requestAllWakeable(t, pool, 1, 2)
		s.releaseTask(t, pool, 1)
		if s.Node(t.Context(), pool) != s.Node(t.Context(), pools[0]) {
			others = append(others, pool)
		}
	}
	silent := cluster.Nodes[cluster.MasterIndex(slots.NodeKey(pools[0]))]
	silent.Pause()
	defer silent.Resume()
	waiting, due, err := s.FindWaitingPools(t.Context(), pools)
	if !errors.Is(err, slots.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	expectEqual(t, "pools with waiters", waiting, others)
	expectEqual(t, "pools that need offers", due, others)
	offered, err := s.PoolsWithOffer(t.Context(), others, "d2")
	if err != nil {
		t.Error(err)
	}
	expectEqual(t, "pools with an offer", offered, others)
}
