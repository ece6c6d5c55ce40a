package servers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func newClient(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, DialerRetries: 1, PoolSize: 1, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func withTimeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestRedisComesBackEmptyOnTheSamePort(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t)
	c := newClient(t, server.Addr)
	must.Succeed(t, c.Set(t.Context(), "k", "v", 0).Err())
	server.Kill()
	if err := c.Get(t.Context(), "k").Err(); err == nil {
		t.Fatal("a killed server answered")
	}
	server.Start()
	if err := newClient(t, server.Addr).Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
		t.Fatalf("after a restart: %v, want redis.Nil", err)
	}
}

func TestRedisArgsTurnPersistenceOn(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t, "--appendonly", "yes")
	c := newClient(t, server.Addr)
	must.Succeed(t, c.Set(t.Context(), "k", "v", 0).Err())
	server.Stop()
	server.Start()
	if got, err := newClient(t, server.Addr).Get(t.Context(), "k").Result(); got != "v" || err != nil {
		t.Fatalf("after a restart: %q, %v", got, err)
	}
}

func TestRedisStartsWithAnOlderSnapshot(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t)
	c := newClient(t, server.Addr)
	set := func(value string) {
		t.Helper()
		must.Succeed(t, c.Set(t.Context(), "k", value, 0).Err())
	}
	set("old")
	snapshot := server.Snapshot(t)
	set("new")
	for _, start := range []struct {
		with []byte
		want string
	}{{snapshot, "old"}, {nil, ""}} {
		server.Kill()
		server.Restore(t, start.with)
		server.Start()
		if got := newClient(t, server.Addr).Get(t.Context(), "k").Val(); got != start.want {
			t.Fatalf("%q after a restart, want %q", got, start.want)
		}
	}
}

func TestRedisPauseAnswersNothingUntilResume(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t)
	c := newClient(t, server.Addr)
	must.Succeed(t, c.Ping(t.Context()).Err())
	server.Pause()
	if err := c.Ping(withTimeout(t, 100*time.Millisecond)).Err(); err == nil {
		t.Fatal("a paused server answered")
	}
	server.Resume()
	must.Succeed(t, c.Ping(t.Context()).Err())
}

func TestRedisClusterOwnsAllSlotsAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	server := servers.StartRedisCluster(t)
	server.Stop()
	server.Start()
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr}})
	defer func() { _ = c.Close() }()
	for _, key := range []string{"a", "b", "c", "{d}:e"} {
		if err := c.Set(t.Context(), key, "v", 0).Err(); err != nil {
			t.Fatalf("set %s: %v", key, err)
		}
	}
}
