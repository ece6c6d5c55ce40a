package redisconn

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

// ErrOpen: Redis did not answer a moment ago, and was not asked again.
var ErrOpen = errors.New("it did not answer a moment ago")

// breaker keeps callers from waiting, one after another, for a Redis that takes
// their calls and never answers: a wait of each is what makes a replica deaf.
// After a call that got no answer all others fail at once; when half a second is
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

// enter says whether a call may be sent, and whether it is the one that tries.
// A caller that may send calls leave afterwards.
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

// isOpen is whether calls fail at once.
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
	b.ails()
	b.open = Lost(err)
	b.since = b.now()
}

// suspect notes that one sending of a call was lost, whatever becomes of the next.
func (b *breaker) suspect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ails()
}

func (b *breaker) ails() {
	if !b.ailing {
		b.ailing = true
		b.outages.Add(1)
	}
}

// Breakers has one for each node: one that is silent must not close the others.
type Breakers struct {
	client  redis.UniversalClient
	now     func() time.Time
	outages atomic.Int64

	mu  sync.Mutex
	all map[string]*breaker // by address
}

// NewBreakers are those of the nodes of a client; now tells elapsed time.
func NewBreakers(client redis.UniversalClient, now func() time.Time) *Breakers {
	return &Breakers{client: client, now: now, all: make(map[string]*breaker)}
}

// Do sends, unless the node that has a key did not answer a moment ago, and again what the
// network lost: so often at most in all, and while no other call finds out that the node
// does not answer.
func (b *Breakers) Do(ctx context.Context, key string, sends int, send func() error) (err error) {
	one := b.of(ctx, key)
	probe, ok := one.enter()
	if !ok {
		return ErrOpen
	}
	err = ErrOpen // should send panic
	defer func() { one.leave(ctx, probe, err) }()
	err = send()
	for n := 1; n < sends && !probe && ctx.Err() == nil && Lost(err) && !one.isOpen(); n++ {
		one.suspect() // another one may answer now, which lacks the latest
		err = send()
	}
	return err
}

// of is that of the node that has a key.
func (b *Breakers) of(ctx context.Context, key string) *breaker {
	node := nodeOf(ctx, b.client, key)
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.all[node]
	if one == nil {
		one = &breaker{now: b.now, outages: &b.outages}
		b.all[node] = one
	}
	return one
}

// Outages counts how often Redis, or a node of it, having answered, was found not to
// work. When it answers again after the count has risen, it may have forgotten
// or missed anything.
func (b *Breakers) Outages() int64 { return b.outages.Load() }
