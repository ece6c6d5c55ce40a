package web

import (
	"context"
	"sync"
	"time"
)

// latelyMost are kept.
const latelyMost = 64

// lately keeps what was read of the past a moment ago: open pages are rendered again with
// each event, and what they show of hours and days hardly changes meanwhile.
type lately[T any] struct {
	each  time.Duration // it is read anew after that
	keeps func(T) bool  // whether it is kept; nil: always
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

// read returns what was read under that name, or reads it.
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
