package limits

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
)

// maxLabels is the maximum number of subjects that are kept for display. It applies to each hour in Redis, to each scope in this process, and to
// each rule.
const maxLabels = 256

// unpublished contains counts for display until they are published to Redis. So no check or take waits for the publication.
type unpublished[T any] struct {
	mu  sync.Mutex
	all map[string]map[string]T // scope -> key -> count
}

// updateValue replaces the value of a key in a scope with the result of update, and returns keyCount, the number of keys of the scope.
func (u *unpublished[T]) updateValue(scopeName, key string, update func(T) T) (keyCount int) {
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

// removeScope removes and returns the values of a scope, by key.
func (u *unpublished[T]) removeScope(scopeName string) (values map[string]T) {
	u.mu.Lock()
	defer u.mu.Unlock()
	values = u.all[scopeName]
	delete(u.all, scopeName)
	return values
}

// publish calls publishScope for each scope that has values. publishScope must call removeScope.
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
