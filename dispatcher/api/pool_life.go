package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

func (a *API) registerPoolLife(operations huma.API) {
	register(a, operations, operation("PATCH", "/v1/pools/{pool}", "patchPool", "Change a pool; absent fields stay, null asks for the default", roleAdmin, 200), a.patchPool)
	register(a, operations, operation("DELETE", "/v1/pools/{pool}", "deletePool", "Delete a pool of which nothing is open", roleAdmin, 204), a.deletePool)
	register(a, operations, operation("POST", "/v1/pools/{pool}/pause", "pausePool", "Grant nothing more of a pool; what runs goes on", roleAdmin, 200), a.pausePool)
	register(a, operations, operation("POST", "/v1/pools/{pool}/resume", "resumePool", "End the pause of a pool", roleAdmin, 200), a.resumePool)
	register(a, operations, operation("POST", "/v1/pools/{pool}/slots/{slot}/release", "releaseSlot", "Take a slot back from its holder", roleAdmin, 200), a.releaseSlot)
	register(a, operations, operation("GET", "/v1/pools/{pool}/grants/{token}", "checkGrant", "Ask, for the external system, whether a grant is in force", roleVerifier, 200), a.checkGrant)
}

func (a *API) patchPool(ctx context.Context, in *struct {
	PoolPath
	PoolMode
	Body operators.PoolPatch
},
) (*body[operators.PoolChanged], error) {
	if in.Body.Capacity.Said && in.Body.Capacity.To == nil {
		return nil, problem(http.StatusUnprocessableEntity, codeInvalidField, "capacity: a number from 0 to 10000; it has no default")
	}
	opens, err := readPatch(in.Body.Windows, readWindows)
	if err != nil {
		return nil, err
	}
	limited, err := readPatch(in.Body.Limits, readLimits)
	if err != nil {
		return nil, err
	}
	warned, err := a.patchWarnings(ctx, in.Body.Limits)
	if err != nil {
		return nil, err
	}
	changed, err := a.changePool(ctx, in.Pool, "", func(spec *store.PoolSpec) error {
		spec.DryRun = in.DryRun
		apply(opens, &spec.Windows, nil)
		apply(limited, &spec.Limits, nil)
		apply(in.Body.Capacity, &spec.Capacity, spec.Capacity)
		apply(in.Body.Paused, &spec.Paused, false)
		lease := spec.Lease.Milliseconds()
		apply(in.Body.LeaseMS, &lease, defaultLease.Milliseconds())
		spec.Lease = milliseconds(lease)
		return a.checkLease(spec.Lease)
	})
	if err != nil {
		return nil, err
	}
	return &body[operators.PoolChanged]{operators.PoolChanged{Pool: changed.Body, Warned: warned}}, nil
}

func (a *API) pausePool(ctx context.Context, in *struct {
	PoolPath
	Body *operators.PauseReason
},
) (*body[operators.Pool], error) {
	reason := ""
	if in.Body != nil {
		reason = in.Body.Reason
	}
	return a.changePool(ctx, in.Pool, reason, func(spec *store.PoolSpec) error {
		spec.Paused = true
		return nil
	})
}

func (a *API) resumePool(ctx context.Context, in *PoolPath) (*body[operators.Pool], error) {
	return a.changePool(ctx, in.Pool, "", func(spec *store.PoolSpec) error {
		spec.Paused = false
		return nil
	})
}

func (a *API) changePool(ctx context.Context, name, note string, change func(*store.PoolSpec) error) (*body[operators.Pool], error) {
	if err := devices.ParsePool(name); err != nil {
		return nil, err
	}
	p, err := a.store.ChangePool(ctx, actor(ctx), name, note, change)
	if err != nil {
		return nil, err
	}
	a.tellPool(ctx, name)
	return &body[operators.Pool]{showPool(p)}, nil
}

func (a *API) deletePool(ctx context.Context, in *PoolPath) (*struct{}, error) {
	if err := devices.ParsePool(in.Pool); err != nil {
		return nil, err
	}
	err := a.store.DeletePool(ctx, actor(ctx), in.Pool)
	if errors.Is(err, store.ErrOpenTasks) {
		return nil, problem(http.StatusConflict, codeOpenTasks, "the pool has open tasks: cancel their batches, and wait for those that run")
	}
	if err != nil {
		return nil, err
	}
	if err := a.options.Dispatcher.Upkeep.ForgetPool(ctx, in.Pool); err != nil {
		a.log.WarnContext(ctx, "a deleted pool stays in Redis; it harms nothing there", "pool", in.Pool, "err", err)
	}
	return &struct{}{}, nil
}

func (a *API) releaseSlot(ctx context.Context, in *struct {
	PoolPath
	Slot int `path:"slot" minimum:"0" maximum:"9999"`
	Body operators.Release
},
) (*body[operators.Slot], error) {
	if err := devices.ParsePool(in.Pool); err != nil {
		return nil, err
	}
	reason := strings.TrimSpace(in.Body.Reason)
	if reason == "" {
		return nil, problem(http.StatusUnprocessableEntity, codeInvalidField, "reason: say why, for the audit log")
	}
	force := store.Force{Actor: actor(ctx), Reason: reason, Token: in.Body.Token, Now: in.Body.Now}
	g, err := a.options.Dispatcher.ForceRelease(ctx, in.Pool, in.Slot, force)
	if errors.Is(err, store.ErrNotFound) {
		return nil, a.notHeld(ctx, in.Pool, in.Slot, in.Body.Token)
	}
	if err != nil {
		return nil, err
	}
	if in.Body.Now {
		return &body[operators.Slot]{operators.Slot{Slot: in.Slot, State: "free"}}, nil
	}
	return &body[operators.Slot]{showHeld(g)}, nil
}

// notHeld says what of a slot does not exist.
func (a *API) notHeld(ctx context.Context, pool string, slot int, token int64) error {
	o, err := a.store.Occupancy(ctx, pool, 0)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return problem(http.StatusNotFound, codeNotFound, "there is no pool "+pool)
	case err != nil:
		return err
	case slices.ContainsFunc(o.Grants, func(g store.Grant) bool { return g.Slot == slot }):
		return problem(http.StatusNotFound, codeNotFound, fmt.Sprintf("slot %d of pool %s is not held under token %d", slot, pool, token))
	case slot >= o.Pool.Capacity:
		return problem(http.StatusNotFound, codeNotFound, fmt.Sprintf("pool %s has no slot %d: its capacity is %d", pool, slot, o.Pool.Capacity))
	}
	return problem(http.StatusNotFound, codeNotFound, fmt.Sprintf("slot %d of pool %s is free: nobody holds it", slot, pool))
}

func (a *API) checkGrant(ctx context.Context, in *struct {
	PoolPath
	Token int64 `path:"token" minimum:"1" maximum:"9007199254740991"`
},
) (*body[operators.GrantCheck], error) {
	if err := devices.ParsePool(in.Pool); err != nil {
		return nil, err
	}
	g, err := a.store.GrantByToken(ctx, in.Pool, in.Token)
	if errors.Is(err, store.ErrNotFound) {
		return &body[operators.GrantCheck]{}, nil
	}
	if err != nil {
		return nil, err
	}
	return &body[operators.GrantCheck]{operators.GrantCheck{Alive: true, Device: g.Device, Slot: &g.Slot, LeaseMS: g.Remaining.Milliseconds()}}, nil
}
