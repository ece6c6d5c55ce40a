package simulator

import (
	"context"
	"time"
)

// currentCapacity returns the pool's current capacity, or 0 if the dispatcher does not answer. The goroutines of External call it.
func (s *simulation) currentCapacity() int {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	p, err := s.operator.Pools.Get(ctx, s.config.Pool)
	if err != nil {
		return 0
	}
	return p.Capacity
}

// updateCapacity takes over a changed capacity of the pool. It takes over a lower one after the length of a lease, because a device with an
// earlier grant may still arrive.
func (s *simulation) updateCapacity(ctx context.Context) {
	p, err := s.operator.Pools.Get(ctx, s.config.Pool)
	if err != nil {
		return
	}
	switch {
	case p.Capacity >= s.external.Capacity():
		s.external.SetCapacity(p.Capacity)
		s.loweredAt = time.Time{}
	case s.loweredAt.IsZero():
		s.loweredAt = time.Now()
	case time.Since(s.loweredAt) > s.lease && s.external.Stats().Inside <= p.Capacity:
		s.external.SetCapacity(p.Capacity)
		s.loweredAt = time.Time{}
	}
}
