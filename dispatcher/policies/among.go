package policies

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// looksAtOnce is at how many devices' policies is looked at the same time: the
// limiter sends them together.
const looksAtOnce = 32

// Among are the tasks of devices in a pool that policies let not start now.
// A device of which nothing can be said is left out: its report finds out.
func (k *Checker) Among(ctx context.Context, pool string, views []store.View) map[int64]decision.Obstacle {
	limited := make(map[int64]decision.Obstacle)
	var mu sync.Mutex
	var group rescue.Group
	group.SetLimit(looksAtOnce)
	for _, v := range views {
		open := slices.DeleteFunc(slices.Clone(v.Candidates), func(c store.Candidate) bool { return c.Pool != pool || !isLimited(c) })
		if len(open) == 0 || v.Device == nil {
			continue
		}
		group.Go(func() error {
			lease := func(c store.Candidate) string { return fmt.Sprintf("%d.offer", c.Task) }
			found := k.ask(ctx, v, open, lease, "offer "+v.Device.ID, k.lookAt)
			mu.Lock()
			defer mu.Unlock()
			for task, j := range found {
				if j.obstacle != nil && j.obstacle.Code == decision.CodeLimited {
					limited[task] = *j.obstacle
				}
			}
			return nil
		})
	}
	_ = k.config.Panicked.Tell("looking at limits", group.Wait()) // none fails otherwise
	return limited
}

// limitedPools are those with policies, as of the latest pass.
type limitedPools struct {
	mu  sync.Mutex
	all map[string]bool
}

func (l *limitedPools) set(pools map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = maps.Clone(pools)
}

func (l *limitedPools) has(pool string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[pool]
}

// Any says whether a pool, or what starts in it, has policies, as of the latest pass.
func (k *Checker) Any(pool string) bool { return k.limited.has(pool) }
