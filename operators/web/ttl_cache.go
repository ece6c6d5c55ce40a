package web

import (
	"context"
	"sync"
	"time"
)

// maxCacheEntries is the maximum number of entries of a cache.
const maxCacheEntries = 64

// ttlCache caches data that is expensive to read and changes slowly, such as the last hours and days of a pool.
// Open pages are read again after each event. This data is read again only when its entry is older than ttl.
type ttlCache[T any] struct {
	ttl     time.Duration // lifetime of an entry
	mayKeep func(T) bool  // reports whether a value is cached; nil means always
	mu      sync.Mutex
	entries map[string]cacheEntry[T]
}

// cacheEntry is a cached value and the time at which it was read.
type cacheEntry[T any] struct {
	readAt time.Time
	value  T
}

// newTTLCache returns an empty cache whose entries are valid for ttl.
func newTTLCache[T any](ttl time.Duration) *ttlCache[T] {
	return &ttlCache[T]{ttl: ttl, entries: map[string]cacheEntry[T]{}}
}

// getOrRead returns the cached value of key, if it is valid at the time now. If there is none, it calls read for the value. It does not
// cache an error. Concurrent calls for the same key may each read the value.
func (l *ttlCache[T]) getOrRead(ctx context.Context, key string, now time.Time, read func(context.Context) (T, error)) (T, error) {
	l.mu.Lock()
	found, ok := l.entries[key]
	l.mu.Unlock()
	if age := now.Sub(found.readAt); ok && age >= 0 && age < l.ttl {
		return found.value, nil
	}
	value, err := read(ctx)
	if err != nil {
		return value, err
	}
	if l.mayKeep != nil && !l.mayKeep(value) {
		return value, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) >= maxCacheEntries {
		clear(l.entries)
	}
	l.entries[key] = cacheEntry[T]{now, value}
	return value, nil
}
