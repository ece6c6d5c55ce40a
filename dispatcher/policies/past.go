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
	rebuildLimit = 30 * time.Minute // for reading what a pool started: some 40 million starts
	rebuildWait  = 3 * time.Second  // that reports wait for it, from its beginning
	pastPage     = 500              // starts read at once: each may have a payload
	pastDisorder = time.Minute      // by which starts may be out of the order of their tokens
	recentStarts = 40 * time.Second // that are counted again, in case nobody could
	settleMargin = 10 * time.Second // of these, since a pass takes its time
)

// learn finds out what keeps policies from being believed; again: ask them
// again.
func (k *Checker) learn(ctx context.Context, pool string, checks []limits.Check, answers []limits.Answer) (again bool, err error) {
	for i, a := range answers {
		switch a.Status {
		case limits.StatusUnknown:
			return true, k.rebuild(ctx, pool, checks[i].Items[a.Item].Rule.Owner, rulesOf(checks[i].Items))
		case limits.StatusUnsettled:
			return true, k.settleOverdue(ctx, pool)
		}
	}
	return false, nil
}

func rulesOf(items []limits.Item) (rules []*limits.Rule) {
	for _, item := range items {
		rules = append(rules, item.Rule)
	}
	return rules
}

// rebuild fills the rules of one owner from what started, once for all
// reports that need it. It goes on when a report cannot wait any longer.
func (k *Checker) rebuild(ctx context.Context, pool, owner string, rules []*limits.Rule) error {
	var own []*limits.Rule
	for _, r := range rules {
		if r.Owner == owner {
			own = append(own, r)
		}
	}
	what := "limits of " + owner + " in " + pool
	done := k.rebuilding.DoChan(what, func() (any, error) {
		k.filling.Store(what, k.config.Now())
		defer k.filling.Delete(what)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rebuildLimit)
		defer cancel()
		return nil, k.config.Panicked.Tell("filling limits", rescue.Call(func() error { // singleflight would end the process
			return k.config.Limits.Rebuilder.Rebuild(ctx, pool, own, k.pastOf(pool, owner))
		}))
	})
	wait := time.NewTimer(k.waits(what))
	defer wait.Stop()
	select {
	case result := <-done:
		return result.Err
	case <-wait.C:
		return fmt.Errorf("limits of %s: %w", owner, limits.ErrBusy)
	case <-ctx.Done():
		return fmt.Errorf("limits of %s: %w", owner, ctx.Err())
	}
}

// waits is how long a report waits for rules that are being filled: when that takes
// long, nobody waits any more: the number of reports under way is bounded.
func (k *Checker) waits(what string) time.Duration {
	since, ok := k.filling.Load(what)
	began, _ := since.(time.Time)
	if !ok {
		return rebuildWait
	}
	return rebuildWait - k.config.Now().Sub(began)
}

// pastOf reads what started for an owner: a pool, or a batch or a profile in it.
func (k *Checker) pastOf(pool, owner string) limits.History {
	return func(ctx context.Context, within time.Duration) iter.Seq2[limits.Start, error] {
		return func(yield func(limits.Start, error) bool) {
			for s, err := range k.startsOf(ctx, pool, within) {
				if err != nil {
					yield(limits.Start{}, err)
					return
				}
				if !slices.Contains([]string{poolOwner(pool), batchOwner(s.Batch), profileOwner(s.Profile)}, owner) {
					continue
				}
				if !yield(limits.Start{Lease: s.Lease, Ago: s.Now.Sub(s.GrantedAt), Facts: factsOfStart(s)}, nil) {
					return
				}
			}
		}
	}
}

