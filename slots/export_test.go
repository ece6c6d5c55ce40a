package slots

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// RestoreChunk sends one chunk of a restore of a pool. With it, tests can mix the chunks of several restores.
func RestoreChunk(ctx context.Context, client redis.UniversalClient, pool, call string, c Config, offset int, last bool, holders []LedgerGrant) (int, error) {
	s := New(client)
	return s.runScript(ctx, s.scripts.restore, pool, restoreArgs{
		configureArgs: configureArgs{Call: call, Capacity: c.Capacity, Version: c.Version},
		Offset:        offset, Last: last, Holders: newHolderArgs(holders),
	}).Int()
}

// Keys returns the ten Redis keys of a pool.
func Keys(pool string) []string { return poolKeys(pool) }

// NewOnClock returns a semaphore whose scripts read the time of a pool from the key ClockKey(pool). If this key
// does not exist, they use the time of Redis.
func NewOnClock(client redis.UniversalClient) *Semaphore {
	const readRedisTime, readTestClock = "local t = redis.call('TIME')", `local ms = tonumber(redis.call('GET', KEYS[1] .. ':now') or nil)
  local t = ms and { math.floor(ms / 1000), ms % 1000 * 1000 } or redis.call('TIME')`
	s := New(client)
	s.scripts = newScriptsWithCore(strings.Replace(coreLua, readRedisTime, readTestClock, 1))
	return s
}

// ClockKey returns the Redis key from which the scripts of NewOnClock read the time of the pool, in ms.
func ClockKey(pool string) string { return poolKeys(pool)[0] + ":now" }

// ServeOne calls Serve with the exchange (requests and leases to free) of one pool.
func (s *Semaphore) ServeOne(ctx context.Context, pool string, pace Pace, exchange Exchange) (ExchangeResult, error) {
	out := s.Serve(ctx, []Call{{Pool: pool, Pace: pace, Exchange: exchange}})[0]
	return out, out.Err
}

// Acquire calls ServeOne with requests for slots only.
func (s *Semaphore) Acquire(ctx context.Context, pool string, pace Pace, reqs []Request) ([]Acquisition, []Offer, error) {
	out, err := s.ServeOne(ctx, pool, pace, Exchange{Requests: reqs})
	return out.Acquisitions, out.Offers, err
}

// Release calls ServeOne with leases to free only.
func (s *Semaphore) Release(ctx context.Context, pool string, pace Pace, leases []string) (freed []bool, offers []Offer, err error) {
	out, err := s.ServeOne(ctx, pool, pace, Exchange{Leases: leases})
	return out.Freed, out.Offers, err
}
