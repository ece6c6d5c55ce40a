package waiters

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
)

// Limits of a replica's parked reports.
const (
	maxParked              = 20_000 // each needs about 40 KB over HTTP/1.1, mostly for the connection
	maxConcurrentDecisions = 64     // maximum number of parked reports that are decided concurrently
)

// WaitState is the reason for which Parks has ended the wait of a report. A final decision and the end of Wait have no WaitState.
type WaitState int

// The states. Parked means that Parks has not ended the wait.
const (
	Parked     WaitState = iota
	Superseded           // the device sent a newer report
	Stopping             // this process ends
)

// ParkedReport is the newest report of a device, if its answer may wait. It is entered in Parks before the report is first decided, so that
// no WakeMessage between this decision and the wait is missed. The queue in Redis records in which pools the device waits.
type ParkedReport struct {
	Device string
	Wait   time.Duration // maximum time for which the report is parked

	signal chan struct{} // holds a value while Poll has not returned the latest state or call

	// Guarded by Parks.mu.
	isParked bool  // the report is parked, and its first attempt is over
	number   int64 // number of the report among all replicas; 0 if unknown
	state    WaitState
	call     WakeCall
}

// NewParkedReport returns a ParkedReport that is not entered in Parks yet.
func NewParkedReport(device string, wait time.Duration) *ParkedReport {
	return &ParkedReport{Device: device, Wait: wait, signal: make(chan struct{}, 1)}
}

// Signal returns a channel that receives a value when Poll has something new to return.
func (p *ParkedReport) Signal() <-chan struct{} { return p.signal }

// WakeCall has the contents of the messages that a report received since the previous Poll. The zero value means none.
type WakeCall struct {
	Woken   bool
	Offered []string // pools of the messages: in each, a slot may be offered to the device

	// The latest message.
	Pool    string    // pool in which the device may now start a task; empty if the report was woken for another reason
	FreedAt time.Time // when the slot became free, by this process's clock; zero if unknown
	WokenAt time.Time
}

func (w *WakeCall) add(message parked.WakeMessage, now time.Time) {
	w.Woken, w.Pool, w.WokenAt, w.FreedAt = true, message.Pool, now, time.Time{}
	if message.Age > 0 {
		w.FreedAt = now.Add(-message.Age)
	}
	if message.Pool != "" && !slices.Contains(w.Offered, message.Pool) {
		w.Offered = append(w.Offered, message.Pool)
	}
}

// Parks holds the reports that are parked at this replica, by device.
type Parks struct {
	maxReports int
	now        func() time.Time
	deciding   chan struct{} // limits the reports that are decided concurrently

	mu      sync.Mutex
	all     map[string]*ParkedReport
	waiting int // number of parked reports
	stopped bool
}

func newParks(maxReports int, now func() time.Time) *Parks {
	return &Parks{maxReports: maxReports, now: now, deciding: make(chan struct{}, maxConcurrentDecisions), all: make(map[string]*ParkedReport)}
}

// BeginDecision waits until a parked report may be decided again. The caller must call done after the decision. ok is false if ctx ended
// first.
func (s *Parks) BeginDecision(ctx context.Context) (done func(), ok bool) {
	select {
	case <-ctx.Done():
		return nil, false
	case s.deciding <- struct{}{}:
		return func() { <-s.deciding }, true
	}
}

// notify puts a value into signal, unless one is there. The caller must hold Parks.mu.
func (p *ParkedReport) notify() {
	select {
	case p.signal <- struct{}{}:
	default: // p was notified already, and Poll was not called yet
	}
}

// endWait ends the wait of the report with this state. The caller must hold Parks.mu.
func (p *ParkedReport) endWait(state WaitState) {
	p.state = state
	p.notify()
}

// ReplaceOlder ends the wait of an older report of the device. If newer is not nil and there is room, it enters newer in s and returns
// true: newer may then be parked.
func (s *Parks) ReplaceOlder(device string, newer *ParkedReport) (entered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if older := s.all[device]; older != nil {
		older.endWait(Superseded)
		delete(s.all, device)
	}
	if newer == nil || s.stopped || len(s.all) >= s.maxReports {
		return false
	}
	s.all[device] = newer
	return true
}

// Leave removes a report that is answered or whose connection broke, if it was not removed before, and returns its WaitState.
func (s *Parks) Leave(report *ParkedReport) WaitState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[report.Device] == report {
		delete(s.all, report.Device)
	}
	if report.isParked {
		report.isParked = false
		s.waiting--
	}
	return report.state
}

// Poll returns the WaitState of a report and its WakeCall, and resets the WakeCall.
func (s *Parks) Poll(report *ParkedReport) (WaitState, WakeCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call := report.call
	report.call = WakeCall{}
	return report.state, call
}

// markParked records that report is parked. number is its number among the reports of all replicas.
func (s *Parks) markParked(report *ParkedReport, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	report.isParked, report.number = true, number
	s.waiting++
}

// has reports whether a report of the device is parked here, or may still be parked.
func (s *Parks) has(device string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[device] != nil
}

func (s *Parks) countParked() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.waiting)
}

// OnNewerReport ends the wait of the device's report here, if another replica has parked a report with a higher number.
func (s *Parks) OnNewerReport(device string, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.all[device]; p != nil && p.number != 0 && p.number < number {
		p.endWait(Superseded)
		delete(s.all, device)
	}
}

// OnWake wakes the reports of messages that are parked here.
func (s *Parks) OnWake(messages []parked.WakeMessage) { s.wake(messages) }

// wake wakes the reports of messages that are parked here, and returns the other messages.
func (s *Parks) wake(messages []parked.WakeMessage) (elsewhere []parked.WakeMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range messages {
		p := s.all[c.Device]
		if p == nil {
			elsewhere = append(elsewhere, c)
			continue
		}
		p.call.add(c, s.now())
		p.notify()
	}
	return elsewhere
}

// Stop ends the wait of all reports. After Stop, ReplaceOlder enters no report.
func (s *Parks) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, p := range s.all {
		p.endWait(Stopping)
	}
}
