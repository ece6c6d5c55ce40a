package limits

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
)

// maxLabels is the maximum number of labels (texts for display that name subjects) that are kept in each of these places: the refusals of
// one hour in Redis, the unpublished refusals of a scope in this process, and the uses of each rule.
const maxLabels = 256

// unpublished contains counts of this process that are only for display, until they are published to Redis. So checks and takes need not
// wait for the publication.
type unpublished[T any] struct {
	mu  sync.Mutex
	all map[string]map[string]T // scope -> key -> count
}

// change replaces the value of a key in a scope (a pool or limit set) with the result of update. update gets the present value, or the zero
// value if there is none. change returns the number of keys of the scope.
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

// publish calls publishScope for each scope (a pool or limit set) that has values. publishScope must call take, which returns and deletes
// these values.
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
