package upkeep

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// changeOverlap is the overlap of two successive readings of changed pools. It is needed because the recorded time of a change is earlier than
// its COMMIT, by at most the maximum duration of a transaction.
const changeOverlap = 15 * time.Second

// followState is the state that a replica keeps between two passes of FollowChanges.
type followState struct {
	mu        sync.Mutex
	read      time.Time        // this process's time of the last reading; the zero value means none
	written   map[string]int64 // pool -> version that the semaphore knows, for recently changed pools
	unwritten map[string]int64 // pool -> version that is still to be written to the semaphore
	outages   int64            // value of Semaphore.Outages at the time at which all pools last became suspect
	suspect   map[string]bool  // pools that were not reconciled since the last outage
}

func newFollowState() *followState {
	return &followState{written: make(map[string]int64), unwritten: make(map[string]int64), suspect: make(map[string]bool)}
}

// FollowChanges writes recent changes of pools to the semaphore, no matter which replica made a change. A change that cannot be written is
// retried by the next call. If the semaphore answers again after an outage, FollowChanges reconciles all pools. It is cheap enough to run
// several times a second.
func (k *Keeper) FollowChanges(ctx context.Context) (ReconcileResult, error) {
	if !k.followState.mu.TryLock() { // another pass is running or hangs: passes must not pile up behind it
		return ReconcileResult{}, nil
	}
	defer k.followState.mu.Unlock()
	// The changes are written first. While a node of a Redis Cluster does not answer, the reconciliation of all pools may use up the whole
	// time of a pass.
	result, writeErr := k.writePoolChanges(ctx)
	reconciled, lost := k.reconcileSuspectPools(ctx)
	result.add(reconciled)
	return result, errors.Join(writeErr, lost)
}

// reconcileSuspectPools reconciles the suspect pools. After an outage of the semaphore, all pools are suspect, because the semaphore may have
// lost any data. A pool stays suspect until the semaphore answers for it.
func (k *Keeper) reconcileSuspectPools(ctx context.Context) (ReconcileResult, error) {
	f := k.followState
	if outages := k.config.Semaphore.Outages(); outages != f.outages {
		if err := k.markAllPoolsSuspect(ctx); err != nil {
			return ReconcileResult{}, err
		}
		f.outages = outages
	}
	var total ReconcileResult
	var failed error
	for pool := range f.suspect {
		result, err := k.ReconcilePool(ctx, pool)
		total.add(result)
		switch {
		case err == nil || errors.Is(err, store.ErrNotFound):
			delete(f.suspect, pool)
		case ctx.Err() != nil:
			return total, err
		default:
			failed = err // return only one error: there may be thousands
		}
	}
	return total, failed
}

func (k *Keeper) markAllPoolsSuspect(ctx context.Context) error {
	for after := ""; ; {
		pools, err := k.config.Ledger.Pools(ctx, after, poolsPerPage)
		if err != nil {
			return fmt.Errorf("reading pools: %w", err)
		}
		for _, pool := range pools {
			k.followState.suspect[pool.Name] = true
			after = pool.Name
		}
		if len(pools) < poolsPerPage {
			return nil
		}
	}
}

func (k *Keeper) writePoolChanges(ctx context.Context) (ReconcileResult, error) {
	f := k.followState
	if err := k.readConfigChanges(ctx); err != nil {
		return ReconcileResult{}, err
	}
	var total ReconcileResult
	var errs []error
	for pool, version := range f.unwritten {
		result, err := k.writePoolChange(ctx, pool, version)
		total.add(result)
		switch {
		case err != nil:
			errs = append(errs, err)
		case result.Waiting == 0:
			f.written[pool] = version
			delete(f.unwritten, pool)
		}
	}
	return total, errors.Join(errs...)
}

// readConfigChanges reads the recent changes of pools into followState.written and followState.unwritten.
func (k *Keeper) readConfigChanges(ctx context.Context) error {
	f := k.followState
	asked, within := k.config.Now(), changeOverlap
	if !f.read.IsZero() {
		within += asked.Sub(f.read)
	}
	changed, err := k.config.Ledger.ChangedPools(ctx, within)
	if err != nil {
		return fmt.Errorf("reading changed pools: %w", err)
	}
	f.read = asked
	written := make(map[string]int64, len(changed))
	for _, p := range changed {
		if f.written[p.Name] == p.Version {
			written[p.Name] = p.Version
		} else {
			f.unwritten[p.Name] = p.Version
		}
	}
	f.written = written
	return nil
}

// writePoolChange writes this version of a pool to the semaphore, unless the replica that made the change has already done so. If the pool has
// been deleted, writePoolChange does nothing.
func (k *Keeper) writePoolChange(ctx context.Context, pool string, poolVersion int64) (ReconcileResult, error) {
	snapshot, err := k.config.Semaphore.Snapshot(ctx, pool)
	if err != nil {
		return ReconcileResult{}, fmt.Errorf("reading the slots of pool %s: %w", pool, err)
	}
	if snapshot.PoolKnown && snapshot.Version >= poolVersion {
		return ReconcileResult{}, nil
	}
	result, err := k.ReconcilePool(ctx, pool)
	if errors.Is(err, store.ErrNotFound) {
		return ReconcileResult{}, nil
	}
	return result, err
}
