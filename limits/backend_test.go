package limits_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/testservers"
	"github.com/fleetslots/dispatcher/limits"
)

// on runs a test on each kind of Redis.
func on(t *testing.T, test func(t *testing.T, s *server)) {
	t.Helper()
	for name, start := range map[string]func(t *testing.T) *server{
		"redis":   func(t *testing.T) *server { t.Helper(); return serve(t, testservers.Redis(t).Addr, false) },
		"cluster": func(t *testing.T) *server { t.Helper(); return serve(t, testservers.RedisCluster(t).Addr, true) },
		"miniredis": func(t *testing.T) *server {
			t.Helper()
			return serve(t, miniredis.RunT(t).Addr(), false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t))
		})
	}
}

// server is a Redis and a limiter in it.
type server struct {
	*limits.Limiter

	client redis.UniversalClient
	leases *atomic.Int64
}

func serve(tb testing.TB, addr string, cluster bool) *server {
	tb.Helper()
	s := connect(addr, cluster)
	tb.Cleanup(func() { _ = s.client.Close() })
	return s
}

func connect(addr string, cluster bool) *server {
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: []string{addr}, IsClusterMode: cluster, Protocol: 2, DisableIdentity: true, MaxRetries: -1,
		DialTimeout: 20 * time.Second, ReadTimeout: 20 * time.Second, WriteTimeout: 20 * time.Second,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 20 * time.Second}).DialContext(ctx, network, addr)
		},
	})
	return &server{Limiter: limits.New(client), client: client, leases: new(atomic.Int64)}
}

const scope = "pool"

// rules compiles policies and makes them known, with nothing counted.
func (s *server) rules(tb testing.TB, policies ...limits.Policy) []*limits.Rule {
	tb.Helper()
	rules, err := limits.Compile("p", policies)
	if err != nil {
		tb.Fatal(err)
	}
	s.know(tb, rules)
	return rules
}

func (s *server) know(tb testing.TB, rules []*limits.Rule, past ...limits.Start) {
	tb.Helper()
	if err := s.Rebuild(tb.Context(), scope, rules, history(past...)); err != nil {
		tb.Fatalf("rebuild: %v", err)
	}
}

// history has the same starts at each reading.
func history(starts ...limits.Start) limits.History {
	return func(_ context.Context, within time.Duration) iter.Seq2[limits.Start, error] {
		return func(yield func(limits.Start, error) bool) {
			for _, start := range starts {
				if start.Ago < within && !yield(start, nil) {
					return
				}
			}
		}
	}
}

// check is one of a start of an account, under a lease of its own.
func (s *server) check(rules []*limits.Rule, account string) limits.Check {
	n := s.leases.Add(1)
	group := "g" + strconv.FormatInt(n, 10)
	return limits.NewCheck(fmt.Sprintf("%d.1.%s", n, group), group, rules, facts(account))
}

func facts(account string) limits.Facts {
	return limits.Facts{
		Device: "d1", Pool: scope, Kind: "test", Batch: 7, Tags: map[string]string{"account": account},
		Payload: json.RawMessage(`{"server": "` + account + `"}`),
	}
}

func (s *server) reserve(tb testing.TB, c limits.Check) limits.Answer {
	tb.Helper()
	answers, err := s.Reserve(tb.Context(), scope, []limits.Check{c})
	if err != nil || len(answers) != 1 {
		tb.Fatalf("reserve: %v, %v", answers, err)
	}
	return answers[0]
}

func (s *server) mustReserve(tb testing.TB, c limits.Check) {
	tb.Helper()
	if a := s.reserve(tb, c); a.Status != limits.StatusPassed {
		tb.Fatalf("%s may not start: %+v", c.Lease, a)
	}
}

func (s *server) count(tb testing.TB, c limits.Check) {
	tb.Helper()
	if err := s.Count(tb.Context(), scope, []limits.Check{c}, 0); err != nil {
		tb.Fatalf("count: %v", err)
	}
}

func (s *server) release(tb testing.TB, c limits.Check) {
	tb.Helper()
	if err := s.Release(tb.Context(), scope, []limits.Check{c}); err != nil {
		tb.Fatalf("release: %v", err)
	}
}

// start starts one of an account, and says whether it may.
func (s *server) start(tb testing.TB, rules []*limits.Rule, account string) bool {
	tb.Helper()
	c := s.check(rules, account)
	if s.reserve(tb, c).Status != limits.StatusPassed {
		return false
	}
	s.count(tb, c)
	return true
}

// keys are all that Redis has.
func (s *server) keys(tb testing.TB) []string {
	tb.Helper()
	keys, err := s.client.Keys(tb.Context(), "limits:*").Result()
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

func perAccount(windows ...limits.Window) limits.Policy {
	return limits.Policy{Name: "per-account", Per: "tags.account", Algorithm: limits.Sliding, Windows: windows}
}
