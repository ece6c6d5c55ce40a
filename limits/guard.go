package limits

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// silence is how long a Redis that did not answer is left alone.
const silence = 500 * time.Millisecond

// guard keeps callers from waiting, one after another, for a Redis that takes
// their calls and never answers. After one that got no answer all others fail at
// once, and one of them tries again when silence is over.
type guard struct {
	now func() time.Time // for elapsed time only

	mu      sync.Mutex
	shut    bool
	since   time.Time
	probing bool
}

// enter says whether a call may be sent, and whether it is the one that tries.
func (g *guard) enter() (probe, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shut {
		return false, true
	}
	if g.probing || g.now().Sub(g.since) < silence {
		return false, false
	}
	g.probing = true
	return true, true
}

// leave learns from what a call came to. A caller that gave up, and one that got no
// connection because all are in use, know nothing of Redis.
func (g *guard) leave(ctx context.Context, probe bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if probe {
		g.probing = false
	}
	if err != nil && (ctx.Err() != nil || errors.Is(err, redis.ErrPoolTimeout)) {
		return
	}
	g.shut, g.since = lost(err), g.now()
}

// guards has one for all scopes, or, of a Cluster, one for each: a node that is
// silent must not shut the scopes of the others.
type guards struct {
	now  func() time.Time
	each bool

	mu  sync.Mutex
	all map[string]*guard
}

func newGuards(client redis.UniversalClient, now func() time.Time) *guards {
	_, cluster := client.(*redis.ClusterClient)
	return &guards{now: now, each: cluster, all: make(map[string]*guard)}
}

func (g *guards) of(scope string) *guard {
	if !g.each {
		scope = ""
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[scope]
	if one == nil {
		one = &guard{now: g.now}
		g.all[scope] = one
	}
	return one
}
