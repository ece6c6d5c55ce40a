package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

func (p *poolOperations) patch(ctx context.Context, in *struct {
	PoolPath
	PoolMode
	Body operators.PoolPatch
},
) (changed operators.PoolChanged, err error) {
	if in.Body.Capacity.Present && in.Body.Capacity.Value == nil {
		return changed, invalidProblem("capacity: must be between 0 and 10000; it has no default")
	}
	rules, err := p.warner.readChange(ctx, in.Body.Windows, in.Body.Limits)
	if err != nil {
		return changed, err
	}
	changed.WarningList = rules.warned
	changed.Pool, err = p.changePool(ctx, in.Pool, "", func(spec *store.PoolSpec) error {
		spec.DryRun = in.DryRun
		rules.applyTo(&spec.Windows, &spec.Limits)
		applyChange(in.Body.Capacity, &spec.Capacity, spec.Capacity)
		applyChange(in.Body.Paused, &spec.Paused, false)
		if in.Body.Callers.Present {
			spec.Callers = in.Body.Callers.Value
		}
		applyMilliseconds(in.Body.LeaseMS, &spec.Lease, defaultLease)
		applyMilliseconds(in.Body.LongestLeaseMS, &spec.Longest, store.DefaultLongestLease)
		applyMilliseconds(in.Body.LongestSleepMS, &spec.Sleep, store.DefaultLongestSleep)
		return p.leaseMin.checkPool(*spec)
	})
	return changed, err
}

func (p *poolOperations) pause(ctx context.Context, in *struct {
	PoolPath
	Body *operators.PauseReason
},
) (operators.Pool, error) {
	return p.changePool(ctx, in.Pool, pauseReasonText(in.Body), func(spec *store.PoolSpec) error {
		spec.Paused = true
		return nil
	})
}

func pauseReasonText(body *operators.PauseReason) (reason string) {
	if body == nil {
		return ""
	}
	return body.Reason
}

func (p *poolOperations) resume(ctx context.Context, in *PoolPath) (operators.Pool, error) {
	return p.changePool(ctx, in.Pool, "", func(spec *store.PoolSpec) error {
		spec.Paused = false
		return nil
	})
}

// changePool calls change with the settings of a pool, stores them with the reason for the audit log, and updates Redis.
func (p *poolOperations) changePool(ctx context.Context, name, reason string, change func(*store.PoolSpec) error) (operators.Pool, error) {
	changed, err := p.ledger.ChangePool(ctx, operatorName(ctx), name, reason, change)
	if err == nil {
		p.reconcileNow(ctx, name)
	}
	return toAPIPool(changed), err
}

func (p *poolOperations) delete(ctx context.Context, in *PoolPath) (*struct{}, error) {
	err := p.ledger.DeletePool(ctx, operatorName(ctx), in.Pool)
	if errors.Is(err, store.ErrOpenTasks) {
		return nil, newProblem(http.StatusConflict, codeOpenTasks, "the pool has open tasks: cancel their batches, and wait for the dispatched tasks")
	}
	if err != nil {
		return nil, err
	}
	if err := p.upkeep.ForgetPool(ctx, in.Pool); err != nil {
		p.log.WarnContext(ctx, "deleted pool not removed from Redis; this is harmless", "pool", in.Pool, "err", err)
	}
	return &struct{}{}, nil
}

func (p *poolOperations) releaseSlot(ctx context.Context, in *struct {
	PoolPath
	Slot int `path:"slot" minimum:"0" maximum:"9999"`
	Body operators.Release
},
) (operators.Slot, error) {
	reason := strings.TrimSpace(in.Body.Reason)
	if reason == "" {
		return operators.Slot{}, invalidProblem("reason: required, for the audit log")
	}
	g, err := p.forceRelease(ctx, in.Pool, in.Slot, store.ForcedRelease{Actor: operatorName(ctx), Reason: reason, Token: in.Body.Token, AtOnce: in.Body.AtOnce})
	if errors.Is(err, store.ErrNotFound) {
		err = p.slotNotHeldProblem(ctx, in.Pool, in.Slot, in.Body.Token)
	}
	if in.Body.AtOnce {
		return operators.Slot{Slot: in.Slot, State: "free"}, err
	}
	return toAPISlot(g), err
}

// slotNotHeldProblem returns the problem for the release of a slot that is not held. Its text says whether the pool,
// the slot or the grant does not exist.
func (p *poolOperations) slotNotHeldProblem(ctx context.Context, pool string, slot int, token int64) error {
	o, err := p.ledger.Occupancy(ctx, pool, 0)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return newProblem(http.StatusNotFound, codeNotFound, "no such pool: "+pool)
	case err != nil:
		return err
	case slices.ContainsFunc(o.Grants, func(g store.Grant) bool { return g.Slot == slot }):
		return newProblem(http.StatusNotFound, codeNotFound, fmt.Sprintf("slot %d of pool %s is not held under token %d", slot, pool, token))
	case slot >= o.Pool.Capacity:
		return newProblem(http.StatusNotFound, codeNotFound, fmt.Sprintf("pool %s has no slot %d: its capacity is %d", pool, slot, o.Pool.Capacity))
	}
	return newProblem(http.StatusNotFound, codeNotFound, fmt.Sprintf("slot %d of pool %s is free: it has no holder", slot, pool))
}

func (p *poolOperations) checkGrant(ctx context.Context, in *struct {
	PoolPath
	Token int64 `path:"token" minimum:"1" maximum:"9007199254740991"`
},
) (operators.GrantCheck, error) {
	g, err := p.ledger.GrantByToken(ctx, in.Pool, in.Token)
	if errors.Is(err, store.ErrNotFound) {
		return operators.GrantCheck{}, nil
	}
	return operators.GrantCheck{InForce: true, Device: g.Device, Slot: &g.Slot, LeaseMS: g.Remaining.Milliseconds()}, err
}
