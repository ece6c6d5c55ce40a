package web

import (
	"context"
	"sync"
	"time"
)

// latelyMost is the maximum number of entries of a cache.
const latelyMost = 64

// lately caches data about the past that was read recently. Open pages are rendered again with each
// event, but their data of the last hours and days hardly changes between two events.
type lately[T any] struct {
	each  time.Duration // lifetime of an entry
	keeps func(T) bool  // reports whether a value is cached; nil means always
	mu    sync.Mutex
	kept  map[string]reading[T]
}

type reading[T any] struct {
	at    time.Time
	value T
}

func newLately[T any](each time.Duration) *lately[T] {
	return &lately[T]{each: each, kept: map[string]reading[T]{}}
}

// read returns the cached value of name, or reads it.
func (l *lately[T]) read(ctx context.Context, name string, now time.Time, read func(context.Context) (T, error)) (T, error) {
	l.mu.Lock()
	found, known := l.kept[name]
	l.mu.Unlock()
	if age := now.Sub(found.at); known && age >= 0 && age < l.each {
		return found.value, nil
	}
	value, err := read(ctx)
	if err != nil {
		return value, err
	}
	if l.keeps != nil && !l.keeps(value) {
		return value, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.kept) >= latelyMost {
		clear(l.kept)
	}
	l.kept[name] = reading[T]{now, value}
	return value, nil
}
