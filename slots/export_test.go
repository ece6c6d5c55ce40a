package slots

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// RestoreScript lets tests interleave the chunks of several restores.
func RestoreScript() *redis.Script { return newScripts().restore }

// Keys of a pool.
func Keys(pool string) []string { return keys(pool) }

// Breaker is the breaker on a clock of the test.
type Breaker struct{ b breaker }

// NewBreaker returns one that is closed.
func NewBreaker(now func() time.Time) *Breaker {
	return &Breaker{breaker{now: now, outages: &atomic.Int64{}}}
}

// Enter asks to call.
func (b *Breaker) Enter() (probe, ok bool) { return b.b.enter() }

// Leave tells what the call came to.
func (b *Breaker) Leave(ctx context.Context, probe bool, err error) { b.b.leave(ctx, probe, err) }

// IsOpen says whether calls fail at once.
func (b *Breaker) IsOpen() bool { return b.b.isOpen() }

// Outages counts.
func (b *Breaker) Outages() int64 { return b.b.outages.Load() }

// SharesBreaker says whether two pools are closed together.
func (s *Semaphore) SharesBreaker(a, b string) bool { return s.breakers.of(a) == s.breakers.of(b) }

// NewPatient returns a semaphore that keeps a place up to a minute and counts
// only what was never counted, so that no busy machine makes a test late.
func NewPatient(client redis.UniversalClient) *Semaphore {
	s := New(client)
	patient := strings.NewReplacer("LONGEST = 2000", "LONGEST = 60000", "COUNT_MS = 10000", "COUNT_MS = 100000000")
	s.scripts = scriptsWith(patient.Replace(lineLua))
	return s
}
