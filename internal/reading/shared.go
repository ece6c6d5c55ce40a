// Package reading lets concurrent callers share one read of the same value.
package reading

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Shared is a read that concurrent callers share: at most one is in progress, and its answer is used until it is too old. It is safe for
// concurrent use.
type Shared[T any] struct {
	read  func(context.Context) (T, error)
	fresh time.Duration // maximum age of an answer, counted from the end of its read
	spare time.Duration // maximum age of an answer while the next read is in progress; 0 means the same as fresh
	limit time.Duration // time limit of one read
	now   func() time.Time

	mu   sync.Mutex
	last *answer[T]
	good *answer[T] // the last answer without an error; nil if there is none or spare is 0
}

type answer[T any] struct {
	done  chan struct{} // closed when the other fields are set
	value T
	err   error
	at    time.Time
}

// New returns a Shared that calls read with the time limit limit. An answer is used for the time fresh.
func New[T any](fresh, limit time.Duration, now func() time.Time, read func(context.Context) (T, error)) *Shared[T] {
	return &Shared[T]{read: read, fresh: fresh, limit: limit, now: now}
}

// NewSpared is like New, for a read that takes long: while the read is in progress, the previous answer is used until it is as old as
// spare.
func NewSpared[T any](fresh, spare, limit time.Duration, now func() time.Time, read func(context.Context) (T, error)) *Shared[T] {
	s := New(fresh, limit, now, read)
	s.spare = spare
	return s
}

// Read returns an answer, or an error if ctx ends first. If a read hangs, each caller waits for it as long as its own ctx allows, and no
// second read starts. The value is shared between callers: do not change it.
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

// current returns the answer to wait for: the last one, or the previous one while its age is below spare. If the last answer is too old,
// current starts the next read.
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

// old reports whether the read has ended and its answer is too old.
func (a *answer[T]) old(now time.Time, fresh time.Duration) bool {
	return a.ended() && now.Sub(a.at) >= fresh
}

// ended reports whether the read has ended.
func (a *answer[T]) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}
