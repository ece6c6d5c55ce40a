package api

import (
	"context"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// AllPools is a request that changes a page of all pools, by name.
type AllPools struct {
	Page
	DryRun bool `query:"dry_run" doc:"Count only: nothing is changed"`
}

func (p *poolOperations) pauseAll(ctx context.Context, in *struct {
	AllPools
	Body *operators.PauseAll
},
) (operators.PoolsChanged, error) {
	var body operators.PauseAll
	if in.Body != nil {
		body = *in.Body
	}
	return p.changePageOfPools(ctx, in.AllPools, store.PoolsPause{Reason: body.Reason, StopRunning: body.StopRunning})
}

// resumeAll resumes the pools of one page that the operator of the request paused.
func (p *poolOperations) resumeAll(ctx context.Context, in *AllPools) (operators.PoolsChanged, error) {
	return p.changePageOfPools(ctx, *in, store.PoolsPause{End: true})
}

// changePageOfPools applies change to those pools of a page that need it. The pass `follow` writes the changes to Redis.
func (p *poolOperations) changePageOfPools(ctx context.Context, in AllPools, change store.PoolsPause) (changed operators.PoolsChanged, err error) {
	found, err := p.ledger.PoolOverviews(ctx, in.after, in.Size, 0)
	if err != nil {
		return changed, err
	}
	for _, o := range found {
		needsChange := o.Pool.Paused == change.End && (!change.End || o.Pool.PausedBy == operatorName(ctx))
		if needsChange {
			changed.Pools++
		}
		if change.StopRunning {
			changed.Stopping += o.Held
		}
		if needsChange || change.StopRunning && o.Held > 0 {
			change.Pools = append(change.Pools, o.Pool.Name)
		}
	}
	if !in.DryRun && len(change.Pools) > 0 {
		if changed.Pools, changed.Stopping, err = p.ledger.PausePools(ctx, operatorName(ctx), change); err != nil {
			return operators.PoolsChanged{}, err
		}
	}
	if in.isFull(len(found)) {
		changed.NextPageToken = pageToken(found[len(found)-1].Pool.Name)
	}
	return changed, nil
}
