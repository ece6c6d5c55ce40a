package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"
)

// lastSeen collects when devices reported, so that an idle report costs no
// write. A crash loses what was not flushed: the next report says it again.
type lastSeen struct {
	mu    sync.Mutex
	times map[string]time.Time
}

func newLastSeen() *lastSeen { return &lastSeen{times: make(map[string]time.Time)} }

func (s *lastSeen) mark(device string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times[device] = at
}

func (s *lastSeen) take() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.times
	s.times = make(map[string]time.Time)
	return taken
}

// putBack keeps what could not be flushed, unless something newer came.
func (s *lastSeen) putBack(times map[string]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newer := s.times
	s.times = times
	maps.Copy(s.times, newer)
}

// FlushSeen writes the collected last-seen times in one statement.
func (d *Dispatcher) FlushSeen(ctx context.Context) error {
	times := d.seen.take()
	if len(times) == 0 {
		return nil
	}
	if err := d.store.TouchDevices(ctx, times); err != nil {
		d.seen.putBack(times)
		return fmt.Errorf("writing last-seen times: %w", err)
	}
	return nil
}
