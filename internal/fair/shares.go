// Package fair limits concurrent operations so that no principal can use the whole capacity.
package fair

import (
	"context"
	"sync"
	"sync/atomic"
)

// Shares limits how many operations run at once: one principal has at most each of them, and the last tenth (at least one) is reserved for
// admins.
type Shares struct {
	maxTotal, maxEach, reserved int

	mu        sync.Mutex
	running   int
	runningBy map[string]int
	freed     chan struct{} // closed when an operation ends; nil if nobody waits for that
}

// NewShares returns Shares for at most most operations in total and each operations of one principal.
func NewShares(maxTotal, maxEach int) *Shares {
	return &Shares{maxTotal: maxTotal, maxEach: maxEach, reserved: max(1, maxTotal/10), runningBy: map[string]int{}}
}

// NewSharesWithoutReserve returns Shares that reserve no part for admins.
func NewSharesWithoutReserve(maxTotal, maxEach int) *Shares {
	s := NewShares(maxTotal, maxEach)
	s.reserved = 0
	return s
}

// TryStart starts an operation of who and returns the function that ends it. ok is false if there is no room for who.
func (s *Shares) TryStart(principal string, isAdmin bool) (leave func(), ok bool) {
	leave, _ = s.tryStart(principal, isAdmin)
	return leave, leave != nil
}

// StartWhenFree is like Take, but waits for room until ctx ends.
func (s *Shares) StartWhenFree(ctx context.Context, principal string, isAdmin bool) (leave func(), err error) {
	for {
		leave, freed := s.tryStart(principal, isAdmin)
		if leave != nil {
			return leave, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryStart starts an operation of who. If there is no room, leave is nil, and left is closed when it is worth trying again.
func (s *Shares) tryStart(principal string, isAdmin bool) (leave func(), freed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := s.maxTotal
	if !isAdmin {
		limit -= s.reserved
	}
	if s.running >= limit || s.runningBy[principal] >= s.maxEach {
		if s.freed == nil {
			s.freed = make(chan struct{})
		}
		return nil, s.freed
	}
	s.running++
	s.runningBy[principal]++
	return (&share{shares: s, principal: principal}).leave, nil
}

// share is a running operation of a principal. It can end only once.
type share struct {
	shares    *Shares
	principal string
	hasEnded  atomic.Bool
}

func (o *share) leave() {
	if !o.hasEnded.Swap(true) {
		o.shares.leave(o.principal)
	}
}

// Running returns how many operations are running.
func (s *Shares) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

func (s *Shares) leave(principal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if s.runningBy[principal]--; s.runningBy[principal] == 0 {
		delete(s.runningBy, principal)
	}
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}
