package api

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/dispatcher/upkeep"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// defaultLease is the lease length of a pool if a PUT does not set it, or a PATCH sets it to null. The default tag of
// operators.PoolSettings and the simulator repeat it. Capacity has no default, because only an operator knows the capacity of
// the external system.
const defaultLease = 300 * time.Second

// maxWaitingShown is the maximum to which waiting devices are counted: a higher number would only mean "many", and
// would cost more than it is worth. On a page with more than 100 pools, the maximum for each pool is a hundredth of
// maxWaitingShown, so that one page counts at most 100,000 devices.
const maxWaitingShown = 1000

type poolStore interface {
	Pool(ctx context.Context, name string) (store.Pool, error)
	PoolOverviews(ctx context.Context, afterName string, limit, maxWaiting int) ([]store.PoolOverview, error)
	PoolOverviewsByName(ctx context.Context, names []string, maxWaiting int) ([]store.PoolOverview, error)
	PoolRanks(ctx context.Context, namePart string) ([]store.PoolRank, error)
	Occupancy(ctx context.Context, pool string, maxWaiting int) (store.Occupancy, error)
	GrantByToken(ctx context.Context, pool string, token int64) (store.Grant, error)
	poolChanger
	Holdings(ctx context.Context, filter store.HoldingFilter) ([]store.Holding, store.SearchBound, error)
	Minutes(ctx context.Context, pool string, period time.Duration) (store.PoolMinutes, error)
	Device(ctx context.Context, id string) (store.Device, error)
	Profile(ctx context.Context, name string) (store.Profile, error)
}

type poolChanger interface {
	PutPool(ctx context.Context, actor, name string, spec store.PoolSpec) (store.Pool, bool, error)
	ChangePool(ctx context.Context, actor, name, reason string, change func(*store.PoolSpec) error) (store.Pool, error)
	PausePools(ctx context.Context, actor string, change store.PoolsPause) (changed, stopping int, err error)
	DeletePool(ctx context.Context, actor, name string) error
}

// poolPut is the body of a PUT of a pool. It accepts the read-only fields of a GET response and ignores them.
type poolPut struct {
	operators.PoolSettings
	ReadOnlyFields

	PausedBy        json.RawMessage `json:"paused_by,omitempty" readOnly:"true"`
	PausedAt        json.RawMessage `json:"paused_at,omitempty" readOnly:"true"`
	PauseReason     json.RawMessage `json:"pause_reason,omitempty" readOnly:"true"`
	OpensAt         json.RawMessage `json:"opens_at,omitempty" readOnly:"true"`
	ClosesAt        json.RawMessage `json:"closes_at,omitempty" readOnly:"true"`
	StandstillUntil json.RawMessage `json:"stands_until,omitempty" readOnly:"true"`
	Held            json.RawMessage `json:"held,omitempty" readOnly:"true"`
	Waiting         json.RawMessage `json:"waiting,omitempty" readOnly:"true"`
	Oldest          json.RawMessage `json:"oldest_pending_at,omitempty" readOnly:"true"`
	Pending         json.RawMessage `json:"pending_tasks,omitempty" readOnly:"true"`
	Trouble         json.RawMessage `json:"trouble,omitempty" readOnly:"true"`
	Warnings        json.RawMessage `json:"warnings,omitempty" readOnly:"true"`
}

// PoolPath is the path parameter {pool}: the name of a pool.
type PoolPath struct {
	Pool string `path:"pool" doc:"1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit"`
}

// PoolMode has the options for a change of the settings of a pool or a limit set.
type PoolMode struct {
	DryRun bool `query:"dry_run" doc:"Check only: the reply is the same, and nothing is changed"`
}

func (p PoolPath) checkName() error { return devices.CheckPoolName(p.Pool) }

type poolOperations struct {
	ledger       poolStore
	upkeep       *upkeep.Keeper
	policies     *policies.Checker
	forceRelease func(ctx context.Context, pool string, slot int, f store.ForcedRelease) (store.Grant, error)
	warner       policyWarner
	leaseMin     leaseMinimum
	log          *slog.Logger
}

