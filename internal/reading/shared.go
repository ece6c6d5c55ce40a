// Package reading lets concurrent callers share one read of the same value, and keeps the answer for a short time. A SharedRead is for one
// value and has no keys. In contrast, package coalesce combines different requests into one call, and keeps no outcome.
package reading

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// SharedRead is a read that concurrent callers share. At most one read is in progress, and its answer is used until it is too old. SharedRead
// is safe for concurrent use.
type SharedRead[T any] struct {
	read     func(context.Context) (T, error)
	maxAge   time.Duration // maximum age of an answer, counted from the end of its read
	maxStale time.Duration // maximum age of an answer while the next read is in progress; 0 means that callers wait for the next read
	timeout  time.Duration // time limit of one read
	now      func() time.Time

	mu       sync.Mutex
	last     *readResult[T]
	lastGood *readResult[T] // the last answer without an error; nil if there is none or maxStale is 0
}

// readResult is a read in progress or its answer.
type readResult[T any] struct {
	done   chan struct{} // closed when the other fields are set
	value  T
	err    error
	readAt time.Time
}

// New returns a SharedRead that calls read with the time limit timeout. Callers share an answer, even if it is an error, until it is as old as
// maxAge. now is used only for elapsed time.
func New[T any](maxAge, timeout time.Duration, now func() time.Time, read func(context.Context) (T, error)) *SharedRead[T] {
	return &SharedRead[T]{read: read, maxAge: maxAge, timeout: timeout, now: now}
}

// NewServingStale returns a SharedRead for a read that takes long. While the next read is in progress, callers do not wait for it. They get
// the last answer without an error, until this answer is as old as maxStale. In all other respects, NewServingStale does the same as New.
func NewServingStale[T any](maxAge, maxStale, timeout time.Duration, now func() time.Time, read func(context.Context) (T, error)) *SharedRead[T] {
	s := New(maxAge, timeout, now, read)
	s.maxStale = maxStale
	return s
}

// Read returns an answer, or an error if ctx ends first. If a read hangs, each caller waits for it as long as its own ctx allows, and no
// second read starts. Do not change the value, because callers share it.
func (s *SharedRead[T]) Read(ctx context.Context) (T, error) {
	a := s.currentRead()
	select {
	case <-a.done:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("waiting for a shared read: %w", ctx.Err())
	}
}

// currentRead returns the read whose answer the caller must use. It is a finished read, or a read in progress for which the caller must wait.
// If the last answer is older than maxAge, currentRead starts the next read. While that read is in progress, it returns lastGood, the last read
// without an error, unless lastGood is older than maxStale.
func (s *SharedRead[T]) currentRead() *readResult[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.isOlderThan(s.now(), s.maxAge) {
		s.last = &readResult[T]{done: make(chan struct{})}
		pending := s.last
		rescue.Async(func() error { s.runRead(pending); return nil })
	}
	if s.lastGood != nil && !s.last.hasEnded() && s.now().Sub(s.lastGood.readAt) < s.maxStale {
		return s.lastGood
	}
	return s.last
}

func (s *SharedRead[T]) runRead(result *readResult[T]) {
	defer close(result.done)
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	result.err = rescue.Call(func() (err error) {
		result.value, err = s.read(ctx)
		return err
	})
	result.readAt = s.now()
	if result.err == nil && s.maxStale > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lastGood = result
	}
}

// isOlderThan reports whether the read has ended and its answer is older than maxAge.
func (a *readResult[T]) isOlderThan(now time.Time, maxAge time.Duration) bool {
	return a.hasEnded() && now.Sub(a.readAt) >= maxAge
}

func (a *readResult[T]) hasEnded() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}
