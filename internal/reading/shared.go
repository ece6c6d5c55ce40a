// Package reading lets many who want to know the same ask once.
package reading

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Shared is a reading that all who ask at about the same time share: at most
// one is under way, and its answer serves until it is too old. It is safe for
// concurrent use.
type Shared[T any] struct {
	read  func(context.Context) (T, error)
	fresh time.Duration // how old an answer may be, counted from its end
	spare time.Duration // how old it may be while the next one is under way; 0: as fresh
	limit time.Duration // of one reading
	now   func() time.Time

	mu   sync.Mutex
	last *answer[T]
	good *answer[T] // the last one without an error; nil: none, or spare is 0
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

// NewSpared is New for a reading that takes long: while it is under way, the
// answer before serves until it is as old as spare.
func NewSpared[T any](fresh, spare, limit time.Duration, now func() time.Time, read func(context.Context) (T, error)) *Shared[T] {
	s := New(fresh, limit, now, read)
	s.spare = spare
	return s
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

// current is the answer to wait for: the last one unless it is too old, or the
// one before that while it serves.
func (s *Shared[T]) current() *answer[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.old(s.now(), s.fresh) {
		s.last = &answer[T]{done: make(chan struct{})}
		fresh := s.last
		rescue.Async(func() error { s.fill(fresh); return nil })
	}
	if s.good != nil && !s.last.ended() && s.now().Sub(s.good.at) < s.spare {
		return s.good
	}
	return s.last
}

func (s *Shared[T]) fill(a *answer[T]) {
	defer close(a.done)
	ctx, cancel := context.WithTimeout(context.Background(), s.limit)
	defer cancel()
	a.err = rescue.Call(func() (err error) {
		a.value, err = s.read(ctx)
		return err
	})
	a.at = s.now()
	if a.err == nil && s.spare > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.good = a
	}
}

// old says that the answer is there and no longer good.
func (a *answer[T]) old(now time.Time, fresh time.Duration) bool {
	return a.ended() && now.Sub(a.at) >= fresh
}

// ended says that the answer is there.
func (a *answer[T]) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}
