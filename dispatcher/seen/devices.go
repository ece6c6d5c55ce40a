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

// Recent keeps a list of the devices that reported last. *List implements it.
type Recent interface {
	Add(ctx context.Context, sightings []Sighting) error
}

// Devices collects the times at which devices reported, so that an idle report causes no write. It is safe for concurrent use.
type Devices struct {
	ledger  Ledger
	recent  Recent       // if nil, there is no list of the devices that reported last
	all     *lastReports // to be written by Flush
	reached *lastReports // to be written by FlushReached: devices whose reach in the ledger may be outdated
	fresh   *lastReports // to be written by FlushRecent

	Tokens *TokenUses // operator tokens
}

// NewDevices returns an empty collection. now is used for elapsed time only.
func NewDevices(ledger Ledger, recent Recent, now func() time.Time) *Devices {
	all, reached := newLastReports(), newLastReports()
	all.polled, reached.written = newPolledDevices(), make(map[string]store.LastReport)
	return &Devices{ledger: ledger, recent: recent, all: all, reached: reached, fresh: newLastReports(), Tokens: newTokenUses(ledger, now)}
}

// Record records a report of a device whose reach (how it can be notified) is already in the ledger. It omits most reports of a device that
// only polls, but none with a QuietUntil of store.SeenPrecision or more after At, because the device would seem to have failed. If
// FlushReached has just written a different reach, or is about to write one, Record does the same as RecordReach.
func (d *Devices) Record(device string, report store.LastReport) {
	d.reached.correctPendingReach(device, report)
	if report.Reach == store.ReachNone && report.QuietUntil.Sub(report.At) < store.SeenPrecision {
		d.all.setLastReportOfPoller(device, report)
	} else {
		d.all.setLastReport(device, report)
	}
	if d.recent != nil {
		d.fresh.setLastReport(device, report)
	}
}

// RecordReach records a report of a device whose reach (how it can be notified) differs from the reach in the ledger. FlushReached soon writes
// the new reach, which is needed when a task is queued for the device.
func (d *Devices) RecordReach(device string, report store.LastReport) {
	d.Record(device, report)
	d.all.setLastReport(device, report)
	d.reached.setLastReport(device, report)
}

// LastReport returns the latest report of a device that Record has kept and Flush has not written yet. If there is no such report, the result is
// zero.
func (d *Devices) LastReport(device string) store.LastReport { return d.all.lastReport(device) }

// lastReports holds the devices that reported since the last flush.
type lastReports struct {
	mu      sync.Mutex
	seen    map[string]store.LastReport
	written map[string]store.LastReport // entries of the last flush, even while it runs; nil except in Devices.reached
	polled  *polledDevices              // which pollers to omit; nil except in Devices.all
}

func newLastReports() *lastReports { return &lastReports{seen: make(map[string]store.LastReport)} }

func (s *lastReports) setLastReport(device string, report store.LastReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[device] = report
}

// correctPendingReach records the last report of a device if a different reach of this device waits for a flush or was written by the last
// flush. Otherwise the ledger would keep the different reach, because the caller may have read the ledger before that flush.
func (s *lastReports) correctPendingReach(device string, report store.LastReport) {
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

// setLastReportOfPoller records the last report of a device that only polls, but only once in `rounds` flushes. If the device already waits for
// the next flush, setLastReportOfPoller updates its time, which costs no additional write.
func (s *lastReports) setLastReportOfPoller(device string, report store.LastReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, waits := s.seen[device]
	if s.polled.addDevice(device) || waits {
		s.seen[strings.Clone(device)] = report // the string belongs to a request, which must not stay in memory
	}
}

func (s *lastReports) lastReport(device string) store.LastReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[device]
}

// takeUnflushed removes and returns the entries to flush, by device.
func (s *lastReports) takeUnflushed() (reportByDevice map[string]store.LastReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.seen
	s.seen = make(map[string]store.LastReport)
	if s.polled != nil {
		s.polled.removeNextPart()
	}
	if s.written != nil {
		s.written = taken
	}
	return taken
}

// putBackUnflushed puts back the entries that could not be flushed. A newer entry of the same device is kept instead.
func (s *lastReports) putBackUnflushed(reportByDevice map[string]store.LastReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newer := s.seen
	s.seen = reportByDevice
	maps.Copy(s.seen, newer)
}

// maxDevicesPerWrite is the maximum number of devices that one statement writes, because the statement locks them.
const maxDevicesPerWrite = 5000

// FlushRecent adds the collected reports to the list of the devices that reported last. If that fails, it keeps the newest MaxRecent
// reports for the next call.
func (d *Devices) FlushRecent(ctx context.Context) error {
	if d.recent == nil {
		return nil
	}
	times := d.fresh.takeUnflushed()
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
		d.fresh.putBackUnflushed(kept)
		return fmt.Errorf("announcing last-seen times: %w", err)
	}
	return nil
}

// Flush writes the collected reports of devices and uses of tokens. It must be called every ten seconds, because the constants rounds and
// store.SeenPrecision and the search for sleeping devices in package waiters rely on this interval.
func (d *Devices) Flush(ctx context.Context) error {
	return errors.Join(d.flush(ctx, d.all), d.Tokens.writeUses(ctx))
}

// FlushReached writes what RecordReach recorded: when each device reported, and how it can be notified.
func (d *Devices) FlushReached(ctx context.Context) error { return d.flush(ctx, d.reached) }

func (d *Devices) flush(ctx context.Context, pending *lastReports) error {
	times := pending.takeUnflushed()
	// The devices are sorted, so that each statement writes few pages of the table.
	left := slices.Sorted(maps.Keys(times))
	for len(left) > 0 {
		n := min(len(left), maxDevicesPerWrite)
		if err := d.ledger.TouchDevices(ctx, selectReportsOfDevices(times, left[:n])); err != nil {
			pending.putBackUnflushed(selectReportsOfDevices(times, left))
			return fmt.Errorf("writing last-seen times: %w", err)
		}
		left = left[n:]
	}
	return nil
}

func selectReportsOfDevices(reportByDevice map[string]store.LastReport, devices []string) (selectedByDevice map[string]store.LastReport) {
	some := make(map[string]store.LastReport, len(devices))
	for _, id := range devices {
		some[id] = reportByDevice[id]
	}
	return some
}
