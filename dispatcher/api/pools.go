package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// defaultLease is that of a pool that is put without saying. There is no default
// capacity: only an operator knows what the external system bears.
const defaultLease = 300 * time.Second

// Devices that wait are counted up to so many of each pool of a list, so that a
// page costs no more than 100,000 of them.
const (
	manyPools     = 100 // of one page
	waitingListed = 1000
	waitingOfMany = 100
)

type poolStore interface {
	PutPool(ctx context.Context, actor, name string, spec store.PoolSpec) (store.Pool, bool, error)
	Pool(ctx context.Context, name string) (store.Pool, error)
	PoolViews(ctx context.Context, after string, limit, waitingMax int) ([]store.PoolView, error)
	Occupancy(ctx context.Context, pool string, waitingMax int) (store.Occupancy, error)
	ChangePool(ctx context.Context, actor, name, note string, change func(*store.PoolSpec) error) (store.Pool, error)
	DeletePool(ctx context.Context, actor, name string) error
	GrantByToken(ctx context.Context, pool string, token int64) (store.Grant, error)
}

// poolPut takes what a GET showed as well: what an operator cannot decide is
// ignored.
type poolPut struct {
	operators.PoolSettings

	Name        json.RawMessage `json:"name,omitempty" readOnly:"true" doc:"Ignored, and so are the ones that follow"`
	PausedBy    json.RawMessage `json:"paused_by,omitempty" readOnly:"true"`
	PausedAt    json.RawMessage `json:"paused_at,omitempty" readOnly:"true"`
	PauseReason json.RawMessage `json:"pause_reason,omitempty" readOnly:"true"`
	OpensAt     json.RawMessage `json:"opens_at,omitempty" readOnly:"true"`
	ClosesAt    json.RawMessage `json:"closes_at,omitempty" readOnly:"true"`
	Version     json.RawMessage `json:"version,omitempty" readOnly:"true"`
	Created     json.RawMessage `json:"created_at,omitempty" readOnly:"true"`
	Updated     json.RawMessage `json:"updated_at,omitempty" readOnly:"true"`
	Held        json.RawMessage `json:"held,omitempty" readOnly:"true"`
	Waiting     json.RawMessage `json:"waiting,omitempty" readOnly:"true"`
	Oldest      json.RawMessage `json:"oldest_pending_at,omitempty" readOnly:"true"`
	Warnings    json.RawMessage `json:"warnings,omitempty" readOnly:"true"`
}

// PoolPath names a pool.
type PoolPath struct {
	Pool string `path:"pool" doc:"1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit"`
}

// PoolMode is how the settings of a pool are taken.
type PoolMode struct {
	DryRun bool `query:"dry_run" doc:"Check only: the answer is as if it was done, and nothing is changed"`
}

func (a *API) registerPools(operations huma.API) {
	registerList(a, operations, operation("GET", "/v1/pools", "listPools", "List pools by name", roleViewer, 200), listing[pageQuery, operators.PoolList, operators.PoolState]{
		handle: a.listPools, page: (*pageQuery).page,
		items: func(l operators.PoolList) ([]operators.PoolState, string) { return l.Pools, l.NextPageToken },
	})
	register(a, operations, operation("GET", "/v1/pools/{pool}", "getPool", "Read a pool", roleViewer, 200), a.getPool)
	register(a, operations, also[operators.PoolChanged](operations, operation("PUT", "/v1/pools/{pool}", "putPool", "Create a pool or replace its settings", roleAdmin, 200), http.StatusCreated), a.putPool)
	register(a, operations, operation("GET", "/v1/pools/{pool}/slots", "getSlots", "See the holders of the slots", roleViewer, 200), a.getSlots)
	a.registerPoolLife(operations)
	a.registerLimits(operations)
}

