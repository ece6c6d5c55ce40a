// Package fair limits the concurrent operations of this replica. No principal (such as an operator token or a device) can use the whole
// capacity.
package fair

import (
	"context"
	"sync"
)

// Shares limits how many operations run at the same time. At most maxTotal operations run in total, and at most maxEach of one principal, even
// if the principal is an admin. A tenth of maxTotal (at least one operation) is reserved for admins.
type Shares struct {
	maxTotal, maxEach, reserved int

	mu        sync.Mutex
	running   int
	runningBy map[string]int
	freed     chan struct{} // closed when an operation ends; nil if nobody waits for that
}

// NewShares returns Shares for at most maxTotal operations in total and maxEach operations of one principal. maxTotal must be at least 2,
// because one operation is reserved for admins.
func NewShares(maxTotal, maxEach int) *Shares {
	return &Shares{maxTotal: maxTotal, maxEach: maxEach, reserved: max(1, maxTotal/10), runningBy: map[string]int{}}
}

// NewSharesWithoutReserve returns Shares that reserve no part for admins.
func NewSharesWithoutReserve(maxTotal, maxEach int) *Shares {
	s := NewShares(maxTotal, maxEach)
	s.reserved = 0
	return s
}

// TryStart starts an operation of principal and returns the function that ends the operation. ok is false if the limits do not permit another
// operation. The reserved part is only for principals with isAdmin = true.
func (s *Shares) TryStart(principal string, isAdmin bool) (end func(), ok bool) {
	end, _ = s.tryStart(principal, isAdmin)
	return end, end != nil
}

// StartWhenFree starts an operation of principal and returns the function that ends the operation. If the limits do not permit another
// operation, it waits until they do. If ctx ends first, err is the error of ctx. The reserved part is only for principals with isAdmin = true.
func (s *Shares) StartWhenFree(ctx context.Context, principal string, isAdmin bool) (end func(), err error) {
	for {
		end, freed := s.tryStart(principal, isAdmin)
		if end != nil {
			return end, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryStart starts an operation of principal. The function end ends the operation. Further calls of end do nothing. If the limits do not permit
// another operation, end is nil, and freed is closed when another operation ends.
func (s *Shares) tryStart(principal string, isAdmin bool) (end func(), freed <-chan struct{}) {
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
	return sync.OnceFunc(func() { s.endOperation(principal) }), nil
}

// Running returns how many operations are running.
func (s *Shares) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// endOperation counts an operation of principal as ended and wakes the callers that wait for room.
func (s *Shares) endOperation(principal string) {
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
