package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"slices"
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

// at is when a device reported that was not flushed yet; zero: unknown.
func (s *lastSeen) at(device string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times[device]
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

// seenPart bounds one statement: it locks the devices it writes.
const seenPart = 5000

// FlushSeen writes the collected last-seen times.
func (d *Dispatcher) FlushSeen(ctx context.Context) error {
	times := d.seen.take()
	for ids := range slices.Chunk(slices.Collect(maps.Keys(times)), seenPart) {
		part := make(map[string]time.Time, len(ids))
		for _, id := range ids {
			part[id] = times[id]
		}
		if err := d.store.TouchDevices(ctx, part); err != nil {
			d.seen.putBack(times)
			return fmt.Errorf("writing last-seen times: %w", err)
		}
		for _, id := range ids {
			delete(times, id)
		}
	}
	return nil
}
