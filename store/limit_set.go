package store

import (
	"context"
	"encoding/json"
	"time"
)

// LimitSet is a named set of policies that callers ask directly, without a slot. One such request is called a take.
type LimitSet Profile

// limitSetTable describes the table of the limit sets.
func limitSetTable() policyTable {
	return policyTable{"limit_sets", "limit_set", "limit_set.created", "limit_set.changed", "limit_set.deleted"}
}

// LimitSet returns one limit set, or ErrNotFound.
func (s profiles) LimitSet(ctx context.Context, name string) (LimitSet, error) {
	found, err := s.readSession().profiles().readPolicyList(ctx, limitSetTable(), name, "")
	return LimitSet(found), err
}

// LimitSets returns at most limit limit sets with a name > afterName, in the order of names.
func (s profiles) LimitSets(ctx context.Context, afterName string, limit int) ([]LimitSet, error) {
	found, err := s.readSession().profiles().readPolicyListPage(ctx, limitSetTable(), afterName, limit)
	sets := make([]LimitSet, len(found))
	for i, one := range found {
		sets[i] = LimitSet(one)
	}
	return sets, err
}

// PutLimitSet creates a limit set or replaces its policies, which must be valid. created is true if the limit set is new. If nothing
// changes, nothing is written and the version stays. If dryRun is true, PutLimitSet checks everything and changes nothing.
func (s profiles) PutLimitSet(ctx context.Context, actor, name string, policies json.RawMessage, dryRun bool) (set LimitSet, created bool, err error) {
	put, created, err := s.putPolicyList(ctx, limitSetTable(), actor, name, policies, dryRun)
	return LimitSet(put), created, err
}

// DeleteLimitSet deletes a limit set, or returns ErrNotFound.
func (s profiles) DeleteLimitSet(ctx context.Context, actor, name string) error {
	return s.deletePolicyList(ctx, limitSetTable(), actor, name, func(session) error { return nil })
}

// LimitSetVersion identifies one state of a limit set. It includes CreatedAt, because the versions begin at 1 again if a limit set is
// deleted and created again.
type LimitSetVersion struct {
	Name      string
	Version   int64
	CreatedAt time.Time
}

// LimitSetVersions returns the present versions of the limit sets whose names are in sets. It leaves out limit sets that do not exist.
func (s profiles) LimitSetVersions(ctx context.Context, sets []string) ([]LimitSetVersion, error) {
	return collect(ctx, s.readSession(), func(v *LimitSetVersion) []any { return []any{&v.Name, &v.Version, &v.CreatedAt} },
		`SELECT s.name, s.version, s.created_at FROM {names} JOIN limit_sets s ON s.name = names.name`, namesInput(sets))
}
