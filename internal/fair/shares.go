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
	most, each, kept int

	mu   sync.Mutex
	all  int
	of   map[string]int
	left chan struct{} // closed when an operation ends; nil if nobody waits for that
}

// NewShares returns Shares for at most most operations in total and each operations of one principal.
func NewShares(most, each int) *Shares {
	return &Shares{most: most, each: each, kept: max(1, most/10), of: map[string]int{}}
}

// Unkept returns Shares that reserve no part for admins.
func Unkept(most, each int) *Shares {
	s := NewShares(most, each)
	s.kept = 0
	return s
}

// Take starts an operation of who and returns the function that ends it. ok is false if there is no room for who.
func (s *Shares) Take(who string, admin bool) (leave func(), ok bool) {
	leave, _ = s.take(who, admin)
	return leave, leave != nil
}

// Await is like Take, but waits for room until ctx ends.
func (s *Shares) Await(ctx context.Context, who string, admin bool) (leave func(), err error) {
	for {
		leave, left := s.take(who, admin)
		if leave != nil {
			return leave, nil
		}
		select {
		case <-left:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take starts an operation of who. If there is no room, leave is nil, and left is closed when it is worth trying again.
func (s *Shares) take(who string, admin bool) (leave func(), left <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := s.most
	if !admin {
		most -= s.kept
	}
	if s.all >= most || s.of[who] >= s.each {
		if s.left == nil {
			s.left = make(chan struct{})
		}
		return nil, s.left
	}
	s.all++
	s.of[who]++
	return (&share{of: s, who: who}).leave, nil
}

// share is a running operation of a principal. It can end only once.
type share struct {
	of   *Shares
	who  string
	gone atomic.Bool
}

func (o *share) leave() {
	if !o.gone.Swap(true) {
		o.of.leave(o.who)
	}
}

// Taken returns how many operations are running.
func (s *Shares) Taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

func (s *Shares) leave(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.of[who]--; s.of[who] == 0 {
		delete(s.of, who)
	}
	if s.left != nil {
		close(s.left)
		s.left = nil
	}
}