func (a *API) listPools(ctx context.Context, in *pageQuery) (*body[operators.PoolList], error) {
	after, err := in.afterName()
	if err != nil {
		return nil, err
	}
	counted := waitingListed
	if in.Size > manyPools {
		counted = waitingOfMany
	}
	pools, err := a.store.PoolViews(ctx, after, in.Size, counted)
	if err != nil {
		return nil, err
	}
	list := operators.PoolList{Pools: make([]operators.PoolState, len(pools))}
	for i, p := range pools {
		list.Pools[i] = showPoolState(p)
		list.NextPageToken = nextPage(in.full(len(pools)), p.Pool.Name)
	}
	return &body[operators.PoolList]{list}, nil
}

func (a *API) getPool(ctx context.Context, in *PoolPath) (*body[operators.Pool], error) {
	if err := devices.ParsePool(in.Pool); err != nil {
		return nil, err
	}
	p, err := a.store.Pool(ctx, in.Pool)
	if err != nil {
		return nil, err
	}
	return &body[operators.Pool]{showPool(p)}, nil
}

func (a *API) putPool(ctx context.Context, in *struct {
	PoolPath
	PoolMode
	Body poolPut
},
) (*created[operators.PoolChanged], error) {
	if err := devices.ParsePool(in.Pool); err != nil {
		return nil, err
	}
	spec, err := a.poolSpec(in.Body)
	if err != nil {
		return nil, err
	}
	warned, err := a.warnings(ctx, in.Body.Limits)
	if err != nil {
		return nil, err
	}
	spec.DryRun = in.DryRun
	p, isNew, err := a.store.PutPool(ctx, actor(ctx), in.Pool, spec)
	if err != nil {
		return nil, err
	}
	if in.DryRun {
		return &created[operators.PoolChanged]{Status: http.StatusOK, Body: operators.PoolChanged{Pool: showPool(p), Warned: warned}}, nil
	}
	a.tellPool(ctx, p.Name)
	return &created[operators.PoolChanged]{Status: createdStatus(isNew), Body: operators.PoolChanged{Pool: showPool(p), Warned: warned}}, nil
}

// tellPool tells Redis of a change. The ledger already refuses what no longer
// fits: it only spares devices the wait for a pass.
func (a *API) tellPool(ctx context.Context, name string) {
	if _, err := a.options.Dispatcher.Upkeep.ReconcilePool(ctx, name); err != nil {
		a.log.WarnContext(ctx, "pool not yet known to Redis; reconciliation will tell it", "pool", name, "err", err)
	}
}

func (a *API) poolSpec(in poolPut) (store.PoolSpec, error) {
	spec := store.PoolSpec{Capacity: in.Capacity, Lease: defaultLease}
	if in.LeaseMS != nil {
		spec.Lease = milliseconds(*in.LeaseMS)
	}
	if in.Paused != nil {
		spec.Paused = *in.Paused
	}
	var err error
	if spec.Windows, err = readWindows(in.Windows); err != nil {
		return spec, err
	}
	if spec.Limits, err = readLimits(in.Limits); err != nil {
		return spec, err
	}
	return spec, a.checkLease(spec.Lease)
}

// checkLease refuses leases that leave a device less than the smallest lease
// once the margin (at most a fifth) and the time of a slow claim are taken off.
func (a *API) checkLease(lease time.Duration) error {
	if least := 2 * a.options.LeaseMin; lease < least {
		return problem(http.StatusUnprocessableEntity, codeInvalidField, fmt.Sprintf("lease_ms: at least %d", least.Milliseconds()))
	}
	return nil
}

func showPoolState(v store.PoolView) operators.PoolState {
	return operators.PoolState{Pool: showPool(v.Pool), Held: v.Held, Waiting: v.Waiting, Oldest: stampPointer(v.Oldest)}
}

func showPool(p store.Pool) operators.Pool {
	return operators.Pool{
		Name: p.Name, Capacity: p.Capacity, LeaseMS: p.Lease.Milliseconds(), Paused: p.Paused,
		PausedBy: p.PausedBy, PausedAt: stampPointer(p.PausedAt), PauseReason: p.PauseReason,
		Limits: showLimits(p.Limits), Windows: showWindows(p.Windows), OpensAt: stampSet(p.Opening.From), ClosesAt: stampSet(p.Opening.Until),
		Version: p.Version, Created: stamp(p.CreatedAt), Updated: stamp(p.UpdatedAt),
	}
}