func (p *poolOperations) register(r *routes) {
	registerList[operators.PoolList](r, r.describeOperation("listPools"), p.list)
	register(r, r.limitListReads(r.describeOperation("getTotals")), p.getTotals)
	register(r, r.describeOperation("getPool"), p.get)
	registerResponse(r, documentStatus[operators.PoolChanged](r, r.describeOperation("putPool"), http.StatusCreated), p.put)
	register(r, r.describeOperation("getSlots"), p.getSlots)
	registerList[operators.HoldingList](r, r.describeOperation("listHistory"), p.listHoldings)
	register(r, r.describeOperation("getSeries"), p.getSeries)
	register(r, r.describeOperation("patchPool"), p.patch)
	registerResponse(r, r.describeOperation("deletePool"), p.delete)
	register(r, r.describeOperation("pausePools"), p.pauseAll)
	register(r, r.describeOperation("resumePools"), p.resumeAll)
	register(r, r.describeOperation("pausePool"), p.pause)
	register(r, r.describeOperation("resumePool"), p.resume)
	register(r, r.describeOperation("releaseSlot"), p.releaseSlot)
	register(r, r.describeOperation("checkGrant"), p.checkGrant)
	register(r, r.describeOperation("getLimited"), p.listLimitedSubjects)
	register(r, r.describeOperation("getUsageOfPool"), p.getUsage)
}

func (p *poolOperations) get(ctx context.Context, in *PoolPath) (operators.Pool, error) {
	found, err := p.ledger.Pool(ctx, in.Pool)
	return toAPIPool(found), err
}

func (p *poolOperations) put(ctx context.Context, in *struct {
	PoolPath
	PoolMode
	Body poolPut
},
) (*createdResponse[operators.PoolChanged], error) {
	spec, err := p.readSpec(in.Body)
	if err != nil {
		return nil, err
	}
	warned, err := p.warner.findWarnings(ctx, in.Body.Limits)
	if err != nil {
		return nil, err
	}
	spec.DryRun = in.DryRun
	put, isNew, err := p.ledger.PutPool(ctx, operatorName(ctx), in.Pool, spec)
	if err != nil {
		return nil, err
	}
	if !in.DryRun {
		p.reconcileNow(ctx, in.Pool)
	}
	return &createdResponse[operators.PoolChanged]{createdStatus(isNew && !in.DryRun), operators.PoolChanged{Pool: toAPIPool(put), WarningList: warned}}, nil
}

// reconcileNow updates Redis after a change of a pool. The ledger already enforces the change. The update only saves devices the
// wait for the next reconciliation.
func (p *poolOperations) reconcileNow(ctx context.Context, poolName string) {
	if _, err := p.upkeep.ReconcilePool(ctx, poolName); err != nil {
		p.log.WarnContext(ctx, "pool not updated in Redis; reconciliation updates it", "pool", poolName, "err", err)
	}
}

// readSpec checks the settings in body and converts them to the form of the ledger.
func (p *poolOperations) readSpec(body poolPut) (store.PoolSpec, error) {
	spec := store.PoolSpec{
		Capacity: body.Capacity, Callers: body.Callers, Lease: millisecondsOr(body.LeaseMS, defaultLease),
		Longest: millisecondsOr(body.LongestLeaseMS, store.DefaultLongestLease), Sleep: millisecondsOr(body.LongestSleepMS, store.DefaultLongestSleep),
	}
	if body.Paused != nil {
		spec.Paused = *body.Paused
	}
	var err error
	if spec.Windows, err = toStoredWindows(body.Windows); err != nil {
		return spec, err
	}
	if spec.Limits, err = toStoredLimits(body.Limits); err != nil {
		return spec, err
	}
	return spec, p.leaseMin.checkPool(spec)
}

func millisecondsOr(ms *int64, byDefault time.Duration) time.Duration {
	if ms == nil {
		return byDefault
	}
	return milliseconds(*ms)
}

// leaseMinimum is the shortest working time that a lease must give a device.
type leaseMinimum time.Duration

// checkLease returns an error if lease is shorter than twice the shortest working time. The rest of the lease is for the margin (at most a fifth
// of the lease) and the time of a slow claim. fieldName is the name of the field, for the error.
func (l leaseMinimum) checkLease(fieldName string, lease time.Duration) error {
	if minimum := 2 * time.Duration(l); lease < minimum {
		return invalidProblem("%s: at least %d", fieldName, minimum.Milliseconds())
	}
	return nil
}

