// Package reading lets many who want to know the same ask once.
package reading

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Shared is a reading that all who ask at about the same time share: at most
// one is under way, and its answer serves until it is too old. It is safe for
// concurrent use.
type Shared[T any] struct {
	read  func(context.Context) (T, error)
	fresh time.Duration // how old an answer may be, counted from its end
	limit time.Duration // of one reading
	now   func() time.Time

	mu   sync.Mutex
	last *answer[T]
}

type answer[T any] struct {
	done  chan struct{} // closed when the rest is there
	value T
	err   error
	at    time.Time
}

// New shares what read says. A reading is given the time of limit.
func New[T any](fresh, limit time.Duration, now func() time.Time, read func(context.Context) (T, error)) *Shared[T] {
	return &Shared[T]{read: read, fresh: fresh, limit: limit, now: now}
}

// Read returns an answer, or that ctx ended first. A reading that hangs is
// waited for by each caller as long as its own ctx allows, and none begins
// beside it. Values are shared: do not change them.
func (s *Shared[T]) Read(ctx context.Context) (T, error) {
	a := s.current()
	select {
	case <-a.done:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("waiting for a reading: %w", ctx.Err())
	}
}

// current is the answer to wait for: the last one unless it is too old.
func (s *Shared[T]) current() *answer[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.old(s.now(), s.fresh) {
		s.last = &answer[T]{done: make(chan struct{})}
		go s.fill(s.last)
	}
	return s.last
}

func (s *Shared[T]) fill(a *answer[T]) {
	defer close(a.done)
	ctx, cancel := context.WithTimeout(context.Background(), s.limit)
	defer cancel()
	a.value, a.err = s.read(ctx)
	a.at = s.now()
}

// old says that the answer is there and no longer good.
func (a *answer[T]) old(now time.Time, fresh time.Duration) bool {
	select {
	case <-a.done:
		return now.Sub(a.at) >= fresh
	default:
		return false
	}
}
