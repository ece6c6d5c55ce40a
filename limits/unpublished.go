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

// change calls update with the value of a key of the scope (a pool or limit set), or with the zero value if there is none, and stores the
// result of update. It returns the number of keys of the scope.
func (u *unpublished[T]) change(scopeName, key string, update func(T) T) (keys int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = make(map[string]map[string]T)
	}
	values := u.all[scopeName]
	if values == nil {
		values = make(map[string]T)
		u.all[scopeName] = values
	}
	values[key] = update(values[key])
	return len(values)
}

// take returns the values of a scope (a pool or limit set), by key, and deletes them.
func (u *unpublished[T]) take(scopeName string) map[string]T {
	u.mu.Lock()
	defer u.mu.Unlock()
	values := u.all[scopeName]
	delete(u.all, scopeName)
	return values
}

// publish calls publishScope for each scope (pool or limit set) that has values. publishScope must call take, which deletes these values.
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
