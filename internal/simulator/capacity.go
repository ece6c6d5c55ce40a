package simulator

import (
	"context"
	"time"
)

// raised asks for the pool's capacity when an arrival would exceed the one
// that is judged by: an operator may have raised it a moment ago.
func (s *simulation) raised() int {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	p, err := s.operator.Pools.Get(ctx, s.config.Pool)
	if err != nil {
		return 0
	}
	return p.Capacity
}

// followCapacity judges by the pool's capacity as operators change it. A lower
// one counts after a lease: a device that was let in before may still be coming.
func (s *simulation) followCapacity(ctx context.Context) {
	p, err := s.operator.Pools.Get(ctx, s.config.Pool)
	if err != nil {
		return
	}
	switch {
	case p.Capacity >= s.external.Capacity():
		s.external.SetCapacity(p.Capacity)
		s.lowered = time.Time{}
	case s.lowered.IsZero():
		s.lowered = time.Now()
	case time.Since(s.lowered) > s.lease && s.external.Stats().Inside <= p.Capacity:
		s.external.SetCapacity(p.Capacity)
		s.lowered = time.Time{}
	}
}
