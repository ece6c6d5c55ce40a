package app

import (
	"context"
	"fmt"
	"maps"
	"time"
)

const (
	maxWaitingCounted = 10_000                 // maximum number of devices that are counted in one pool
	waitingReadTime   = 500 * time.Millisecond // time for counting in one read, independent of the number of pools
	poolsPerQuery     = 20                     // number of pools that one statement counts
)

// waitingCounts counts the waiting devices of each pool. Each read counts the devices of some pools, and the next read
// continues with the following pools. Only one read may run at a time.
type waitingCounts struct {
	pools    poolReader
	readTime time.Duration
	last     string         // the last pool that was counted
	current  map[string]int // counts of the current round through all pools
	previous map[string]int // counts of the previous round
}

// readCounts counts until w.readTime has passed or the round (one count of every pool) is complete. It returns the newest
// count of each pool.
func (w *waitingCounts) readCounts(ctx context.Context) (countByPool map[string]int, err error) {
	for begin := time.Now(); ; {
		roundDone, err := w.countNextPools(ctx)
		if err != nil {
			return nil, err
		}
		if roundDone || time.Since(begin) >= w.readTime {
			break
		}
	}
	newest := maps.Clone(w.previous)
	maps.Copy(newest, w.current)
	return newest, nil
}

// countNextPools counts the waiting devices of the next pools. roundDone is true after the last pools of the round.
func (w *waitingCounts) countNextPools(ctx context.Context) (roundDone bool, err error) {
	views, err := w.pools.PoolOverviews(ctx, w.last, poolsPerQuery, maxWaitingCounted)
	if err != nil {
		return false, fmt.Errorf("counting waiters: %w", err)
	}
	for _, v := range views {
		w.last = v.Pool.Name
		w.current[w.last] = v.Waiting
	}
	if len(views) < poolsPerQuery {
		w.last, w.current, w.previous = "", map[string]int{}, w.current
		return true, nil
	}
	return false, nil
}
