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

// orphanAge is the age at which a slot without a grant is freed. A younger slot may belong to a claim. A claim ends at most 8 s after its slot
// was acquired (claimAge + claimLimit of package dispatcher).
const orphanAge = 10 * time.Second

// restoreLimit is the maximum duration of the restore of a pool. It is short, because reports wait for the restore.
const restoreLimit = 8 * time.Second

const poolsPerPage = 500

// ReconcileResult counts the repairs of one pass.
type ReconcileResult struct {
	Restored int // pools that the semaphore had lost
	Freed    int // slots held by no grant
	Added    int // grants whose slot the semaphore did not hold
	Refused  int // grants whose slot a younger lease holds; the next pass tries again
	Resized  int // pools whose capacity in the semaphore was outdated
	Waiting  int // pools that another replica is restoring
}

func (r *ReconcileResult) add(other ReconcileResult) {
	r.Restored += other.Restored
	r.Freed += other.Freed
	r.Added += other.Added
	r.Refused += other.Refused
	r.Resized += other.Resized
	r.Waiting += other.Waiting
}

// Drift returns the number of slots on which semaphore and ledger disagreed.
func (r ReconcileResult) Drift() int { return r.Freed + r.Added + r.Refused }

// Reconcile makes the semaphore agree with the ledger, pool by pool. It returns the errors of all pools at the end.
func (k *Keeper) Reconcile(ctx context.Context) (ReconcileResult, error) {
	var total ReconcileResult
	var errs []error
	gone := k.config.Waiters.Pools.NameSet() // read before the ledger, so a pool that is created during this call is not forgotten
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
			result, err := k.reconcileWithSnapshot(ctx, pool, snapshot)
			total.add(result)
			if err != nil {
				errs = append(errs, err)
			}
		}
		if len(pools) < poolsPerPage {
			k.forgetPools(gone)
			return total, errors.Join(errs...)
		}
		after = pools[len(pools)-1].Name
	}
}

// ReconcilePool makes the semaphore agree with the ledger about one pool. It is called if the semaphore does not know the pool, or if a claim
// met a taken slot. If the semaphore does not answer, ReconcilePool does not read the ledger.
func (k *Keeper) ReconcilePool(ctx context.Context, name string) (ReconcileResult, error) {
	snapshot, err := k.config.Semaphore.Snapshot(ctx, name)
	if err != nil {
		return ReconcileResult{}, fmt.Errorf("reading the slots of pool %s: %w", name, err)
	}
	pool, err := k.config.Ledger.Pool(ctx, name)
	if err != nil {
		return ReconcileResult{}, fmt.Errorf("reading pool %s: %w", name, err)
	}
	return k.reconcileWithSnapshot(ctx, pool, snapshot)
}

// RestorePool restores a pool that the semaphore has lost. Concurrent calls share one restore, which has its own deadline.
func (k *Keeper) RestorePool(ctx context.Context, pool string) error {
	_, err, _ := k.restoring.Do(pool, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreLimit)
		defer cancel()
		return k.ReconcilePool(ctx, pool)
	})
	return err
}

// reconcileWithSnapshot repairs the differences between snapshot, the state of the semaphore, and the ledger. snapshot must be read before the
// grants. Otherwise a slot could be freed as an orphan although its grant was made between the two reads.
func (k *Keeper) reconcileWithSnapshot(ctx context.Context, pool store.Pool, snapshot slots.Snapshot) (ReconcileResult, error) {
	var result ReconcileResult
	k.registerPool(pool)
	config := slots.Config{Capacity: pool.Capacity, Version: pool.Version}
	grants, err := k.config.Ledger.Grants(ctx, pool.Name)
	if err != nil {
		return result, fmt.Errorf("reading the grants of pool %s: %w", pool.Name, err)
	}
	if !snapshot.PoolKnown {
		err := k.restoreSemaphorePool(ctx, pool.Name, config, grants, &result)
		return result, err
	}
	if err := k.writeNewerConfig(ctx, pool.Name, config, snapshot, &result); err != nil {
		return result, err
	}
	if err := k.freeSlotsWithoutGrant(ctx, pool.Name, snapshot, grants, &result); err != nil {
		return result, err
	}
	err = k.adoptMissingGrants(ctx, pool.Name, snapshot, grants, &result)
	k.metrics.recordDrift(pool.Name, result.Drift())
	return result, err
}

