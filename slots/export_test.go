package slots

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// RestoreChunk sends one chunk of a restore, so that tests can interleave the chunks of several
// restores.
func RestoreChunk(ctx context.Context, client redis.UniversalClient, pool, call string, c Config, offset int, last bool, holders []Holding) (int, error) {
	s := New(client)
	return s.run(ctx, s.scripts.restore, pool, restoreArgs{
		configureArgs: configureArgs{Call: call, Capacity: c.Capacity, Version: c.Version},
		Offset:        offset, Last: last, Holders: holdersOf(holders),
	}).Int()
}

// Keys returns the keys of a pool.
func Keys(pool string) []string { return keys(pool) }

// NewOnClock returns a semaphore whose scripts read the time from the key Clock of the pool.
// Without that key they use the time of Redis.
func NewOnClock(client redis.UniversalClient) *Semaphore {
	const read, told = "local t = redis.call('TIME')", `local ms = tonumber(redis.call('GET', KEYS[1] .. ':now') or nil)
  local t = ms and { math.floor(ms / 1000), ms % 1000 * 1000 } or redis.call('TIME')`
	s := New(client)
	s.scripts = scriptsOf(strings.Replace(coreLua, read, told, 1))
	return s
}

// Clock returns the key of the time for NewOnClock. Its value is in ms.
func Clock(pool string) string { return keys(pool)[0] + ":now" }

// ServeOne calls Serve for one pool.
func (s *Semaphore) ServeOne(ctx context.Context, pool string, pace Pace, of Exchange) (Served, error) {
	out := s.Serve(ctx, []Call{{Pool: pool, Pace: pace, Exchange: of}})[0]
	return out, out.Err
}

// Acquire calls ServeOne with requests only.
func (s *Semaphore) Acquire(ctx context.Context, pool string, pace Pace, reqs []Request) ([]Acquisition, []Offer, error) {
	out, err := s.ServeOne(ctx, pool, pace, Exchange{Requests: reqs})
	return out.Got, out.Offers, err
}

// Release calls ServeOne with leases only.
func (s *Semaphore) Release(ctx context.Context, pool string, pace Pace, leases []string) (freed []bool, offers []Offer, err error) {
	out, err := s.ServeOne(ctx, pool, pace, Exchange{Leases: leases})
	return out.Freed, out.Offers, err
}
