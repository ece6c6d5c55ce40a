package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/recent"
	"github.com/fleetslots/dispatcher/store"
)

// Recent remembers who was seen last; *recent.List.
type Recent interface {
	Add(ctx context.Context, seen []recent.Seen) error
}

// lastSeen collects when devices reported, so that an idle report costs no
// write. A crash loses what was not flushed: the next report says it again.
type lastSeen struct {
	mu    sync.Mutex
	times map[string]store.Seen
}

func newLastSeen() *lastSeen { return &lastSeen{times: make(map[string]store.Seen)} }

// seeing is when a report was seen, by the ledger's clock: a device that it
// registers was not seen before it was there.
func (h *handling) seeing() time.Time {
	if d := h.view.Device; d != nil && d.CreatedAt.After(h.view.Now) {
		return d.CreatedAt
	}
	return h.view.Now
}

func (s *lastSeen) mark(device string, seen store.Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times[device] = seen
}

// at is when a device reported that was not flushed yet; zero: unknown.
func (s *lastSeen) at(device string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times[device].At
}

func (s *lastSeen) take() map[string]store.Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.times
	s.times = make(map[string]store.Seen)
	return taken
}

// putBack keeps what could not be flushed, unless something newer came.
func (s *lastSeen) putBack(times map[string]store.Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newer := s.times
	s.times = times
	maps.Copy(s.times, newer)
}

// seenPart bounds one statement: it locks the devices it writes.
const seenPart = 5000

func (d *Dispatcher) mark(device string, seen store.Seen) {
	d.seen.mark(device, seen)
	if d.config.Recent != nil {
		d.fresh.mark(device, seen)
	}
}

// FlushRecent tells the list of the devices seen last. What cannot be told is
// kept, as far as it would stand in the list.
func (d *Dispatcher) FlushRecent(ctx context.Context) error {
	if d.config.Recent == nil {
		return nil
	}
	times := d.fresh.take()
	seen := make([]recent.Seen, 0, len(times))
	for device, last := range times {
		seen = append(seen, recent.Seen{Device: device, At: last.At})
	}
	slices.SortFunc(seen, func(a, b recent.Seen) int { return b.At.Compare(a.At) })
	seen = seen[:min(len(seen), recent.Kept)]
	if err := d.config.Recent.Add(ctx, seen); err != nil {
		kept := make(map[string]store.Seen, len(seen))
		for _, s := range seen {
			kept[s.Device] = store.Seen{At: s.At}
		}
		d.fresh.putBack(kept)
		return fmt.Errorf("telling who was seen last: %w", err)
	}
	return nil
}

// markReport notes a report. How its device can be told is written soon, when the
// ledger does not know it: what is queued meanwhile is to find it.
func (d *Dispatcher) markReport(h *handling) {
	device, seen := string(h.caller.Device), store.Seen{At: h.seeing(), Reach: d.reachOf(h)}
	d.mark(device, seen)
	if h.view.Device != nil && h.view.Device.Reach != seen.Reach {
		d.reached.mark(device, seen)
	}
}

// FlushSeen writes the collected last-seen times, and how each device can be told.
func (d *Dispatcher) FlushSeen(ctx context.Context) error { return d.flush(ctx, d.seen) }

// FlushReached writes what FlushSeen does of the devices that can be told in
// another way than the ledger knows.
func (d *Dispatcher) FlushReached(ctx context.Context) error { return d.flush(ctx, d.reached) }

func (d *Dispatcher) flush(ctx context.Context, seen *lastSeen) error {
	times := seen.take()
	for ids := range slices.Chunk(slices.Collect(maps.Keys(times)), seenPart) {
		part := make(map[string]store.Seen, len(ids))
		for _, id := range ids {
			part[id] = times[id]
		}
		if err := d.store.TouchDevices(ctx, part); err != nil {
			seen.putBack(times)
			return fmt.Errorf("writing last-seen times: %w", err)
		}
		for _, id := range ids {
			delete(times, id)
		}
	}
	return nil
}
