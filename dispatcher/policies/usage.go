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

// Usage returns the usage of a device in a pool, for each policy of the pool and of the device's profile. profilePolicies is nil if the
// profile has none. Usage leaves out policies that count by kind, batch or payload, because their subjects depend on a task.
func (k *Checker) Usage(ctx context.Context, pool store.Pool, device store.Device, profilePolicies json.RawMessage) ([]limits.SubjectUse, error) {
	rules, err := k.ruleCache.compiledRules(startPolicies{pool: pool.Name, ofPool: pool.Limits, profile: device.Profile, ofProfile: profilePolicies})
	if err != nil || k.config.Limits == nil {
		return nil, err
	}
	rules = slices.DeleteFunc(slices.Clone(rules), subjectDependsOnTask)
	facts := limits.Facts{Pool: pool.Name, Device: device.ID, Tags: device.Tags, Attributes: device.Attributes}
	return k.readUses(ctx, pool.Name, limits.NewItems(rules, facts))
}

// HighestUses returns at most limit subjects of a pool, those with the highest usage relative to the maximum of a policy of the pool.
func (k *Checker) HighestUses(ctx context.Context, pool store.Pool, limit int) ([]limits.SubjectUse, error) {
	rules, err := k.ruleCache.compiledRules(startPolicies{pool: pool.Name, ofPool: pool.Limits})
	if err != nil || len(rules) == 0 || k.config.Limits == nil {
		return nil, err
	}
	if _, err := k.readUses(ctx, pool.Name, limits.NewItems(rules, limits.Facts{})); err != nil {
		return nil, err
	}
	return k.config.Limits.Usage.HighestUses(ctx, pool.Name, rules, limit)
}

// subjectDependsOnTask reports whether rule counts by a property of the task, such as its kind or batch.
func subjectDependsOnTask(rule *limits.Rule) bool {
	return slices.ContainsFunc(rule.Fields(), func(field string) bool {
		group, _, _ := strings.Cut(field, ".")
		return !slices.Contains([]string{"device", "pool", "tags", "attributes"}, group)
	})
}

// readUses returns the current usage of the subject of each item. If Redis lacks the counts of a rule, readUses first rebuilds them from the
// ledger.
func (k *Checker) readUses(ctx context.Context, pool string, items []limits.Item) ([]limits.SubjectUse, error) {
	for repairs := 0; ; repairs++ {
		uses, err := k.config.Limits.Usage.ReadUses(ctx, pool, items)
		if err != nil || !slices.ContainsFunc(uses, func(u limits.SubjectUse) bool { return u.Unknown }) {
			return uses, err
		}
		if repairs == maxRepairs {
			return nil, fmt.Errorf("reading the usage of pool %s: %w", pool, limits.ErrBusy)
		}
		if err := k.rebuildRules(ctx, pool, rulesOfItems(items)); err != nil {
			return nil, err
		}
	}
}
