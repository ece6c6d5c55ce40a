package policies

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/store"
)

// Usage is how much a device used, in a pool, of the policies of the pool and of its profile. Those
// that count by kind, batch or payload are left out: they are of tasks.
func (k *Checker) Usage(ctx context.Context, pool store.Pool, device store.Device, ofProfile json.RawMessage) ([]limits.Use, error) {
	rules, err := k.rules.of(sources{pool: pool.Name, ofPool: pool.Limits, profile: device.Profile, ofProfile: ofProfile})
	if err != nil || k.config.Limits == nil {
		return nil, err
	}
	rules = slices.DeleteFunc(slices.Clone(rules), countsTasks)
	facts := limits.Facts{Pool: pool.Name, Device: device.ID, Tags: device.Tags, Attributes: device.Attributes}
	uses := make([]limits.Use, len(rules))
	items := itemsOf(rules, facts)
	standings, err := k.standings(ctx, pool.Name, items)
	for i, s := range standings {
		uses[i] = limits.Use{Item: items[i], Standing: s}
	}
	return uses, err
}

// Highest are up to limit subjects of a pool that used most of its policies.
func (k *Checker) Highest(ctx context.Context, pool store.Pool, limit int) ([]limits.Use, error) {
	rules, err := k.rules.of(sources{pool: pool.Name, ofPool: pool.Limits})
	if err != nil || len(rules) == 0 || k.config.Limits == nil {
		return nil, err
	}
	if _, err := k.standings(ctx, pool.Name, itemsOf(rules, limits.Facts{})); err != nil {
		return nil, err
	}
	return k.config.Limits.Highest(ctx, pool.Name, rules, limit)
}

func countsTasks(r *limits.Rule) bool {
	return slices.ContainsFunc(r.Fields(), func(field string) bool {
		group, _, _ := strings.Cut(field, ".")
		return !slices.Contains([]string{"device", "pool", "tags", "attributes"}, group)
	})
}

func itemsOf(rules []*limits.Rule, facts limits.Facts) []limits.Item {
	items := make([]limits.Item, len(rules))
	for i, r := range rules {
		items[i] = limits.Item{Rule: r, Subject: r.Subject(facts)}
	}
	return items
}

// standings are those of subjects, when need be after filling rules that Redis does not know.
func (k *Checker) standings(ctx context.Context, pool string, items []limits.Item) ([]limits.Standing, error) {
	for mends := 0; ; mends++ {
		all, err := k.config.Limits.Usage(ctx, pool, items)
		unknown := slices.IndexFunc(all, func(s limits.Standing) bool { return s.Unknown })
		if err != nil || unknown < 0 {
			return all, err
		}
		if mends == mostRepairs {
			return nil, fmt.Errorf("limits of %s: %w", items[unknown].Rule.Owner, limits.ErrBusy)
		}
		if err := k.rebuild(ctx, pool, items[unknown].Rule.Owner, rulesOf(limits.Check{Items: items})); err != nil {
			return nil, err
		}
	}
}
