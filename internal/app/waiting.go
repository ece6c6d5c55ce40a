package app

import (
	"context"
	"fmt"
	"maps"
	"time"
)

const (
	waitingShown = 10_000                 // devices are counted in a pool at most
	waitingShare = 500 * time.Millisecond // for which one reading counts, however many pools there are
	waitingPools = 20                     // in which one statement counts
)

// waitingCounts counts the devices that wait, in some pools after the others: each reading
// goes on behind the last one. One reading at a time uses it.
type waitingCounts struct {
	pools    poolReader
	share    time.Duration
	last     string         // the last pool in which it counted
	counting map[string]int // in this round through all pools
	counted  map[string]int // in the one before
}

// read returns the newest count of each pool in which it counted.
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

// step counts in the next pools. round: those were the last ones.
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
