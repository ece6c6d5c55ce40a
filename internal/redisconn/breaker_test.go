package redisconn_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// TestBreakerLetsOneTry checks the breaker of a node that did not answer a call. Until openTime is over, all other
// calls must fail at once. After that, one call must be allowed to probe the node.
func TestBreakerLetsOneTry(t *testing.T) {
	t.Parallel()
	now := time.Now()
	all := redisconn.NewBreakers(redis.NewClient(&redis.Options{}), func() time.Time { return now })
	b := all.BreakerOf(t.Context(), "key")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	steps := []struct {
		name       string
		wait       time.Duration
		ctx        context.Context //nolint:containedctx // context of the call in this step
		err        error           // the result of the call
		probe, ok  bool
		openBefore bool
		outages    int64 // number of outages after the step
	}{
		{name: "a call that is answered", ok: true},
		{name: "an answer that is an error", ok: true, err: replyError{}, outages: 1},
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
		if got := all.Outages(); got != s.outages {
			t.Fatalf("%s: %d outages, want %d", s.name, got, s.outages)
		}
	}
}

// replyError is an error reply of Redis.
type replyError struct{}

func (replyError) Error() string { return "LOADING" }

// RedisError marks the error as a reply of Redis, as the Redis library requires.
func (replyError) RedisError() {}
