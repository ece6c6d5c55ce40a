package waiters

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
)

// These limits apply to the parked reports of one replica.
const (
	maxParked              = 20_000 // each needs about 40 KB over HTTP/1.1, mostly for the connection
	maxConcurrentDecisions = 64     // maximum number of parked reports that are decided concurrently
)

// WaitState says whether ParkedReports has ended the wait of a report, and why. It stays Parked if the wait ends because of a decision or
// because its time is over.
type WaitState int

// The states of a wait.
const (
	Parked     WaitState = iota // ParkedReports has not ended the wait
	Superseded                  // the device sent a newer report
	Stopping                    // this process ends
)

// ParkedReport is the newest report of a device, whose answer may be delayed. It is entered in ParkedReports before its first attempt to get a
// task, so that no WakeMessage is missed between the attempt and the wait.
type ParkedReport struct {
	Device string
	Wait   time.Duration // maximum time for which the report is parked

	signal chan struct{} // holds a value if state or call changed since the last Poll

	// ParkedReports.mu guards the fields below.
	isParked bool  // the first attempt to get a task is over, and the report waits
	number   int64 // number of the report among all replicas; 0 if unknown
	state    WaitState
	call     WakeCall
}

// NewParkedReport returns a ParkedReport that is not entered in ParkedReports yet.
func NewParkedReport(device string, wait time.Duration) *ParkedReport {
	return &ParkedReport{Device: device, Wait: wait, signal: make(chan struct{}, 1)}
}

// Signal returns a channel that receives a value when Poll has something new to return.
func (p *ParkedReport) Signal() <-chan struct{} { return p.signal }

// WakeCall combines the messages that a report received since the previous Poll. The zero value means that there were no messages.
type WakeCall struct {
	Woken   bool
	Offered []string // pools of the messages: in each, a slot may be offered to the device

	// The fields below come from the latest message.
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

// ParkedReports holds the reports that are parked at this replica, by device.
type ParkedReports struct {
	maxReports int
	now        func() time.Time
	deciding   chan struct{} // has an element for each parked report that is being decided; its capacity limits their number

	mu      sync.Mutex
	all     map[string]*ParkedReport
	waiting int // number of parked reports
	stopped bool
}

func newParkedReports(maxReports int, now func() time.Time) *ParkedReports {
	return &ParkedReports{maxReports: maxReports, now: now, deciding: make(chan struct{}, maxConcurrentDecisions), all: make(map[string]*ParkedReport)}
}

// BeginDecision waits until few enough parked reports are being decided, so that one more may begin. The caller must call endDecision after the
// decision. ok is false if ctx ended first.
func (s *ParkedReports) BeginDecision(ctx context.Context) (endDecision func(), ok bool) {
	select {
	case <-ctx.Done():
		return nil, false
	case s.deciding <- struct{}{}:
		return func() { <-s.deciding }, true
	}
}

// signalChange puts a value into the channel signal, if the channel is empty. The caller must hold ParkedReports.mu.
func (p *ParkedReport) signalChange() {
	select {
	case p.signal <- struct{}{}:
	default: // p was notified already, and Poll was not called yet
	}
}

// endWait ends the wait of the report with this state. The caller must hold ParkedReports.mu.
func (p *ParkedReport) endWait(state WaitState) {
	p.state = state
	p.signalChange()
}

// ReplaceOlderReport ends the wait of an older report of the device. If newer is not nil and there is room, it enters newer in s and returns
// true. Only an entered report may be parked.
func (s *ParkedReports) ReplaceOlderReport(device string, newer *ParkedReport) (isEntered bool) {
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

// Leave removes a report that is answered or whose connection broke, and returns its WaitState. A repeated call changes nothing.
func (s *ParkedReports) Leave(report *ParkedReport) WaitState {
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

// Poll returns the state of a report and the WakeCall with the messages since the previous Poll. It then resets the WakeCall.
func (s *ParkedReports) Poll(report *ParkedReport) (state WaitState, wake WakeCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call := report.call
	report.call = WakeCall{}
	return report.state, call
}

// markParked records that report is parked. number is its number among the reports of all replicas.
func (s *ParkedReports) markParked(report *ParkedReport, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	report.isParked, report.number = true, number
	s.waiting++
}

// hasReport reports whether a report of the device is entered at this replica. An entered report is parked, or may be parked after its
// decision.
func (s *ParkedReports) hasReport(device string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[device] != nil
}

func (s *ParkedReports) parkedReportCount() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.waiting)
}

// OnNewerReport is called when another replica has parked a report of the device with this number. It ends the wait of the device's report at
// this replica if that report has a lower number.
func (s *ParkedReports) OnNewerReport(device string, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.all[device]; p != nil && p.number != 0 && p.number < number {
		p.endWait(Superseded)
		delete(s.all, device)
	}
}

// OnWake implements parked.Listener.
func (s *ParkedReports) OnWake(messages []parked.WakeMessage) { s.wakeOwnReports(messages) }

// wakeOwnReports wakes the reports at this replica to which messages are addressed. It returns the messages to other reports.
func (s *ParkedReports) wakeOwnReports(messages []parked.WakeMessage) (toOtherReplicas []parked.WakeMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range messages {
		p := s.all[c.Device]
		if p == nil {
			toOtherReplicas = append(toOtherReplicas, c)
			continue
		}
		p.call.add(c, s.now())
		p.signalChange()
	}
	return toOtherReplicas
}

// Stop ends the wait of all reports. After Stop, ReplaceOlderReport enters no report.
func (s *ParkedReports) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, p := range s.all {
		p.endWait(Stopping)
	}
}
