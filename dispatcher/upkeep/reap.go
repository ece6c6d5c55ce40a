package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

const (
	grantsPerReap = 200  // grants ended in one transaction
	partSize      = 1000 // waiting tasks ended, or windows refreshed, in one transaction
)

// These label values of a metric are the outcomes of a task whose lease has ended.
const (
	reapedRetried = "retried"
	reapedEnded   = "ended"
)

// ReapResult counts the tasks whose grants one pass ended.
type ReapResult struct {
	Retried int // tasks that are pending again
	Ended   int // tasks that ended
}

// Reap ends the grants of devices and callers whose lease is over. It deletes each grant from the ledger, and then frees its slot. If the
// replica stops between these steps, reconciliation frees the slot, but the counts and wake messages of the grant are lost.
func (k *Keeper) Reap(ctx context.Context) (ReapResult, error) {
	var result ReapResult
	lapses, err := k.readLapseCutoffs(ctx)
	if err != nil {
		return result, err
	}
	for more := len(lapses) > 0; more; {
		reaped, err := k.config.Ledger.Reap(ctx, lapses, grantsPerReap, k.config.DecideTaskState)
		k.releaseSlotsOfLeases(ctx, k.countReapedLeases(reaped, &result))
		k.wakeCallersOfReapedPools(reaped)
		if err != nil && len(reaped) == 0 { // only grants that cannot be ended are left
			return result, fmt.Errorf("reaping: %w", err)
		}
		more = len(reaped) > 0 && ctx.Err() == nil // continue even after a small batch: another replica may have ended a part of it
	}
	k.metrics.reaperSuccess.Set(float64(k.config.Now().Unix()))
	return result, nil
}

// releaseSlotsOfLeases frees the slots of the leases in all pools concurrently. So a semaphore that does not answer causes only one timeout.
func (k *Keeper) releaseSlotsOfLeases(ctx context.Context, leaseIDsByPool map[string][]string) {
	wait := rescue.ReportingGroup{OnPanic: k.config.Panicked}
	for pool, ended := range leaseIDsByPool {
		wait.Go("freeing slots", func() {
			k.config.Waiters.Slots.ReleaseEndedLeases(ctx, pool, ended...)
			k.config.Waiters.Filler.FillPool(pool)
		})
	}
	wait.Wait()
}

// wakeCallersOfReapedPools wakes waiting callers in each pool in which the grant of a caller was reaped.
func (k *Keeper) wakeCallersOfReapedPools(reaped []store.Reaped) {
	called := make(map[string]bool)
	for _, r := range reaped {
		if store.IsCaller(r.Grant.Device) && !called[r.Grant.Pool] {
			called[r.Grant.Pool] = true
			k.config.Waiters.Relay.WakeCallers(r.Grant.Pool)
		}
	}
}

// readLapseCutoffs reads the ledger's clock, and returns the trusted time for each length of a lease (see clockGuard.lapseCutoffsAfterReading).
// It also stores the times of both clocks for replicas that start later.
func (k *Keeper) readLapseCutoffs(ctx context.Context) (store.LapseCutoffs, error) {
	asked := k.config.Now()
	clock, err := k.config.Ledger.LeaseClock(ctx)
	if err != nil {
		return nil, err
	}
	answered := k.config.Now()
	lapses := k.guard.lapseCutoffsAfterReading(clock, asked, answered)
	if back := k.guard.takeClockStepBack(); back > clockSlack {
		k.config.Logger.WarnContext(ctx, "the database clock stepped back; leases that were granted before the step end later by this time", "by", back)
	}
	k.logClockTrust(ctx, clock.Now.Add(-answered.Sub(asked)), lapses)
	if pair, changed := k.guard.changedClockPair(clock.StoredPair, asked); changed {
		err = k.config.Ledger.StoreClockPair(ctx, pair)
	}
	return lapses, err
}

// logClockTrust logs when the ledger's clock is no longer trusted, and when it is trusted again. cutoffs are the trusted times. readingLow is
// the earliest time of the ledger that the reading allows. After a slow reading, the trusted times are low without a step of the clock.
func (k *Keeper) logClockTrust(ctx context.Context, readingLow time.Time, cutoffs store.LapseCutoffs) {
	distrusted := false
	for _, cutoff := range cutoffs {
		distrusted = distrusted || readingLow.Sub(cutoff) > clockSlack
	}
	switch {
	case k.loggedDistrust.Swap(distrusted) == distrusted:
	case distrusted:
		k.config.Logger.WarnContext(ctx, "the database clock is not trusted: it stepped, or was not read before this process; leases end by elapsed time")
	default:
		k.config.Logger.InfoContext(ctx, "the database clock is trusted again")
	}
}

// countReapedLeases adds reaped to result and to the metrics, and returns the ids of the ended leases by pool.
func (k *Keeper) countReapedLeases(reaped []store.Reaped, result *ReapResult) (leaseIDsByPool map[string][]string) {
	leaseIDsByPool = make(map[string][]string)
	for _, r := range reaped {
		outcome := reapedEnded
		if r.State == store.Pending {
			outcome = reapedRetried
			result.Retried++
		} else {
			result.Ended++
		}
		k.metrics.reaped.WithLabelValues(r.Grant.Pool, outcome).Inc()
		leaseIDsByPool[r.Grant.Pool] = append(leaseIDsByPool[r.Grant.Pool], r.Grant.LeaseID)
	}
	return leaseIDsByPool
}
