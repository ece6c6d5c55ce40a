package seen

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// Ledger keeps when devices were seen, and operator tokens used; *store.Store.
type Ledger interface {
	TouchTokens(ctx context.Context, ids []int64) error
	TouchDevices(ctx context.Context, seen map[string]store.Seen) error
}

// Recent remembers who was seen last; *List.
type Recent interface {
	Add(ctx context.Context, seen []Sighting) error
}

// Devices collects when devices reported, so that an idle report costs no write. Those
// that can be told are written with the next flush, those that only poll once a minute. A
// crash loses what was not flushed: the next report says it again. It is safe for
// concurrent use.
type Devices struct {
	ledger  Ledger
	recent  Recent // nil: nobody is told who was seen last
	all     *times // for the ledger
	reached *times // of these, those of which the ledger does not know how they can be told
	fresh   *times // for recent

	Tokens *Tokens // of operators
}

// NewDevices returns an empty collection. now is for elapsed time only.
func NewDevices(ledger Ledger, recent Recent, now func() time.Time) *Devices {
	all, reached := newTimes(), newTimes()
	all.polled, reached.written = newPolled(), make(map[string]store.Seen)
	return &Devices{ledger: ledger, recent: recent, all: all, reached: reached, fresh: newTimes(), Tokens: newTokens(ledger, now)}
}

// Mark records a report of a device whose reach equals the reach that the ledger had when the report
// was handled. If another reach waits for FlushReached, or its last call wrote another one, Mark
// records the report like MarkReach.
func (d *Devices) Mark(device string, seen store.Seen) {
	d.reached.correct(device, seen)
	if seen.Reach == store.ReachNone {
		d.all.markPolled(device, seen)
	} else {
		d.all.mark(device, seen)
	}
	if d.recent != nil {
		d.fresh.mark(device, seen)
	}
}

// MarkReach is Mark for a device that can be told in another way than the ledger knows:
// that is written soon, so that what is queued meanwhile finds it.
func (d *Devices) MarkReach(device string, seen store.Seen) {
	d.Mark(device, seen)
	d.all.mark(device, seen)
	d.reached.mark(device, seen)
}

// At is when a device reported that was not flushed yet; zero: unknown.
func (d *Devices) At(device string) time.Time { return d.all.at(device) }

// times are of devices that were seen since the last flush.
type times struct {
	mu      sync.Mutex
	seen    map[string]store.Seen
	written map[string]store.Seen // what the last flush took, also while it runs; if nil, it is not kept
	polled  *polled               // nil: all are noted
}

func newTimes() *times { return &times{seen: make(map[string]store.Seen)} }

func (s *times) mark(device string, seen store.Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[device] = seen
}

// correct marks a device only if another reach of it waits for a flush or was taken by the last one:
// the caller may have read the ledger before that reach was committed.
func (s *times) correct(device string, seen store.Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.seen[device]
	if !known {
		last, known = s.written[device]
	}
	if known && last.Reach != seen.Reach {
		s.seen[device] = seen
	}
}

// markPolled notes a device unless it was lately. One that waits for the flush is written
// with its latest time: that costs nothing more.
func (s *times) markPolled(device string, seen store.Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, waits := s.seen[device]
	if s.polled.add(device) || waits {
		s.seen[strings.Clone(device)] = seen // of a request, which is not to stay
	}
}

// at is when a device reported that was not flushed yet; zero: unknown.
func (s *times) at(device string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[device].At
}

func (s *times) take() map[string]store.Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.seen
	s.seen = make(map[string]store.Seen)
	if s.polled != nil {
		s.polled.next()
	}
	if s.written != nil {
		s.written = taken
	}
	return taken
}

// putBack keeps what could not be flushed, unless something newer came.
func (s *times) putBack(times map[string]store.Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newer := s.seen
	s.seen = times
	maps.Copy(s.seen, newer)
}

// seenPart bounds one statement: it locks the devices it writes.
const seenPart = 5000

// FlushRecent tells the list of the devices seen last. Devices of which it
// cannot be told are kept, as far as they would stand in the list.
func (d *Devices) FlushRecent(ctx context.Context) error {
	if d.recent == nil {
		return nil
	}
	times := d.fresh.take()
	seen := make([]Sighting, 0, len(times))
	for device, last := range times {
		seen = append(seen, Sighting{Device: device, At: last.At})
	}
	slices.SortFunc(seen, func(a, b Sighting) int { return b.At.Compare(a.At) })
	seen = seen[:min(len(seen), Kept)]
	if err := d.recent.Add(ctx, seen); err != nil {
		kept := make(map[string]store.Seen, len(seen))
		for _, s := range seen {
			kept[s.Device] = store.Seen{At: s.At}
		}
		d.fresh.putBack(kept)
		return fmt.Errorf("telling who was seen last: %w", err)
	}
	return nil
}

// Flush writes the collected last-seen times, and how each device can be told. It is to be
// called every ten seconds.
func (d *Devices) Flush(ctx context.Context) error {
	return errors.Join(d.flush(ctx, d.all), d.Tokens.flush(ctx))
}

// FlushReached writes what Flush does of the devices that can be told in
// another way than the ledger knows.
func (d *Devices) FlushReached(ctx context.Context) error { return d.flush(ctx, d.reached) }

func (d *Devices) flush(ctx context.Context, seen *times) error {
	times := seen.take()
	// In their order: devices that are next to each other in the table are written by one
	// statement, and not each of its pages by each statement.
	left := slices.Sorted(maps.Keys(times))
	for len(left) > 0 {
		n := min(len(left), seenPart)
		if err := d.ledger.TouchDevices(ctx, only(times, left[:n])); err != nil {
			seen.putBack(only(times, left))
			return fmt.Errorf("writing last-seen times: %w", err)
		}
		left = left[n:]
	}
	return nil
}

// only returns the entries of some devices.
func only(times map[string]store.Seen, ids []string) map[string]store.Seen {
	some := make(map[string]store.Seen, len(ids))
	for _, id := range ids {
		some[id] = times[id]
	}
	return some
}
