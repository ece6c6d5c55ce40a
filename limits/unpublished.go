package limits

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
)

// maxLabels is the maximum number of labels (texts for display that name subjects) that are kept. It applies
// to refusals in each hour in Redis, to refusals in this process that are not yet published, and to the uses
// of each rule.
const maxLabels = 256

// unpublished contains counts of this process that are only for display, until they are published to Redis.
// The map all has them by scope and then by key. Checks and takes do not wait for the publication.
type unpublished[T any] struct {
	mu  sync.Mutex
	all map[string]map[string]T // scope -> key -> count
}

// change calls f with the value of a key of the scope, or with the zero value if there is none, and stores
// the result of f. It returns the number of keys of the scope.
func (u *unpublished[T]) change(scope, key string, f func(T) T) (keys int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = make(map[string]map[string]T)
	}
	values := u.all[scope]
	if values == nil {
		values = make(map[string]T)
		u.all[scope] = values
	}
	values[key] = f(values[key])
	return len(values)
}

// take returns the values of a scope and deletes them.
func (u *unpublished[T]) take(scope string) map[string]T {
	u.mu.Lock()
	defer u.mu.Unlock()
	values := u.all[scope]
	delete(u.all, scope)
	return values
}

// publish calls publishScope for each scope that has values. publishScope must call take, which deletes these
// values.
func (u *unpublished[T]) publish(ctx context.Context, publishScope func(ctx context.Context, scope string) error) error {
	u.mu.Lock()
	scopes := slices.Collect(maps.Keys(u.all))
	u.mu.Unlock()
	var errs []error
	for _, scope := range scopes {
		errs = append(errs, publishScope(ctx, scope))
	}
	return errors.Join(errs...)
}
