package baseline

import (
	"context"
	_ "embed" // the scripts
	"fmt"

	"github.com/redis/go-redis/v9"
)

//go:embed acquire.lua
var acquireScript string

//go:embed release.lua
var releaseScript string

// semaphore is a plain counter in Redis that limits the number of used slots.
type semaphore struct {
	redis            redis.Scripter
	acquire, release *redis.Script
	key              string
}

func newSemaphore(client redis.Scripter, pool string) *semaphore {
	return &semaphore{
		redis: client, key: "hope:" + pool,
		acquire: redis.NewScript(acquireScript), release: redis.NewScript(releaseScript),
	}
}

// acquireSlot takes a slot by incrementing the counter. It returns false if all slots are taken.
func (s *semaphore) acquireSlot(ctx context.Context, capacity int) (isAcquired bool, err error) {
	taken, err := s.acquire.Run(ctx, s.redis, []string{s.key}, capacity).Int()
	if err != nil {
		return false, fmt.Errorf("acquire: %w", err)
	}
	return taken == 1, nil
}

func (s *semaphore) releaseSlot(ctx context.Context) error {
	if err := s.release.Run(ctx, s.redis, []string{s.key}).Err(); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}
