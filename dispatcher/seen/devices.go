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

// Ledger stores when devices reported and when operator tokens were used. *store.Store implements it.
type Ledger interface {
	RecordTokenUses(ctx context.Context, uses []store.TokenUse) error
	TouchDevices(ctx context.Context, lastReports map[string]store.LastReport) error
}

// Recent stores the devices that reported last. *List implements it.
type Recent interface {
	Add(ctx context.Context, sightings []Sighting) error
}

// Devices collects the times at which devices reported, so that an idle report causes no write. If the device can be woken, the next flush
// writes its time. If the device only polls, its time is written about once a minute. A crash loses the times that were not flushed; the
// next reports replace them. Devices is safe for concurrent use.
type Devices struct {
	ledger  Ledger
	recent  Recent // if nil, there is no list of the devices that reported last
	all     *times // to be written by Flush
	reached *times // to be written by FlushReached: devices whose reach in the ledger may be outdated
	fresh   *times // to be written by FlushRecent

	Tokens *Tokens // operator tokens
}

// NewDevices returns an empty collection. now is used for elapsed time only.
func NewDevices(ledger Ledger, recent Recent, now func() time.Time) *Devices {
	all, reached := newTimes(), newTimes()
	all.polled, reached.written = newPolled(), make(map[string]store.LastReport)
	return &Devices{ledger: ledger, recent: recent, all: all, reached: reached, fresh: newTimes(), Tokens: newTokens(ledger, now)}
}

// Record records a report of a device whose reach (how it can be notified) was already in the ledger when the report was handled. But if a
// different reach of the device waits for FlushReached, or if the last FlushReached wrote a different reach, Record does the same as
// RecordReach.
func (d *Devices) Record(device string, report store.LastReport) {
	d.reached.correct(device, report)
	if report.Reach == store.ReachNone && report.QuietUntil.Sub(report.At) < store.SeenPrecision {
		d.all.setPolled(device, report)
	} else {
		d.all.set(device, report)
	}
	if d.recent != nil {
		d.fresh.set(device, report)
	}
}

// RecordReach records a report of a device whose reach (how it can be notified) differs from the reach in the
// ledger. FlushReached soon writes the new reach, so that tasks that are queued for the device find it.
func (d *Devices) RecordReach(device string, report store.LastReport) {
	d.Record(device, report)
	d.all.set(device, report)
	d.reached.set(device, report)
}

// LastReport returns the latest report of a device, if this report waits for Flush. Otherwise it returns the zero value.
func (d *Devices) LastReport(device string) store.LastReport { return d.all.lastReport(device) }

// times holds the devices that reported since the last flush.
type times struct {
	mu      sync.Mutex
	seen    map[string]store.LastReport
	written map[string]store.LastReport // entries of the last flush, including a flush that is running; if nil, they are not kept
	polled  *polled                     // if nil, every report is recorded
}

func newTimes() *times { return &times{seen: make(map[string]store.LastReport)} }

// set records the last report of a device.
func (s *times) set(device string, report store.LastReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[device] = report
}

// correct records the last report of a device only if a different reach (way to notify the device) waits for a flush or was part of the
// last flush. In that case the caller may have read the ledger before the flush committed the different reach.
func (s *times) correct(device string, report store.LastReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, isPending := s.seen[device]
	if !isPending {
		last, isPending = s.written[device]
	}
	if isPending && last.Reach != report.Reach {
		s.seen[device] = report
	}
}

// setPolled records the last report of a device that only polls. In each period of `rounds` flushes, it records a device only for one of
// them. If the device already waits for the flush, setPolled updates its time, which costs no further write.
func (s *times) setPolled(device string, report store.LastReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, waits := s.seen[device]
	if s.polled.add(device) || waits {
		s.seen[strings.Clone(device)] = report // the string belongs to a request, which must not stay in memory
	}
}

// lastReport returns the latest report of a device in s. If s has no report of the device, it returns the zero value.
func (s *times) lastReport(device string) store.LastReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[device]
}

// take removes and returns the entries to flush: the last report of each device.
func (s *times) take() map[string]store.LastReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.seen
	s.seen = make(map[string]store.LastReport)
	if s.polled != nil {
		s.polled.clearNextPart()
	}
	if s.written != nil {
		s.written = taken
	}
	return taken
}

// putBack puts unflushed, the entries that could not be flushed, back into s. If s has a newer entry of the same device, the newer entry
// stays.
func (s *times) putBack(unflushed map[string]store.LastReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newer := s.seen
	s.seen = unflushed
	maps.Copy(s.seen, newer)
}

// maxDevicesPerWrite is the maximum number of devices that one statement writes, because the statement locks them.
const maxDevicesPerWrite = 5000

// FlushRecent adds the collected reports to the list of the devices that reported last. If that fails, it
// keeps the newest MaxRecent reports for the next call.
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
	seen = seen[:min(len(seen), MaxRecent)]
	if err := d.recent.Add(ctx, seen); err != nil {
		kept := make(map[string]store.LastReport, len(seen))
		for _, s := range seen {
			kept[s.Device] = store.LastReport{At: s.At}
		}
		d.fresh.putBack(kept)
		return fmt.Errorf("announcing last-seen times: %w", err)
	}
	return nil
}

// Flush writes the collected last-seen times and reaches of devices, and the uses of tokens. It must be called every ten seconds, because
// rounds, store.SeenPrecision and the search of package waiters for sleeping devices rely on this interval.
func (d *Devices) Flush(ctx context.Context) error {
	return errors.Join(d.flush(ctx, d.all), d.Tokens.flush(ctx))
}

// FlushReached writes the time and the reach of the devices that RecordReach recorded.
func (d *Devices) FlushReached(ctx context.Context) error { return d.flush(ctx, d.reached) }

// flush writes the entries of pending to the ledger.
func (d *Devices) flush(ctx context.Context, pending *times) error {
	times := pending.take()
	// Sort the devices: then one statement writes devices that are next to each other in the table, and not
	// every statement writes to every page.
	left := slices.Sorted(maps.Keys(times))
	for len(left) > 0 {
		n := min(len(left), maxDevicesPerWrite)
		if err := d.ledger.TouchDevices(ctx, subset(times, left[:n])); err != nil {
			pending.putBack(subset(times, left))
			return fmt.Errorf("writing last-seen times: %w", err)
		}
		left = left[n:]
	}
	return nil
}

// subset returns the entries whose devices are in devices.
func subset(entries map[string]store.LastReport, devices []string) map[string]store.LastReport {
	some := make(map[string]store.LastReport, len(devices))
	for _, id := range devices {
		some[id] = entries[id]
	}
	return some
}
