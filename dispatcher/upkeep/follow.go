package upkeep

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// changeOverlap is how far back each reading of changed pools reaches beyond
// the one before: a change bears a time before that of its COMMIT, by at most
// the limits of a transaction.
const changeOverlap = 15 * time.Second

// following is what a replica remembers between two passes of Follow.
type following struct {
	mu      sync.Mutex
	read    time.Time        // our own clock at the last reading of changes; zero: none
	told    map[string]int64 // version by pool that the semaphore knows, of pools changed lately
	untold  map[string]int64 // version by pool that it has still to be told
	outages int64            // of the semaphore, those after which all pools became suspect
	suspect map[string]bool  // pools that were not reconciled since
}

func newFollowing() *following {
	return &following{told: make(map[string]int64), untold: make(map[string]int64), suspect: make(map[string]bool)}
}

// Follow makes what was changed or lost true on all replicas: a pool that was
// changed, whoever took the change, is known to the semaphore after this pass;
// and when a semaphore that failed answers again, all pools are reconciled. It
// is cheap enough to run several times a second. A change that cannot be told is
// remembered until it can.
func (k *Keeper) Follow(ctx context.Context) (ReconcileResult, error) {
	if !k.following.mu.TryLock() { // one is under way, or hangs: passes must not pile up behind it
		return ReconcileResult{}, nil
	}
	defer k.following.mu.Unlock()
	// The changes first: what reconciles all pools may use up the time, again
	// and again while one node of a Cluster is silent.
	result, untold := k.tellChanges(ctx)
	reconciled, lost := k.afterOutage(ctx)
	result.add(reconciled)
	return result, errors.Join(untold, lost)
}

// afterOutage reconciles each pool once the semaphore answers for it again: it may
// have forgotten or missed anything. A node that does not answer is asked again by the
// next pass, and costs the ledger nothing.
func (k *Keeper) afterOutage(ctx context.Context) (ReconcileResult, error) {
	f := k.following
	if outages := k.config.Semaphore.Outages(); outages != f.outages {
		if err := k.suspectAll(ctx); err != nil {
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
			failed = err // one will do: there may be thousands
		}
	}
	return total, failed
}

func (k *Keeper) suspectAll(ctx context.Context) error {
	for after := ""; ; {
		pools, err := k.config.Ledger.Pools(ctx, after, poolsPerPage)
		if err != nil {
			return fmt.Errorf("reading pools: %w", err)
		}
		for _, pool := range pools {
			k.following.suspect[pool.Name] = true
			after = pool.Name
		}
		if len(pools) < poolsPerPage {
			return nil
		}
	}
}

// tellChanges tells the semaphore of pools that were changed lately.
func (k *Keeper) tellChanges(ctx context.Context) (ReconcileResult, error) {
	f := k.following
	if err := k.readChanges(ctx); err != nil {
		return ReconcileResult{}, err
	}
	var total ReconcileResult
	var errs []error
	for pool, version := range f.untold {
		result, err := k.tell(ctx, pool, version)
		total.add(result)
		switch {
		case err != nil:
			errs = append(errs, err)
		case result.Waiting == 0:
			f.told[pool] = version
			delete(f.untold, pool)
		}
	}
	return total, errors.Join(errs...)
}

// readChanges notes which pools the semaphore has still to be told of. What
// left the reading is forgotten.
func (k *Keeper) readChanges(ctx context.Context) error {
	f := k.following
	asked, within := k.config.Now(), changeOverlap
	if !f.read.IsZero() {
		within += asked.Sub(f.read)
	}
	changed, err := k.config.Ledger.ChangedPools(ctx, within)
	if err != nil {
		return fmt.Errorf("reading changed pools: %w", err)
	}
	f.read = asked
	told := make(map[string]int64, len(changed))
	for _, p := range changed {
		if f.told[p.Name] == p.Version {
			told[p.Name] = p.Version
		} else {
			f.untold[p.Name] = p.Version
		}
	}
	f.told = told
	return nil
}

// tell makes a pool's version known, unless it is: mostly it is, for the replica that took
// the change told it, too. Of a pool that was deleted since there is nothing to
// tell.
func (k *Keeper) tell(ctx context.Context, pool string, version int64) (ReconcileResult, error) {
	known, err := k.config.Semaphore.Snapshot(ctx, pool)
	if err != nil {
		return ReconcileResult{}, fmt.Errorf("reading the slots of pool %s: %w", pool, err)
	}
	if known.Known && known.Version >= version {
		return ReconcileResult{}, nil
	}
	result, err := k.ReconcilePool(ctx, pool)
	if errors.Is(err, store.ErrNotFound) {
		return ReconcileResult{}, nil
	}
	return result, err
}
