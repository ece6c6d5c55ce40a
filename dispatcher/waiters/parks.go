package waiters

import (
	"context"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
)

// Limits of a replica's parked reports.
const (
	maxParked  = 20_000 // each needs about 40 KB over HTTP/1.1, mostly for the connection
	maxLooking = 64     // maximum number of parked reports that are decided concurrently
)

// Ending is the reason why the wait of a report ended.
type Ending int

// The endings. Parked means that the wait has not ended.
const (
	Parked     Ending = iota
	Superseded        // the device sent a newer report
	Stopping          // this process ends
)

// Park is the newest report of a device, if the device lets the answer wait. It is
// entered in Parks before the report is first decided, so that no call between this
// decision and the wait is missed.
type Park struct {
	Device string
	Wait   time.Duration // maximum time for which the report is parked

	signal chan struct{} // holds a value while ending or call is unread

	// Guarded by Parks.mu.
	waits  bool  // the report is parked, and its first attempt is over
	number int64 // number of the report among all replicas; 0 if unknown
	ending Ending
	call   Call
}

// NewPark returns a Park that is not entered in Parks yet.
func NewPark(device string, wait time.Duration) *Park {
	return &Park{Device: device, Wait: wait, signal: make(chan struct{}, 1)}
}

// Signal returns a channel that receives a value when Look has something new to return.
func (p *Park) Signal() <-chan struct{} { return p.signal }

// Call is the offer for which a report was woken. If Pool is empty, the report was woken for another reason.
type Call struct {
	Called bool // the report was woken
	Pool   string
	Since  time.Time // when the slot became free, by this process's clock; zero if unknown
	At     time.Time // when the report was woken
}

// Pools returns the pools in which a slot is offered to the device: one pool, or nil.
func (c Call) Pools() []string {
	if c.Pool == "" {
		return nil
	}
	return []string{c.Pool}
}

// Parks holds the reports that are parked at this replica, by device.
type Parks struct {
	most    int
	now     func() time.Time
	looking chan struct{} // limits the reports that are decided concurrently

	mu      sync.Mutex
	all     map[string]*Park
	waiting int
	stopped bool
}

func newParks(most int, now func() time.Time) *Parks {
	return &Parks{most: most, now: now, looking: make(chan struct{}, maxLooking), all: make(map[string]*Park)}
}

// Begin waits until a parked report may be decided again, because at most maxLooking reports are
// decided concurrently. The caller must call done after the decision. If ok is false, ctx ended first.
func (s *Parks) Begin(ctx context.Context) (done func(), ok bool) {
	select {
	case <-ctx.Done():
		return nil, false
	case s.looking <- struct{}{}:
		return func() { <-s.looking }, true
	}
}

// notify must be called with Parks.mu held, or before p is shared.
func (p *Park) notify() {
	select {
	case p.signal <- struct{}{}:
	default: // p was notified already, and Look was not called yet
	}
}

func (p *Park) over(why Ending) {
	p.ending = why
	p.notify()
}

// Arrive ends the wait of an older report of the device. If p is not nil and there is room,
// Arrive enters p, which then may be parked.
func (s *Parks) Arrive(device string, p *Park) (room bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if older := s.all[device]; older != nil {
		older.over(Superseded)
		delete(s.all, device)
	}
	if p == nil || s.stopped || len(s.all) >= s.most {
		return false
	}
	s.all[device] = p
	return true
}

// Leave removes an answered report, and returns how its wait ended.
func (s *Parks) Leave(p *Park) Ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[p.Device] == p {
		delete(s.all, p.Device)
	}
	if p.waits {
		p.waits = false
		s.waiting--
	}
	return p.ending
}

// Look returns the ending and the latest call of a report, and resets the call.
func (s *Parks) Look(p *Park) (Ending, Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call := p.call
	p.call = Call{}
	return p.ending, call
}

// begin parks a report. number is the number of the report among all replicas.
func (s *Parks) begin(p *Park, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.waits, p.number = true, number
	s.waiting++
}

// has reports whether a report of the device is parked here, or may still be parked.
func (s *Parks) has(device string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[device] != nil
}

// count returns the number of parked reports.
func (s *Parks) count() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.waiting)
}

// Newer ends the wait of a report if number, of a report of the device at another replica, is newer.
func (s *Parks) Newer(device string, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.all[device]; p != nil && p.number != 0 && p.number < number {
		p.over(Superseded)
		delete(s.all, device)
	}
}

// Called wakes the reports that are parked here.
func (s *Parks) Called(calls []parked.Call) { s.wake(calls) }

// wake wakes the reports that are parked here, and returns the calls of all other
// reports.
func (s *Parks) wake(calls []parked.Call) (elsewhere []parked.Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range calls {
		p := s.all[c.Device]
		if p == nil {
			elsewhere = append(elsewhere, c)
			continue
		}
		p.call = Call{Called: true, Pool: c.Pool, At: s.now()}
		if c.Age > 0 {
			p.call.Since = p.call.At.Add(-c.Age)
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
		p.over(Stopping)
	}
}
