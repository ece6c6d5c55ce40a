package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// looksAtOnce is at how many devices' policies is looked at the same time: the
// limiter sends them together.
const looksAtOnce = 32

// limitedAmong are the tasks of devices in a pool that policies let not start now.
// What cannot be said is left out: the device finds out with its report, which
// also finds out what is not known.
func (d *Dispatcher) limitedAmong(ctx context.Context, pool string, views []store.View) map[int64]decision.Obstacle {
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
			found := d.ask(ctx, v, open, lease, "offer "+v.Device.ID, d.lookAtLimits)
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
	_ = d.panicked.Tell("looking at limits", group.Wait()) // none fails otherwise
	return limited
}

// limitedPools are those with policies, as of the latest pass over the limits.
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

// notLimited are the seats whose devices could start something of the pool by its
// policies: who cannot would stand before those who can. A pool whose policies are
// new is found by the next pass; until then the offers are given back.
func (d *Dispatcher) notLimited(ctx context.Context, pool string, seats []slots.Seat) ([]slots.Seat, error) {
	if !d.limitedPools.has(pool) || len(seats) == 0 {
		return seats, nil
	}
	names := make([]string, len(seats))
	for i, seat := range seats {
		names[i] = seat.Device
	}
	views, err := d.store.Views(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("looking at devices for pool %s: %w", pool, err)
	}
	limited := d.limitedAmong(ctx, pool, views)
	var open []slots.Seat
	for i, seat := range seats {
		if useOf(views[i], pool, limited) != slots.WaiterLeft {
			open = append(open, seat)
		}
	}
	return open, nil
}
