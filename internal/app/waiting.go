package app

import (
	"context"
	"fmt"
	"maps"
	"time"
)

const (
	waitingShown = 10_000                 // maximum number of devices that are counted in one pool
	waitingShare = 500 * time.Millisecond // time for counting in one read, independent of the number of pools
	waitingPools = 20                     // number of pools that one statement counts
)

// waitingCounts counts the waiting devices of each pool, some pools in each read: a read continues
// after the last pool of the previous one. Only one read may run at a time.
type waitingCounts struct {
	pools    poolReader
	share    time.Duration
	last     string         // the last pool that was counted
	counting map[string]int // counts of the current round through all pools
	counted  map[string]int // counts of the previous round
}

// read counts until the time w.share has passed or the round ends. It returns the newest count of each
// pool that was counted.
func (w *waitingCounts) read(ctx context.Context) (map[string]int, error) {
	for begin := time.Now(); ; {
		round, err := w.step(ctx)
		if err != nil {
			return nil, err
		}
		if round || time.Since(begin) >= w.share {
			break
		}
	}
	newest := maps.Clone(w.counted)
	maps.Copy(newest, w.counting)
	return newest, nil
}

// step counts the next pools. round is true if they were the last pools of the round.
func (w *waitingCounts) step(ctx context.Context) (round bool, err error) {
	views, err := w.pools.PoolViews(ctx, w.last, waitingPools, waitingShown)
	if err != nil {
		return false, fmt.Errorf("counting who waits: %w", err)
	}
	for _, v := range views {
		w.last = v.Pool.Name
		w.counting[w.last] = v.Waiting
	}
	if len(views) < waitingPools {
		w.last, w.counting, w.counted = "", map[string]int{}, w.counting
		return true, nil
	}
	return false, nil
}
