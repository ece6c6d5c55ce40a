// Package fair shares a bound among principals.
package fair

import (
	"context"
	"sync"
	"sync/atomic"
)

// Shares bounds what is under way at once, so that nobody can take all of it: one
// principal has at most each, and the last tenth (one at least) is kept for admins.
type Shares struct {
	most, each, kept int

	mu   sync.Mutex
	all  int
	of   map[string]int
	left chan struct{} // closed when somebody leaves; nil: nobody waits for that
}

// NewShares bounds all to most and one principal to each.
func NewShares(most, each int) *Shares {
	return &Shares{most: most, each: each, kept: max(1, most/10), of: map[string]int{}}
}

// Unkept is Shares of what admins do not take part in.
func Unkept(most, each int) *Shares {
	s := NewShares(most, each)
	s.kept = 0
	return s
}

// Take returns how to leave; false: there is no room for who.
func (s *Shares) Take(who string, admin bool) (leave func(), ok bool) {
	leave, _ = s.take(who, admin)
	return leave, leave != nil
}

// Await is Take that waits for room until ctx ends.
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

// take returns nil, and when to try again, where there is no room.
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

// share is what a principal took. It leaves once.
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

// Taken is how many are under way.
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