// restoreSemaphorePool writes pool and its grants to the semaphore. Then it removes the grants that ended during the restore, because the
// semaphore may have ignored their release while it did not know the pool.
func (k *Keeper) restoreSemaphorePool(ctx context.Context, pool string, config slots.Config, grants []store.Grant, result *ReconcileResult) error {
	restored, err := k.config.Semaphore.Restore(ctx, pool, config, toLedgerGrants(grants))
	if err != nil {
		return fmt.Errorf("restoring pool %s: %w", pool, err)
	}
	if !restored { // another replica has restored the pool or is restoring it
		result.Waiting++
		return nil
	}
	result.Restored++
	defer k.config.Waiters.Filler.FillPool(pool)
	k.config.Logger.InfoContext(ctx, "pool restored from the ledger", "pool", pool, "held", len(grants))
	return k.releaseEndedGrants(ctx, pool, grants)
}

// writeNewerConfig writes config to the semaphore if the snapshot has an older version of the pool.
func (k *Keeper) writeNewerConfig(ctx context.Context, pool string, config slots.Config, snapshot slots.Snapshot, result *ReconcileResult) error {
	if snapshot.Version >= config.Version {
		return nil
	}
	changed, err := k.config.Semaphore.Configure(ctx, pool, config)
	if err != nil {
		return fmt.Errorf("resizing pool %s: %w", pool, err)
	}
	if changed {
		result.Resized++
		k.config.Waiters.Filler.FillPool(pool)
		k.config.Waiters.Relay.WakeCallers(pool) // callers may hold more slots of the pool now
	}
	return nil
}

// freeSlotsWithoutGrant frees slots that have no grant in the ledger and cannot be in the middle of a claim. Either the grant has ended, or the
// slot was acquired more than orphanAge ago. After a step back of the Redis clock, the acquisition may be more than orphanAge in the future.
// Such a slot is freed too.
func (k *Keeper) freeSlotsWithoutGrant(ctx context.Context, pool string, snapshot slots.Snapshot, grants []store.Grant, result *ReconcileResult) error {
	granted := make(map[string]bool, len(grants))
	for _, g := range grants {
		granted[g.LeaseID] = true
	}
	var orphans []string
	var young []store.TaskLease
	for _, l := range snapshot.Leases {
		switch {
		case granted[l.ID]:
		case l.Age.Abs() > orphanAge:
			orphans = append(orphans, l.ID)
		default:
			young = append(young, store.TaskLease{Task: decision.TaskIDOfLease(l.ID), LeaseID: l.ID})
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
	result.Freed += countTrue(freed)
	return nil
}

// adoptMissingGrants adds to the semaphore the grants that it lacks. Then it removes the added grants that have ended, because the semaphore may
// have handled their release before they were added.
func (k *Keeper) adoptMissingGrants(ctx context.Context, pool string, snapshot slots.Snapshot, grants []store.Grant, result *ReconcileResult) error {
	inSemaphore := make(map[string]bool, len(snapshot.Leases))
	for _, l := range snapshot.Leases {
		inSemaphore[l.ID] = true
	}
	var missing []store.Grant
	for _, g := range grants {
		if !inSemaphore[g.LeaseID] {
			missing = append(missing, g)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	adopted, err := k.config.Semaphore.Adopt(ctx, pool, toLedgerGrants(missing))
	if err != nil {
		return fmt.Errorf("adding grants to pool %s: %w", pool, err)
	}
	result.Added += countTrue(adopted)
	result.Refused += len(adopted) - countTrue(adopted)
	return k.releaseEndedGrants(ctx, pool, missing)
}

// releaseEndedGrants removes from the semaphore those grants of the list added that have ended in the ledger.
func (k *Keeper) releaseEndedGrants(ctx context.Context, pool string, added []store.Grant) error {
	leases := make([]string, len(added))
	for i, g := range added {
		leases[i] = g.LeaseID
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
		return fmt.Errorf("freeing slots of ended grants of pool %s: %w", pool, err)
	}
	return nil
}

func toLedgerGrants(grants []store.Grant) []slots.LedgerGrant {
	held := make([]slots.LedgerGrant, len(grants))
	for i, g := range grants {
		held[i] = slots.LedgerGrant{
			Lease: g.LeaseID, Device: g.Device, Slot: g.Slot, Batch: g.Batch, Remaining: g.Remaining,
			Age: g.LeaseUntil.Add(-g.Remaining).Sub(g.GrantedAt),
		}
	}
	return held
}

func countTrue(flags []bool) int {
	n := 0
	for _, f := range flags {
		if f {
			n++
		}
	}
	return n
}
