package simulator

import (
	"context"
	"time"
)

// currentCapacity returns the pool's current capacity, or 0 if the dispatcher does not answer. It is safe to call from
// the goroutines of External.
func (s *simulation) currentCapacity() int {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	p, err := s.operator.Pools.Get(ctx, s.config.Pool)
	if err != nil {
		return 0
	}
	return p.Capacity
}

// updateCapacity applies a changed capacity of the pool to the external system. It applies a lower capacity only after
// the length of a lease, because devices with earlier grants may still arrive.
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
