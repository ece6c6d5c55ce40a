package slots_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/testservers"
	"github.com/fleetslots/dispatcher/slots"
)

// TestBreakerLetsOneTry: one call finds out that Redis does not answer, the others fail
// at once, and one of them tries again when its time has come.
func TestBreakerLetsOneTry(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := slots.NewBreaker(func() time.Time { return now })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	steps := []struct {
		name       string
		wait       time.Duration
		ctx        context.Context //nolint:containedctx // of the step
		err        error           // what the call comes to
		probe, ok  bool
		openBefore bool
		outages    int64 // afterwards
	}{
		{name: "a call that is answered", ok: true},
		{name: "an answer that is an error", ok: true, err: answeredError{}, outages: 1},
		{name: "the caller gave up", ok: true, ctx: ended, err: io.EOF, outages: 1},
		{name: "all connections in use", ok: true, err: redis.ErrPoolTimeout, outages: 1},
		{name: "answered again", ok: true, outages: 1},
		{name: "no answer", ok: true, err: io.EOF, outages: 2},
		{name: "at once", openBefore: true, outages: 2},
		{name: "too soon", wait: 499 * time.Millisecond, openBefore: true, outages: 2},
		{name: "the one that tries", wait: time.Millisecond, openBefore: true, probe: true, ok: true, err: io.EOF, outages: 2},
		{name: "too soon again", wait: 499 * time.Millisecond, openBefore: true, outages: 2},
		{name: "tries, and gives up", wait: time.Millisecond, ctx: ended, openBefore: true, probe: true, ok: true, err: io.EOF, outages: 2},
		{name: "the next tries", openBefore: true, probe: true, ok: true, outages: 2},
		{name: "all are let through", ok: true, outages: 2},
	}
	for _, s := range steps {
		now = now.Add(s.wait)
		if got := b.IsOpen(); got != s.openBefore {
			t.Fatalf("%s: open is %t", s.name, got)
		}
		probe, ok := b.Enter()
		if probe != s.probe || ok != s.ok {
			t.Fatalf("%s: tries %t, let through %t; want %t and %t", s.name, probe, ok, s.probe, s.ok)
		}
		if !ok {
			continue
		}
		if probe {
			if _, another := b.Enter(); another {
				t.Fatalf("%s: two at once", s.name)
			}
		}
		if s.ctx == nil {
			s.ctx = t.Context()
		}
		b.Leave(s.ctx, probe, s.err)
		if got := b.Outages(); got != s.outages {
			t.Fatalf("%s: %d outages, want %d", s.name, got, s.outages)
		}
	}
}

// TestBlackHoleCostsOneWait: a Redis that takes calls and never answers costs the callers
// one wait, not one each; and it is found again when it answers.
func TestBlackHoleCostsOneWait(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, testservers.Redis(t).Addr)
	var sent atomic.Int64
	proxy.OnRequest(func(b []byte) { sent.Add(int64(bytes.Count(bytes.ToLower(b), []byte("evalsha")))) })
	client := redis.NewUniversalClient(slots.Options(proxy.Addr))
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
		if _, _, err := s.Acquire(t.Context(), "pool", slots.Pace{}, requests(time.Minute, "a")); !errors.Is(err, slots.ErrUnavailable) {
			t.Fatalf("%v, want ErrUnavailable", err)
		}
	}
	// Without a breaker: 3 sendings of 500 ms for each call, 60 s.
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
		out, _, err := s.Acquire(t.Context(), "pool", slots.Pace{}, requests(time.Minute, "a"))
		return err == nil && (out[0].Status == slots.StatusAcquired || out[0].Status == slots.StatusHeld)
	})
}

// TestBreakerIsOfANode: the pools of a Cluster are on different nodes.
func TestBreakerIsOfANode(t *testing.T) {
	t.Parallel()
	opts := slots.Options(testservers.FreeAddr(t))
	for cluster, same := range map[bool]bool{false: true, true: false} {
		opts.IsClusterMode = cluster
		client := redis.NewUniversalClient(opts)
		t.Cleanup(func() { _ = client.Close() })
		s := slots.New(client)
		if got := s.SharesBreaker("a", "b"); got != same {
			t.Errorf("cluster %t: one breaker for two pools is %t", cluster, got)
		}
	}
}

// answeredError is an error that Redis itself sent.
type answeredError struct{}

func (answeredError) Error() string { return "LOADING" }

// RedisError marks it.
func (answeredError) RedisError() {}
