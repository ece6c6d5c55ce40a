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

// maxConcurrentChecks is the maximum number of devices or pools whose policies are checked concurrently.
const maxConcurrentChecks = 32

// LimitedTasks checks the tasks that the devices of views have in the pool. It returns, by task id, the obstacle of each task that its policies
// refuse now. It leaves out a task whose policies cannot be checked, because the next report checks them again.
func (k *Checker) LimitedTasks(ctx context.Context, pool string, views []store.DeviceView) (obstaclesByTask map[int64]decision.Obstacle) {
	obstaclesByTask = make(map[int64]decision.Obstacle)
	var mu sync.Mutex
	var group rescue.Group
	group.SetLimit(maxConcurrentChecks)
	for _, v := range views {
		open := slices.DeleteFunc(slices.Clone(v.Candidates), func(c store.Candidate) bool { return c.Pool != pool || !taskHasPolicies(c) })
		if len(open) == 0 || v.Device == nil {
			continue
		}
		group.Go(func() error {
			lease := func(c store.Candidate) string { return fmt.Sprintf("%d.offer", c.Task) }
			found := k.checkTasks(ctx, v, open, lease, "offer "+v.Device.ID, k.checkAll)
			mu.Lock()
			defer mu.Unlock()
			for task, j := range found {
				if j.obstacle != nil && j.obstacle.Code == decision.CodeLimited {
					obstaclesByTask[task] = *j.obstacle
				}
			}
			return nil
		})
	}
	_ = k.config.Panicked.Report("checking limits", group.Wait()) // only a panic can be an error here
	return obstaclesByTask
}

// HasPolicies reports whether the latest call of SettleAllReservations found policies of the pool, of one of its batches, or of the profile of a
// device that holds one of its slots.
func (k *Checker) HasPolicies(pool string) bool {
	pools := k.poolsWithPolicies.Load()
	return pools != nil && (*pools)[pool]
}
