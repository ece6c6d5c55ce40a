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
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/store"
)

type poolPatch struct {
	Capacity patch[int]             `json:"capacity,omitzero" minimum:"0" maximum:"10000" doc:"It has no default: null is refused"`
	LeaseMS  patch[int64]           `json:"lease_ms,omitzero" minimum:"1" maximum:"86400000"`
	Paused   patch[bool]            `json:"paused,omitzero"`
	Windows  patch[[]windowBody]    `json:"windows,omitzero" doc:"All of them; null or none: always open"`
	Limits   patch[[]limits.Policy] `json:"limits,omitzero" doc:"All of them; null or none: as often as there are slots"`
}

// Reason is the body of a request to pause.
type Reason struct {
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"For those who ask why nothing runs"`
}

type forcePost struct {
	Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"For the audit log"`
	Now    bool   `json:"now,omitempty" doc:"true: at once, though the device may go on until its lease ends"`
	Token  int64  `json:"token,omitempty" minimum:"1" maximum:"9007199254740991" doc:"Of the grant that is meant; else whichever holds the slot"`
}

type grantCheck struct {
	Alive   bool   `json:"alive" doc:"The grant is in force"`
	Device  string `json:"device,omitempty"`
	Slot    *int   `json:"slot,omitempty"`
	LeaseMS int64  `json:"lease_ms" doc:"Until its lease ends; 0: not alive"`
}

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
	Body poolPatch
},
) (*body[poolChanged], error) {
	if in.Body.Capacity.set && in.Body.Capacity.value == nil {
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
		opens.to(&spec.Windows, nil)
		limited.to(&spec.Limits, nil)
		in.Body.Capacity.to(&spec.Capacity, spec.Capacity)
		in.Body.Paused.to(&spec.Paused, false)
		lease := spec.Lease.Milliseconds()
		in.Body.LeaseMS.to(&lease, defaultLease.Milliseconds())
		spec.Lease = milliseconds(lease)
		return a.checkLease(spec.Lease)
	})
	if err != nil {
		return nil, err
	}
	return &body[poolChanged]{poolChanged{changed.Body, warned}}, nil
}

func (a *API) pausePool(ctx context.Context, in *struct {
	PoolPath
	Body *Reason
},
) (*body[PoolBody], error) {
	reason := ""
	if in.Body != nil {
		reason = in.Body.Reason
	}
	return a.changePool(ctx, in.Pool, reason, func(spec *store.PoolSpec) error {
		spec.Paused = true
		return nil
	})
}

func (a *API) resumePool(ctx context.Context, in *PoolPath) (*body[PoolBody], error) {
	return a.changePool(ctx, in.Pool, "", func(spec *store.PoolSpec) error {
		spec.Paused = false
		return nil
	})
}

func (a *API) changePool(ctx context.Context, name, note string, change func(*store.PoolSpec) error) (*body[PoolBody], error) {
	if err := devices.ParsePool(name); err != nil {
		return nil, err
	}
	p, err := a.store.ChangePool(ctx, actor(ctx), name, note, change)
	if err != nil {
		return nil, err
	}
	a.tellPool(ctx, name)
	return &body[PoolBody]{showPool(p)}, nil
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
	Body forcePost
},
) (*body[slotBody], error) {
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
		return &body[slotBody]{slotBody{Slot: in.Slot, State: "free"}}, nil
	}
	return &body[slotBody]{showHeld(g)}, nil
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
) (*body[grantCheck], error) {
	if err := devices.ParsePool(in.Pool); err != nil {
		return nil, err
	}
	g, err := a.store.GrantByToken(ctx, in.Pool, in.Token)
	if errors.Is(err, store.ErrNotFound) {
		return &body[grantCheck]{}, nil
	}
	if err != nil {
		return nil, err
	}
	return &body[grantCheck]{grantCheck{Alive: true, Device: g.Device, Slot: &g.Slot, LeaseMS: g.Remaining.Milliseconds()}}, nil
}
