package servers_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func TestProxyCutAndHeal(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, servers.StartRedis(t).Addr)
	c := newClient(t, proxy.Addr)
	must.Succeed(t, c.Ping(t.Context()).Err())
	proxy.Cut()
	for range 2 { // the open connection, then a new one
		if err := c.Ping(t.Context()).Err(); err == nil {
			t.Fatal("an answer through a cut proxy")
		}
	}
	proxy.EndCut()
	must.Succeed(t, c.Ping(t.Context()).Err())
}

func TestProxyDropsRepliesOfExecutedCommands(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, servers.StartRedis(t).Addr)
	proxy.OnRequest(func(b []byte) {
		if bytes.Contains(bytes.ToUpper(b), []byte("INCR")) && proxy.Dropped() == 0 {
			proxy.DropReplies(1)
		}
	})
	c := newClient(t, proxy.Addr)
	if err := c.Incr(t.Context(), "n").Err(); err == nil {
		t.Fatal("the reply was not dropped")
	}
	if got, err := c.Incr(t.Context(), "n").Result(); got != 2 || err != nil {
		t.Fatalf("second increment: %d, %v; want 2: the first was executed", got, err)
	}
	if got := proxy.Dropped(); got != 1 {
		t.Fatalf("%d replies dropped, want 1", got)
	}
}

func TestProxyPointsElsewhere(t *testing.T) {
	t.Parallel()
	one, two := servers.StartRedis(t), servers.StartRedis(t)
	proxy := servers.NewProxy(t, one.Addr)
	c := newClient(t, proxy.Addr)
	must.Succeed(t, c.Set(t.Context(), "k", "one", 0).Err())
	proxy.PointTo(two.Addr)
	_ = c.Ping(t.Context()).Err() // may find that the old connection is closed
	if err := c.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
		t.Fatalf("at the second server: %v, want redis.Nil", err)
	}
	proxy.PointTo(one.Addr)
	_ = c.Ping(t.Context()).Err()
	if got, err := c.Get(t.Context(), "k").Result(); got != "one" || err != nil {
		t.Fatalf("back at the first: %q, %v", got, err)
	}
}

func TestProxyHoldsReplies(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, servers.StartRedis(t).Addr)
	c := newClient(t, proxy.Addr)
	must.Succeed(t, c.Ping(t.Context()).Err())
	proxy.HoldReplies()
	if err := c.Ping(withTimeout(t, 100*time.Millisecond)).Err(); err == nil {
		t.Fatal("a reply came while they were held")
	}
	answered := make(chan error, 1)
	go func() { answered <- newClient(t, proxy.Addr).Ping(t.Context()).Err() }()
	proxy.ReleaseReplies()
	must.Succeed(t, <-answered)
}

// TestProxyDelays checks a proxy with a delay: the server behind it answers late, and all data in flight arrives in
// order.
func TestProxyDelays(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, servers.StartRedis(t).Addr)
	proxy.Delay(40 * time.Millisecond)
	c := redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: time.Minute, MaxRetries: -1})
	t.Cleanup(func() { _ = c.Close() })
	must.Succeed(t, c.Ping(t.Context()).Err())
	began := time.Now()
	answer, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for range 100 {
			p.Incr(t.Context(), "n")
		}
		return nil
	})
	if took := time.Since(began); err != nil || took < 80*time.Millisecond {
		t.Fatalf("answered after %s (%v), want a round trip of 80 ms or more", took, err)
	}
	for i, a := range answer {
		if got, ok := a.(*redis.IntCmd); !ok || got.Val() != int64(i+1) {
			t.Fatalf("answer %d is %v", i+1, a)
		}
	}
}
