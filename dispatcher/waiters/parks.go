package waiters

import (
	"context"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
)

// Limits of a replica's parked reports.
const (
	maxParked              = 20_000 // each needs about 40 KB over HTTP/1.1, mostly for the connection
	maxConcurrentDecisions = 64     // maximum number of parked reports that are decided concurrently
)

// WaitState is the reason why the wait of a report ended.
type WaitState int

// The endings. Parked means that the wait has not ended.
const (
	Parked     WaitState = iota
	Superseded           // the device sent a newer report
	Stopping             // this process ends
)

// ParkedReport is the newest report of a device, if the device lets the answer wait. It is
// entered in Parks before the report is first decided, so that no call between this
// decision and the wait is missed.
type ParkedReport struct {
	Device string
	Wait   time.Duration // maximum time for which the report is parked

	signal chan struct{} // holds a value while ending or call is unread

	// Guarded by Parks.mu.
	isParked bool  // the report is parked, and its first attempt is over
	number   int64 // number of the report among all replicas; 0 if unknown
	state    WaitState
	call     WakeCall
}

// NewParkedReport returns a Park that is not entered in Parks yet.
func NewParkedReport(device string, wait time.Duration) *ParkedReport {
	return &ParkedReport{Device: device, Wait: wait, signal: make(chan struct{}, 1)}
}

// Signal returns a channel that receives a value when Look has something new to return.
func (p *ParkedReport) Signal() <-chan struct{} { return p.signal }

// WakeCall is the offer for which a report was woken. If Pool is empty, the report was woken for another reason.
type WakeCall struct {
	Woken   bool // the report was woken
	Pool    string
	FreedAt time.Time // when the slot became free, by this process's clock; zero if unknown
	WokenAt time.Time // when the report was woken
}

// OfferedPools returns the pools in which a slot is offered to the device: one pool, or nil.
func (c WakeCall) OfferedPools() []string {
	if c.Pool == "" {
		return nil
	}
	return []string{c.Pool}
}

// Parks holds the reports that are parked at this replica, by device.
type Parks struct {
	maxReports int
	now        func() time.Time
	deciding   chan struct{} // limits the reports that are decided concurrently

	mu      sync.Mutex
	all     map[string]*ParkedReport
	waiting int
	stopped bool
}

func newParks(maxReports int, now func() time.Time) *Parks {
	return &Parks{maxReports: maxReports, now: now, deciding: make(chan struct{}, maxConcurrentDecisions), all: make(map[string]*ParkedReport)}
}

// BeginDecision waits until a parked report may be decided again, because at most maxConcurrentDecisions reports are
// decided concurrently. The caller must call done after the decision. If ok is false, ctx ended first.
func (s *Parks) BeginDecision(ctx context.Context) (done func(), ok bool) {
	select {
	case <-ctx.Done():
		return nil, false
	case s.deciding <- struct{}{}:
		return func() { <-s.deciding }, true
	}
}

// notify must be called with Parks.mu held, or before p is shared.
func (p *ParkedReport) notify() {
	select {
	case p.signal <- struct{}{}:
	default: // p was notified already, and Look was not called yet
	}
}

func (p *ParkedReport) endWait(why WaitState) {
	p.state = why
	p.notify()
}

// Replace ends the wait of an older report of the device. If p is not nil and there is room,
// Arrive enters p, which then may be parked.
func (s *Parks) Replace(device string, p *ParkedReport) (entered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if older := s.all[device]; older != nil {
		older.endWait(Superseded)
		delete(s.all, device)
	}
	if p == nil || s.stopped || len(s.all) >= s.maxReports {
		return false
	}
	s.all[device] = p
	return true
}

// Leave removes an answered report, and returns how its wait ended.
func (s *Parks) Leave(p *ParkedReport) WaitState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[p.Device] == p {
		delete(s.all, p.Device)
	}
	if p.isParked {
		p.isParked = false
		s.waiting--
	}
	return p.state
}

// Poll returns the ending and the latest call of a report, and resets the call.
func (s *Parks) Poll(p *ParkedReport) (WaitState, WakeCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call := p.call
	p.call = WakeCall{}
	return p.state, call
}

// markParked parks a report. number is the number of the report among all replicas.
func (s *Parks) markParked(p *ParkedReport, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.isParked, p.number = true, number
	s.waiting++
}

// has reports whether a report of the device is parked here, or may still be parked.
func (s *Parks) has(device string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[device] != nil
}

// countParked returns the number of parked reports.
func (s *Parks) countParked() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.waiting)
}

// OnNewerReport ends the wait of a report if number, of a report of the device at another replica, is newer.
func (s *Parks) OnNewerReport(device string, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.all[device]; p != nil && p.number != 0 && p.number < number {
		p.endWait(Superseded)
		delete(s.all, device)
	}
}

// OnWake wakes the reports that are parked here.
func (s *Parks) OnWake(calls []parked.WakeMessage) { s.wake(calls) }

// wake wakes the reports that are parked here, and returns the calls of all other
// reports.
func (s *Parks) wake(calls []parked.WakeMessage) (elsewhere []parked.WakeMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range calls {
		p := s.all[c.Device]
		if p == nil {
			elsewhere = append(elsewhere, c)
			continue
		}
		p.call = WakeCall{Woken: true, Pool: c.Pool, WokenAt: s.now()}
		if c.Age > 0 {
			p.call.FreedAt = p.call.WokenAt.Add(-c.Age)
		}
		p.notify()
	}
	return elsewhere
}

// Stop ends the wait of all reports. After Stop, Arrive enters no report.
func (s *Parks) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, p := range s.all {
		p.endWait(Stopping)
	}
}
