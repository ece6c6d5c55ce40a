package store

import (
	"context"
	"encoding/json"
	"time"
)

// LimitSet is a set of policies by which callers limit what they do.
type LimitSet Profile

func ofCallers() policyLists {
	return policyLists{"limit_sets", "limit_set", "limit_set.created", "limit_set.changed", "limit_set.deleted"}
}

// LimitSet returns one set; ErrNotFound.
func (s profiles) LimitSet(ctx context.Context, name string) (LimitSet, error) {
	found, err := s.read().profiles().named(ctx, ofCallers(), name, "")
	return LimitSet(found), err
}

// LimitSets returns up to limit sets by name, those after the one named.
func (s profiles) LimitSets(ctx context.Context, after string, limit int) ([]LimitSet, error) {
	found, err := s.read().profiles().list(ctx, ofCallers(), after, limit)
	sets := make([]LimitSet, len(found))
	for i, one := range found {
		sets[i] = LimitSet(one)
	}
	return sets, err
}

// PutLimitSet creates a set or replaces its policies, which must be valid. Without a change
// nothing is written and the version stays. With dry it finds out all and changes nothing.
func (s profiles) PutLimitSet(ctx context.Context, actor, name string, limits json.RawMessage, dry bool) (set LimitSet, created bool, err error) {
	put, created, err := s.put(ctx, ofCallers(), actor, name, limits, dry)
	return LimitSet(put), created, err
}

// DeleteLimitSet takes a set away. ErrNotFound.
func (s profiles) DeleteLimitSet(ctx context.Context, actor, name string) error {
	return s.remove(ctx, ofCallers(), actor, name, func(session) error { return nil })
}

// LimitSetVersion tells a set from what it was: one that was deleted and made anew begins with
// version 1 again.
type LimitSetVersion struct {
	Name      string
	Version   int64
	CreatedAt time.Time
}

// LimitSetVersions returns the present versions of these sets; those that are gone are left out.
func (s profiles) LimitSetVersions(ctx context.Context, sets []string) ([]LimitSetVersion, error) {
	return collect(ctx, s.read(), func(v *LimitSetVersion) []any { return []any{&v.Name, &v.Version, instant{&v.CreatedAt}} },
		`SELECT s.name, s.version, s.created_at FROM {names} JOIN limit_sets s ON s.name = names.name`, names(sets))
}
