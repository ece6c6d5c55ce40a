package redisconn

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// openTime is the time for which no call is sent to a Redis node that did not answer.
const openTime = timeout

// ErrOpen means that the call was not sent, because Redis did not answer a moment ago.
var ErrOpen = errors.New("not sent: Redis did not answer the last request")

// breaker is the circuit breaker of one Redis node. Without it, each caller would wait for a node that never answers. After a call without an
// answer, the breaker opens, and all calls fail at once. After openTime, one call is sent as a probe. A probe is never resent.
type breaker struct {
	now     func() time.Time // used only for elapsed time
	outages *atomic.Int64    // counts how often a node that answered stopped working

	mu         sync.Mutex
	open       bool
	since      time.Time // when the breaker opened
	probing    bool      // a probing call is in progress
	lastFailed bool      // the latest answer was an error or did not come
}

// tryBeginCall reports whether a call may be sent. If mayCall is true, the caller must send it and then call endCall. isProbe is true if the
// call is the probe of a node that did not answer.
func (b *breaker) tryBeginCall() (isProbe, mayCall bool) {
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

// endCall records the outcome of a call. callErr is its error. An error is ignored if the context of the call has ended or all connections
// were in use, because it does not show that Redis failed.
func (b *breaker) endCall(ctx context.Context, isProbe bool, callErr error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if isProbe {
		b.probing = false
	}
	switch {
	case callErr == nil:
		b.open, b.lastFailed = false, false
		return
	case ctx.Err() != nil || errors.Is(callErr, redis.ErrPoolTimeout):
		return
	}
	b.recordFailure()
	b.open = IsUnanswered(callErr)
	b.since = b.now()
}

// recordLostSend records that a call got no answer and is sent again. This is a failure of the node even if the next sending is answered.
func (b *breaker) recordLostSend() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recordFailure()
}

// recordFailure counts an outage, unless the previous call to the node failed, too. The caller holds mu.
func (b *breaker) recordFailure() {
	if !b.lastFailed {
		b.lastFailed = true
		b.outages.Add(1)
	}
}

// Breakers has one breaker for each node, so that a node that does not answer does not block calls to other nodes.
type Breakers struct {
	client  redis.UniversalClient
	now     func() time.Time
	outages atomic.Int64

	mu     sync.Mutex
	byNode map[string]*breaker // key: the address of the node
}

// NewBreakers returns breakers for the nodes of client. now is used only for elapsed time.
func NewBreakers(client redis.UniversalClient, now func() time.Time) *Breakers {
	return &Breakers{client: client, now: now, byNode: make(map[string]*breaker)}
}

// Do calls send, which sends a command for key. While there is no answer, Do calls send again, at most maxSends times in total. If the node of
// key did not answer a moment ago, Do returns ErrOpen and does not call send.
func (b *Breakers) Do(ctx context.Context, key string, maxSends int, send func() error) (err error) {
	one := b.breakerFor(ctx, key)
	probe, ok := one.tryBeginCall()
	if !ok {
		return ErrOpen
	}
	err = ErrOpen // the error for endCall if send panics
	defer func() { one.endCall(ctx, probe, err) }()
	err = send()
	for n := 1; n < maxSends && !probe && ctx.Err() == nil && IsUnanswered(err) && !one.isOpen(); n++ {
		one.recordLostSend() // another node may answer the next sending, and may lack the latest writes
		err = send()
	}
	return err
}

func (b *Breakers) breakerFor(ctx context.Context, key string) *breaker {
	node := findNodeAddr(ctx, b.client, key)
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.byNode[node]
	if one == nil {
		one = &breaker{now: b.now, outages: &b.outages}
		b.byNode[node] = one
	}
	return one
}

// Outages returns how often a Redis node has stopped answering. If this number rises, Redis may have lost data or missed writes.
func (b *Breakers) Outages() int64 { return b.outages.Load() }
