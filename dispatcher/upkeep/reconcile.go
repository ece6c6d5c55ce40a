package upkeep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// orphanAge is how old a slot without a grant must be before it is freed:
// younger ones may belong to a claim that is under way (claimAge bounds it).
const orphanAge = 10 * time.Second

// restoreLimit bounds the restoring of one pool, for which reports wait.
const restoreLimit = 8 * time.Second

// poolsPerPage of one reading of all pools.
const poolsPerPage = 500

// ReconcileResult counts what one pass repaired.
type ReconcileResult struct {
	Restored int // pools that the semaphore had lost
	Freed    int // slots held by no grant
	Added    int // grants that the semaphore did not know
	Refused  int // grants whose slot something younger holds; tried again
	Resized  int // pools whose capacity was not yet known
	Waiting  int // pools that another replica is restoring
}

func (r *ReconcileResult) add(o ReconcileResult) {
	r.Restored += o.Restored
	r.Freed += o.Freed
	r.Added += o.Added
	r.Refused += o.Refused
	r.Resized += o.Resized
	r.Waiting += o.Waiting
}

// Drift is the number of slots on which semaphore and ledger disagreed.
func (r ReconcileResult) Drift() int { return r.Freed + r.Added + r.Refused }

// Reconcile brings the semaphore back to what the ledger says, pool by pool.
// One pool's trouble does not keep the others waiting.
func (k *Keeper) Reconcile(ctx context.Context) (ReconcileResult, error) {
	var total ReconcileResult
	var errs []error
	gone := k.config.Waiters.Pools.Known() // before the list: what is created meanwhile stays
	for after := ""; ; {
		pools, err := k.config.Ledger.Pools(ctx, after, poolsPerPage)
		if err != nil {
			return total, errors.Join(append(errs, fmt.Errorf("reading pools: %w", err))...)
		}
		for _, pool := range pools {
			delete(gone, pool.Name)
			snapshot, err := k.config.Semaphore.Snapshot(ctx, pool.Name)
			if err != nil {
				errs = append(errs, fmt.Errorf("reading the slots of pool %s: %w", pool.Name, err))
				continue
			}
			result, err := k.reconcile(ctx, pool, snapshot)
			total.add(result)
			if err != nil {
				errs = append(errs, err)
			}
		}
		if len(pools) < poolsPerPage {
			k.forget(gone)
			return total, errors.Join(errs...)
		}
		after = pools[len(pools)-1].Name
	}
}

// ReconcilePool repairs one pool at once: it is unknown to the semaphore, or a
// claim met a slot that was taken. While the semaphore is away it costs the ledger nothing.
func (k *Keeper) ReconcilePool(ctx context.Context, name string) (ReconcileResult, error) {
	snapshot, err := k.config.Semaphore.Snapshot(ctx, name)
	if err != nil {
		return ReconcileResult{}, fmt.Errorf("reading the slots of pool %s: %w", name, err)
	}
	pool, err := k.config.Ledger.Pool(ctx, name)
	if err != nil {
		return ReconcileResult{}, fmt.Errorf("reading pool %s: %w", name, err)
	}
	return k.reconcile(ctx, pool, snapshot)
}

// MakeKnown restores a pool that the semaphore has lost, once for all reports
// that find it so at the same time. The work is not tied to the one that came
// first: its time may be almost up.
func (k *Keeper) MakeKnown(ctx context.Context, pool string) error {
	_, err, _ := k.restoring.Do(pool, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreLimit)
		defer cancel()
		return k.ReconcilePool(ctx, pool)
	})
	return err //nolint:wrapcheck // ReconcilePool's own
}

// reconcile repairs what a snapshot differs in from the ledger. The order matters:
// the semaphore was read first, the rows are second. A grant made in between is then
// missing from the snapshot only, never taken for an orphan.
func (k *Keeper) reconcile(ctx context.Context, pool store.Pool, snapshot slots.Snapshot) (ReconcileResult, error) {
	var result ReconcileResult
	k.show(pool.Name)
	config := slots.Config{Capacity: pool.Capacity, Version: pool.Version}
	grants, err := k.config.Ledger.Grants(ctx, pool.Name)
	if err != nil {
		return result, fmt.Errorf("reading the grants of pool %s: %w", pool.Name, err)
	}
	if !snapshot.Known {
		err := k.restore(ctx, pool.Name, config, grants, &result)
		return result, err
	}
	if err := k.resize(ctx, pool.Name, config, snapshot, &result); err != nil {
		return result, err
	}
	if err := k.freeOrphans(ctx, pool.Name, snapshot, grants, &result); err != nil {
		return result, err
	}
	err = k.addMissing(ctx, pool.Name, snapshot, grants, &result)
	k.metrics.drifted(pool.Name, result.Drift())
	return result, err
}

