package api

import (
	"context"
	"errors"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// AllPools is a request that changes a page of all pools, by name.
type AllPools struct {
	Page
	DryRun bool `query:"dry_run" doc:"Count only: nothing is changed"`
}

// pauseAll pauses those pools of a page that are not paused.
func (p *pools) pauseAll(ctx context.Context, in *struct {
	AllPools
	Body *operators.PauseReason
},
) (operators.PoolsChanged, error) {
	return p.changeAll(ctx, in.AllPools, reasonOf(in.Body), func(pool store.Pool) bool { return !pool.Paused }, func(spec *store.PoolSpec) { spec.Paused = true })
}

// resumeAll ends the pause of those pools of a page that the operator of the request paused.
func (p *pools) resumeAll(ctx context.Context, in *AllPools) (operators.PoolsChanged, error) {
	mine := func(pool store.Pool) bool { return pool.Paused && pool.PausedBy == actor(ctx) }
	return p.changeAll(ctx, *in, "", mine, func(spec *store.PoolSpec) { spec.Paused = false })
}

// changeAll calls change with the settings of those pools of a page for which needsChange is true, and stores the settings. Each pool is a
// change of its own: after an error, the pools before it stay changed.
func (p *pools) changeAll(ctx context.Context, in AllPools, reason string, needsChange func(store.Pool) bool, change func(*store.PoolSpec)) (changed operators.PoolsChanged, err error) {
	after, err := in.afterName()
	if err != nil {
		return changed, err
	}
	found, err := p.ledger.PoolOverviews(ctx, after, in.Size, 0)
	if err != nil {
		return changed, err
	}
	for _, overview := range found {
		if !needsChange(overview.Pool) {
			continue
		}
		if !in.DryRun {
			_, err = p.changePool(ctx, overview.Pool.Name, reason, func(spec *store.PoolSpec) error {
				change(spec)
				return nil
			})
		}
		if errors.Is(err, store.ErrNotFound) { // the pool was deleted just now
			continue
		}
		if err != nil {
			return changed, err
		}
		changed.Pools++
	}
	if in.isFull(len(found)) {
		changed.NextPageToken = pageToken(found[len(found)-1].Pool.Name)
	}
	return changed, nil
}
