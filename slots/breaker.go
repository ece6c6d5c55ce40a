package slots

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// openTime is how long a Redis that did not answer is left alone.
const openTime = timeout

// errOpen: Redis did not answer a moment ago, and was not asked again.
var errOpen = errors.New("it did not answer a moment ago")

// breaker keeps callers from waiting, one after another, for a Redis that takes
// their calls and never answers: a wait of each is what makes a replica deaf.
// After a call that got no answer all others fail at once; when openTime is
// over one of them tries, and is sent once only.
type breaker struct {
	now     func() time.Time // for elapsed time only
	outages *atomic.Int64    // counts how often an answering Redis stopped to be of use

	mu      sync.Mutex
	open    bool
	since   time.Time // open
	probing bool      // somebody tries
	ailing  bool      // the latest answer was an error, or did not come
}

// enter says whether the call may be sent, and whether it is the one that tries.
func (b *breaker) enter() (probe, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return false, true
	}
	if b.probing || b.now().Sub(b.since) < openTime {
		return false, false
	}
	b.probing = true
	return true, true
}

func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// leave learns from what a call came to. A caller that gave up, and one that
// got no connection because all were in use, know nothing of Redis.
func (b *breaker) leave(ctx context.Context, probe bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if probe {
		b.probing = false
	}
	switch {
	case err == nil:
		b.open, b.ailing = false, false
		return
	case ctx.Err() != nil || errors.Is(err, redis.ErrPoolTimeout):
		return
	}
	if !b.ailing {
		b.ailing = true
		b.outages.Add(1)
	}
	b.open = lost(err)
	b.since = b.now()
}

// breakers has one for all pools, or, of a Cluster, one for each: a node that
// is silent must not close the pools of the others.
type breakers struct {
	now     func() time.Time
	perPool bool
	outages atomic.Int64

	mu  sync.Mutex
	all map[string]*breaker
}

func newBreakers(client redis.UniversalClient) *breakers {
	_, cluster := client.(*redis.ClusterClient)
	return &breakers{
		now:     time.Now, //nolint:forbidigo // elapsed time, which no server can tell
		perPool: cluster, all: make(map[string]*breaker),
	}
}

func (b *breakers) of(pool string) *breaker {
	if !b.perPool {
		pool = ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.all[pool]
	if one == nil {
		one = &breaker{now: b.now, outages: &b.outages}
		b.all[pool] = one
	}
	return one
}

// Outages counts how often Redis, having answered, was found not to work. When
// it answers again after the count has risen, it may have forgotten or missed
// anything.
func (s *Semaphore) Outages() int64 { return s.breakers.outages.Load() }
