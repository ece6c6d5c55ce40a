package slots

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Pool is a pool without a queue of waiting devices. Its user takes a free slot at once or is refused.
type Pool struct {
	semaphore *Semaphore
	name      string
}

// Open makes Redis know a pool with this capacity and no held slots. If Redis knows the pool already, it
// keeps its capacity and its holders; Semaphore.Configure changes the capacity. If Redis loses the pool,
// Acquire returns ErrUnknownPool and Release returns false until the pool is opened again, or is restored
// with the holders that the caller knows (Semaphore.Restore).
func Open(ctx context.Context, client redis.UniversalClient, name string, capacity int) (*Pool, error) {
	p := &Pool{New(client), name}
	_, err := p.semaphore.Restore(ctx, name, Config{Capacity: capacity}, nil)
	return p, err
}

// Acquire takes the lowest free slot under a lease. acquired is false if no slot is free. If the lease already holds a slot, Acquire
// returns this slot again. ttl is only displayed (Snapshot): the slot is held until Release.
func (p *Pool) Acquire(ctx context.Context, lease string, ttl time.Duration) (slot int, acquired bool, err error) {
	request := Request{Device: lease, Wants: []Want{{Lease: lease, TTL: ttl}}}
	result := p.semaphore.Serve(ctx, []Call{{Pool: p.name, Exchange: Exchange{Requests: []Request{request}}}})[0]
	if result.Err != nil {
		return 0, false, result.Err
	}
	got := result.Acquisitions[0]
	if got.Status == StatusUnknown {
		return 0, false, fmt.Errorf("acquiring a slot of pool %s: %w", p.name, ErrUnknownPool)
	}
	return got.Slot, got.Status == StatusAcquired, nil
}

// Release frees the slot of a lease. freed is false if the lease held no slot or if Redis does not know the pool. freed is also false if
// the call was sent twice and the first sending freed the slot.
func (p *Pool) Release(ctx context.Context, lease string) (freed bool, err error) {
	result := p.semaphore.Serve(ctx, []Call{{Pool: p.name, Exchange: Exchange{Leases: []string{lease}}}})[0]
	if result.Err != nil {
		return false, result.Err
	}
	return result.Freed[0], nil
}