// startsOf reads what started in a pool of late, the newest first.
func (k *Checker) startsOf(ctx context.Context, pool string, within time.Duration) iter.Seq2[store.Start, error] {
	return func(yield func(store.Start, error) bool) {
		for before := int64(0); ; {
			page, err := k.config.Ledger.Starts(ctx, pool, before, pastPage)
			if err != nil {
				yield(store.Start{}, err)
				return
			}
			for _, s := range page {
				ago := s.Now.Sub(s.GrantedAt)
				if ago > within+pastDisorder {
					return
				}
				if ago <= within && !yield(s, nil) {
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

func factsOfStart(s store.Start) limits.Facts {
	return limits.Facts{
		Device: s.Device, Pool: s.Pool, Kind: s.Kind, Batch: s.Batch,
		Tags: s.Tags, Attributes: s.Attributes, Payload: s.Payload,
	}
}

// checkOfStart is the check that a start must have passed.
func (k *Checker) checkOfStart(s store.Start) (limits.Check, error) {
	rules, err := k.rules.of(sources{
		pool: s.Pool, batch: s.Batch, profile: s.Profile, ofPool: s.PoolLimits, ofBatch: s.Limits, ofProfile: s.ProfileLimits,
	})
	return limits.NewCheck(s.Lease, "", rules, factsOfStart(s)), err
}

// settleOverdue finds out what became of reservations that nobody settled.
func (k *Checker) settleOverdue(ctx context.Context, pool string) error {
	leases, err := k.config.Limits.Reservations.Overdue(ctx, pool)
	if err != nil {
		return err
	}
	for _, lease := range leases {
		if err := k.settleLease(ctx, pool, lease); err != nil {
			return fmt.Errorf("settling %s: %w", lease, err)
		}
	}
	return nil
}

func (k *Checker) settleLease(ctx context.Context, pool, lease string) error {
	number, _, _ := strings.Cut(lease, ".")
	task, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return fmt.Errorf("lease %q: %w", lease, err)
	}
	start, err := k.config.Ledger.StartOf(ctx, task, lease)
	if errors.Is(err, store.ErrNotFound) {
		return k.config.Limits.Reservations.Release(ctx, pool, []limits.Check{{Lease: lease}})
	}
	if err != nil {
		return err
	}
	c, err := k.checkOfStart(start)
	if err != nil {
		return err
	}
	return k.config.Limits.Reservations.Count(ctx, pool, []limits.Check{c}, start.Now.Sub(start.GrantedAt))
}

// Result counts what a pass over the limits did.
type Result struct {
	Pools   int // with policies
	Counted int // starts that were looked at
	Doubted int // rules that are filled anew: too long ago something started that they did not count
}

// SettleAll settles, in all pools with policies, what a replica reserved or
// started and could not settle: it ended, or Redis failed. Safe on every replica at
// once.
func (k *Checker) SettleAll(ctx context.Context) (Result, error) {
	var result Result
	if k.config.Limits == nil {
		return result, nil
	}
	owners, err := k.config.Ledger.Limited(ctx)
	if err != nil {
		return result, fmt.Errorf("reading who has policies: %w", err)
	}
	pools := make(map[string]bool)
	for _, o := range owners {
		pools[o.Pool] = true
	}
	limited := maps.Clone(pools)
	k.limited.Store(&limited)
	for _, pool := range k.uncounted.names() { // also where the policies were taken away since
		pools[pool] = true
	}
	errs := []error{k.config.Limits.Usage.Publish(ctx), k.config.Limits.Refusals.Publish(ctx)}
	for pool := range pools {
		result.Pools++
		errs = append(errs, k.settlePool(ctx, pool, &result))
	}
	return result, errors.Join(errs...)
}

// settlePool counts what was not. A rule that missed older starts than those that are
// counted here can only be filled anew.
func (k *Checker) settlePool(ctx context.Context, pool string, result *Result) error {
	missed, found := k.uncounted.take(pool)
	old := found && k.config.Now().Sub(missed.since) > recentStarts-settleMargin
	err := k.settleRecent(ctx, pool, result)
	if err == nil && old {
		result.Doubted += len(missed.rules)
		err = k.config.Limits.Rebuilder.Forget(ctx, pool, slices.Collect(maps.Keys(missed.rules)))
	}
	if err != nil && found {
		k.uncounted.put(pool, missed)
	}
	return err
}

func (k *Checker) settleRecent(ctx context.Context, pool string, result *Result) error {
	if err := k.settleOverdue(ctx, pool); err != nil {
		return err
	}
	for s, err := range k.startsOf(ctx, pool, recentStarts) {
		if err != nil {
			return err
		}
		c, err := k.checkOfStart(s)
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

// Top returns who was refused most in a pool, in this hour and the one before.
func (k *Checker) Top(ctx context.Context, pool string, limit int) ([]limits.Limited, error) {
	if k.config.Limits == nil {
		return nil, nil
	}
	return k.config.Limits.Refusals.Top(ctx, pool, limit)
}