// checkPool returns an error if the lease or the longest lease of the pool is too short.
func (l leaseMinimum) checkPool(spec store.PoolSpec) error {
	return cmp.Or(l.checkLease("lease_ms", spec.Lease), l.checkLease("longest_lease_ms", spec.Longest))
}

func toAPIPoolState(overview store.PoolOverview) operators.PoolState {
	return operators.PoolState{
		Pool: toAPIPool(overview.Pool), Held: overview.Held, Waiting: overview.Waiting, Oldest: apiTimePointer(overview.Oldest),
		PoolTrouble: operators.PoolTrouble{Pending: overview.Pending, Trouble: poolTroubleCodes(overview.Pool.Capacity, overview.Pool.Paused, overview.PoolStatus)},
	}
}

func toAPIPool(pool store.Pool) operators.Pool {
	return operators.Pool{
		Name: pool.Name, Capacity: pool.Capacity, LeaseMS: pool.Lease.Milliseconds(), Paused: pool.Paused,
		PausedBy: pool.PausedBy, PausedAt: apiTimePointer(pool.PausedAt), PauseReason: pool.PauseReason, Callers: pool.Callers,
		LongestLeaseMS: pool.Longest.Milliseconds(), LongestSleepMS: pool.Sleep.Milliseconds(),
		Limits: toAPIPolicies(pool.Limits), Windows: toAPIWindows(pool.Windows), OpensAt: apiTimeIfSet(pool.Opening.From), ClosesAt: apiTimeIfSet(pool.Opening.Until), StandstillUntil: apiTimeIfSet(pool.StandsUntil),
		Version: pool.Version, Created: apiTime(pool.CreatedAt), Updated: apiTime(pool.UpdatedAt),
	}
}

func (p *poolOperations) getSlots(ctx context.Context, in *PoolPath) (operators.Slots, error) {
	o, err := p.ledger.Occupancy(ctx, in.Pool, maxWaitingShown)
	if err != nil {
		return operators.Slots{}, err
	}
	return toAPISlots(o, p.upkeep.DevicesWithReservedSlot(ctx, in.Pool)), nil
}

// toAPISlots converts the slots in occupancy to the form of the API. reservedFor are the devices for which a slot is reserved. It shows each
// reserved slot at the lowest free number, because only the grant decides the number of the slot.
func toAPISlots(occupancy store.Occupancy, reservedFor []string) operators.Slots {
	reservedFor = reservedFor[:min(len(reservedFor), max(occupancy.Pool.Capacity-len(occupancy.Grants), 0))]
	shown := operators.Slots{Pool: occupancy.Pool.Name, Capacity: occupancy.Pool.Capacity, Held: len(occupancy.Grants), Reserved: len(reservedFor), Waiting: occupancy.Waiting, Oldest: apiTimePointer(occupancy.Oldest)}
	shown.Slots = make([]operators.Slot, 0, max(occupancy.Pool.Capacity, len(occupancy.Grants)))
	showFree := func(slot int) {
		one := operators.Slot{Slot: slot, State: "free"}
		if len(reservedFor) > 0 {
			one.State, one.Device, reservedFor = "reserved", reservedFor[0], reservedFor[1:]
			one.Caller = operators.HolderName(one.Device)
		}
		shown.Slots = append(shown.Slots, one)
	}
	free := 0 // lowest number that has not been shown yet
	for _, g := range occupancy.Grants {
		for ; free < min(g.Slot, occupancy.Pool.Capacity); free++ {
			showFree(free)
		}
		shown.Slots = append(shown.Slots, toAPISlot(g))
		free = max(free, g.Slot+1)
	}
	for ; free < occupancy.Pool.Capacity; free++ {
		showFree(free)
	}
	return shown
}

func toAPISlot(grant store.Grant) operators.Slot {
	since, until := apiTime(grant.GrantedAt), apiTime(grant.LeaseUntil)
	return operators.Slot{Slot: grant.Slot, State: "held", Device: grant.Device, Caller: operators.HolderName(grant.Device), Task: grant.Task, Token: grant.Token, Batch: grant.Batch, Since: &since, LeaseUntil: &until, Cancel: grant.CancelWhy}
}
