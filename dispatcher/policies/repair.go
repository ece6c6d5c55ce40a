package policies

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/store"
)

const (
	rebuildLimit = 30 * time.Minute // maximum duration of a rebuild: enough for about 40 million starts
	rebuildWait  = 3 * time.Second  // maximum time that reports wait for a rebuild, counted from the beginning of the rebuild
	pastPage     = 500              // starts read by one query; limited because each start may have a payload
	pastDisorder = time.Minute      // maximum time by which a start with a lower token can be later than a start with a higher token
	recentStarts = 40 * time.Second // maximum age of the starts that SettleAllReservations counts again; Count ignores a repetition within a minute
	settleMargin = 10 * time.Second // part of recentStarts that is left for the duration of the pass
)

// repairLimiterState rebuilds unknown rules or settles overdue reservations. Both prevent Redis from answering checks. If mustRetry is true, the
// caller must send the checks again.
func (k *Checker) repairLimiterState(ctx context.Context, pool string, checks []limits.Check, answers []limits.Answer) (mustRetry bool, err error) {
	var rules []*limits.Rule
	for i, a := range answers {
		switch a.Status {
		case limits.StatusUnknown:
			rules = append(rules, rulesOfItems(checks[i].Items)...)
		case limits.StatusUnsettled:
			return true, k.settleOverdueReservations(ctx, pool)
		}
	}
	return len(rules) > 0, k.rebuildRules(ctx, pool, rules)
}

func rulesOfItems(items []limits.Item) (rules []*limits.Rule) {
	for _, item := range items {
		rules = append(rules, item.Rule)
	}
	return rules
}

// rebuildRules rebuilds the counts of rules, which Redis does not know. All rules count starts in one pool. The owners of the rules are handled
// concurrently, so that together they take at most rebuildWait.
func (k *Checker) rebuildRules(ctx context.Context, pool string, rules []*limits.Rule) error {
	rulesByOwner := make(map[string][]*limits.Rule)
	for _, r := range rules {
		own := rulesByOwner[r.Owner]
		if !slices.ContainsFunc(own, func(o *limits.Rule) bool { return o.Name == r.Name }) {
			rulesByOwner[r.Owner] = append(own, r)
		}
	}
	var group rescue.Group
	for owner, own := range rulesByOwner {
		group.Go(func() error { return k.rebuildRulesOfOwner(ctx, pool, owner, own) })
	}
	return group.Wait()
}

// rebuildRulesOfOwner reads the past starts of a pool from the ledger, and counts them in Redis for own, the rules of ruleOwner. Concurrent
// reports share one rebuild. The rebuild continues after the reports have stopped waiting for it.
func (k *Checker) rebuildRulesOfOwner(ctx context.Context, pool, ruleOwner string, own []*limits.Rule) error {
	what := "limits of " + ruleOwner + " in " + pool
	done := k.rebuilding.DoChan(what, func() (any, error) {
		k.filling.Store(what, k.config.Now())
		defer k.filling.Delete(what)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rebuildLimit)
		defer cancel()
		return nil, k.config.Panicked.Report("filling limits", rescue.Call(func() error { // a panic inside singleflight would end the process
			return k.config.Limits.Rebuilder.Rebuild(ctx, pool, own, k.newGrantHistory(pool, ruleOwner))
		}))
	})
	wait := time.NewTimer(k.timeLeftForRebuild(what))
	defer wait.Stop()
	select {
	case result := <-done:
		return result.Err
	case <-wait.C:
		return fmt.Errorf("waiting for the limits of %s: %w", ruleOwner, limits.ErrBusy)
	case <-ctx.Done():
		return fmt.Errorf("waiting for the limits of %s: %w", ruleOwner, ctx.Err())
	}
}

// timeLeftForRebuild returns how long a report may still wait for the rebuild with this name. No report waits after a rebuild has run for
// rebuildWait, because the number of concurrent reports is limited.
func (k *Checker) timeLeftForRebuild(rebuildName string) time.Duration {
	since, ok := k.filling.Load(rebuildName)
	began, _ := since.(time.Time)
	if !ok {
		return rebuildWait
	}
	return rebuildWait - k.config.Now().Sub(began)
}

// newGrantHistory returns the history of the starts in a pool that count for the rules of ruleOwner. ruleOwner is the pool, a batch or a
// profile.
func (k *Checker) newGrantHistory(pool, ruleOwner string) limits.History {
	return func(ctx context.Context, within time.Duration) iter.Seq2[limits.Start, error] {
		return func(yield func(limits.Start, error) bool) {
			for s, err := range k.readPoolStarts(ctx, pool, within) {
				if err != nil {
					yield(limits.Start{}, err)
					return
				}
				if !slices.Contains([]string{ruleOwnerOfPool(pool), ruleOwnerOfBatch(s.Batch), ruleOwnerOfProfile(s.Profile)}, ruleOwner) {
					continue
				}
				if !yield(limits.Start{Lease: s.LeaseID, Ago: s.Now.Sub(s.GrantedAt), Facts: factsOfStart(s)}, nil) {
					return
				}
			}
		}
	}
}

// readPoolStarts returns the starts in a pool that are not older than maxAge, newest first.
func (k *Checker) readPoolStarts(ctx context.Context, pool string, maxAge time.Duration) iter.Seq2[store.GrantStart, error] {
	return func(yield func(store.GrantStart, error) bool) {
		for before := int64(0); ; {
			page, err := k.config.Ledger.Starts(ctx, pool, before, pastPage)
			if err != nil {
				yield(store.GrantStart{}, err)
				return
			}
			for _, s := range page {
				ago := s.Now.Sub(s.GrantedAt)
				if ago > maxAge+pastDisorder {
					return
				}
				if ago <= maxAge && !yield(s, nil) {
					return
				}
			}
			if len(page) < pastPage {
				return
			}
			before = page[len(page)-1].Token
		}
	}
}