// restore makes an unknown pool known, and takes out again what ended while it
// was unknown and could not be released.
func (k *Keeper) restore(ctx context.Context, pool string, config slots.Config, grants []store.Grant, result *ReconcileResult) error {
	restored, err := k.config.Semaphore.Restore(ctx, pool, config, holdings(grants))
	if err != nil {
		return fmt.Errorf("restoring pool %s: %w", pool, err)
	}
	if !restored { // another replica did, or does
		result.Waiting++
		return nil
	}
	result.Restored++
	defer k.config.Waiters.Filler.Fill(pool)
	k.config.Logger.InfoContext(ctx, "pool restored from the ledger", "pool", pool, "held", len(grants))
	return k.undoEnded(ctx, pool, grants)
}

func (k *Keeper) resize(ctx context.Context, pool string, config slots.Config, snapshot slots.Snapshot, result *ReconcileResult) error {
	if snapshot.Version >= config.Version {
		return nil
	}
	changed, err := k.config.Semaphore.Configure(ctx, pool, config)
	if err != nil {
		return fmt.Errorf("resizing pool %s: %w", pool, err)
	}
	if changed {
		result.Resized++
		k.config.Waiters.Filler.Fill(pool)
		k.config.Waiters.Relay.WakeCallers(pool) // they may hold more of it now
	}
	return nil
}

// freeOrphans frees slots that no grant holds and no claim can still be under
// way for: since the grant has ended, or the slot was acquired too long ago. Redis'
// clock may step: one that was acquired in the future is as old.
func (k *Keeper) freeOrphans(ctx context.Context, pool string, snapshot slots.Snapshot, grants []store.Grant, result *ReconcileResult) error {
	granted := make(map[string]bool, len(grants))
	for _, g := range grants {
		granted[g.Lease] = true
	}
	var orphans []string
	var young []store.TaskLease
	for _, l := range snapshot.Leases {
		switch {
		case granted[l.ID]:
		case l.Age.Abs() > orphanAge:
			orphans = append(orphans, l.ID)
		default:
			young = append(young, store.TaskLease{Task: decision.TaskOf(l.ID), Lease: l.ID})
		}
	}
	ended, err := k.config.Ledger.EndedLeases(ctx, young)
	if err != nil {
		return fmt.Errorf("reading ended grants of pool %s: %w", pool, err)
	}
	orphans = append(orphans, ended...)
	if len(orphans) == 0 {
		return nil
	}
	freed, err := k.config.Waiters.Slots.Release(ctx, pool, orphans)
	if err != nil {
		return fmt.Errorf("freeing orphans of pool %s: %w", pool, err)
	}
	result.Freed += count(freed)
	return nil
}

// addMissing tells the semaphore of grants it does not know, then reads their
// rows again: a grant that ended in between is taken out again, since its own
// release may have come before the addition.
func (k *Keeper) addMissing(ctx context.Context, pool string, snapshot slots.Snapshot, grants []store.Grant, result *ReconcileResult) error {
	known := make(map[string]bool, len(snapshot.Leases))
	for _, l := range snapshot.Leases {
		known[l.ID] = true
	}
	var missing []store.Grant
	for _, g := range grants {
		if !known[g.Lease] {
			missing = append(missing, g)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	adopted, err := k.config.Semaphore.Adopt(ctx, pool, holdings(missing))
	if err != nil {
		return fmt.Errorf("adding grants to pool %s: %w", pool, err)
	}
	result.Added += count(adopted)
	result.Refused += len(adopted) - count(adopted)
	return k.undoEnded(ctx, pool, missing)
}

func (k *Keeper) undoEnded(ctx context.Context, pool string, added []store.Grant) error {
	leases := make([]string, len(added))
	for i, g := range added {
		leases[i] = g.Lease
	}
	live, err := k.config.Ledger.LiveLeases(ctx, leases)
	if err != nil {
		return fmt.Errorf("reading added grants of pool %s: %w", pool, err)
	}
	var ended []string
	for _, lease := range leases {
		if !live[lease] {
			ended = append(ended, lease)
		}
	}
	if len(ended) == 0 {
		return nil
	}
	if _, err := k.config.Waiters.Slots.Release(ctx, pool, ended); err != nil {
		return fmt.Errorf("taking back ended grants of pool %s: %w", pool, err)
	}
	return nil
}

func holdings(grants []store.Grant) []slots.Holding {
	held := make([]slots.Holding, len(grants))
	for i, g := range grants {
		held[i] = slots.Holding{
			Lease: g.Lease, Device: g.Device, Slot: g.Slot, Batch: g.Batch, Remaining: g.Remaining,
			Age: g.LeaseUntil.Add(-g.Remaining).Sub(g.GrantedAt),
		}
	}
	return held
}

func count(flags []bool) int {
	n := 0
	for _, f := range flags {
		if f {
			n++
		}
	}
	return n
}
