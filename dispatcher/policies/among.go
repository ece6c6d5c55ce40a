package policies

import (
	"context"
	"fmt"
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

// Any reports whether the latest pass found policies of a pool, or of something that starts in it.
func (k *Checker) Any(pool string) bool {
	pools := k.limited.Load()
	return pools != nil && (*pools)[pool]
}