func factsOfStart(pastStart store.GrantStart) limits.Facts {
	return limits.Facts{
		Device: pastStart.Device, Pool: pastStart.Pool, Kind: pastStart.Kind, Batch: pastStart.Batch,
		Tags: pastStart.Tags, Attributes: pastStart.Attributes, Payload: pastStart.Payload,
	}
}

// newCheckOfPastStart returns the check that allowed a past start. With it, the start can be counted again.
func (k *Checker) newCheckOfPastStart(pastStart store.GrantStart) (limits.Check, error) {
	rules, err := k.ruleCache.compiledRules(startPolicies{
		pool: pastStart.Pool, batch: pastStart.Batch, profile: pastStart.Profile, ofPool: pastStart.PoolLimits, ofBatch: pastStart.Limits, ofProfile: pastStart.ProfileLimits,
	})
	return limits.NewCheck(pastStart.LeaseID, "", rules, factsOfStart(pastStart)), err
}

// settleOverdueReservations settles the overdue reservations of a pool. It reads from the ledger which of them led to a start.
func (k *Checker) settleOverdueReservations(ctx context.Context, pool string) error {
	leases, err := k.config.Limits.Reservations.Overdue(ctx, pool)
	if err != nil {
		return err
	}
	for _, lease := range leases {
		if err := k.settleReservationsOfLease(ctx, pool, lease); err != nil {
			return fmt.Errorf("settling the reservation %s: %w", lease, err)
		}
	}
	return nil
}

func (k *Checker) settleReservationsOfLease(ctx context.Context, pool, leaseID string) error {
	number, _, _ := strings.Cut(leaseID, ".")
	task, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return fmt.Errorf("parsing lease %q: %w", leaseID, err)
	}
	start, err := k.config.Ledger.StartByLease(ctx, task, leaseID)
	if errors.Is(err, store.ErrNotFound) {
		return k.config.Limits.Reservations.Release(ctx, pool, []limits.Check{{Lease: leaseID}})
	}
	if err != nil {
		return err
	}
	c, err := k.newCheckOfPastStart(start)
	if err != nil {
		return err
	}
	return k.config.Limits.Reservations.Count(ctx, pool, []limits.Check{c}, start.Now.Sub(start.GrantedAt))
}

// SettleResult counts the work of one SettleAllReservations call.
type SettleResult struct {
	Pools       int // pools with policies or with uncounted starts
	Counted     int // recent starts that were counted again
	Invalidated int // rules whose counts will be filled again, because they missed a start that is too old to be counted again
}

// SettleAllReservations settles, in all pools with policies, the reservations and starts that a replica could not settle, because the replica
// died or Redis failed.
func (k *Checker) SettleAllReservations(ctx context.Context) (SettleResult, error) {
	var result SettleResult
	if k.config.Limits == nil {
		return result, nil
	}
	owners, err := k.config.Ledger.PolicyOwners(ctx)
	if err != nil {
		return result, fmt.Errorf("reading the owners of policies: %w", err)
	}
	pools := make(map[string]bool)
	for _, o := range owners {
		pools[o.Pool] = true
	}
	limited := maps.Clone(pools)
	k.poolsWithPolicies.Store(&limited)
	for _, pool := range k.uncounted.poolNames() { // includes pools whose policies were removed since
		pools[pool] = true
	}
	errs := []error{k.config.Limits.Usage.Publish(ctx), k.config.Limits.Refusals.Publish(ctx)}
	for pool := range pools {
		result.Pools++
		errs = append(errs, k.settlePool(ctx, pool, &result))
	}
	return result, errors.Join(errs...)
}

// settlePool settles the overdue reservations of a pool, and counts its recent starts again. If a rule may have missed an older start,
// settlePool makes the rule unknown. The next check then rebuilds its counts from the ledger.
func (k *Checker) settlePool(ctx context.Context, pool string, result *SettleResult) error {
	missed, found := k.uncounted.removeMissedRules(pool)
	old := found && k.config.Now().Sub(missed.since) > recentStarts-settleMargin
	err := k.countRecentStartsAgain(ctx, pool, result)
	if err == nil && old {
		result.Invalidated += len(missed.rules)
		err = k.config.Limits.Rebuilder.Forget(ctx, pool, slices.Collect(maps.Keys(missed.rules)))
	}
	if err != nil && found {
		k.uncounted.addMissedRules(pool, missed)
	}
	return err
}

func (k *Checker) countRecentStartsAgain(ctx context.Context, pool string, result *SettleResult) error {
	if err := k.settleOverdueReservations(ctx, pool); err != nil {
		return err
	}
	for s, err := range k.readPoolStarts(ctx, pool, recentStarts) {
		if err != nil {
			return err
		}
		c, err := k.newCheckOfPastStart(s)
		if err != nil {
			return err
		}
		if err := k.config.Limits.Reservations.Count(ctx, pool, []limits.Check{c}, s.Now.Sub(s.GrantedAt)); err != nil {
			return err
		}
		result.Counted++
	}
	return nil
}

// TopRefused returns at most limit subjects of a pool whose starts were refused most often in the current and the previous hour.
func (k *Checker) TopRefused(ctx context.Context, pool string, limit int) ([]limits.RefusedSubject, error) {
	if k.config.Limits == nil {
		return nil, nil
	}
	return k.config.Limits.Refusals.MostRefused(ctx, pool, limit)
}
