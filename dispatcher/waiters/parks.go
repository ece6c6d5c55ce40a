package waiters

import (
	"context"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
)

// Limits of a replica's parked reports.
const (
	maxParked  = 20_000 // at about 40 KB each over HTTP/1.1, most of it the connection's
	maxLooking = 64     // that look again at the same time
)

// Ending is why a report is parked no longer.
type Ending int

// The endings. Parked: there is none.
const (
	Parked     Ending = iota
	Superseded        // the device sent a newer report
	Stopping          // this process ends
)

// Park is the newest report of a device that lets its answer wait. It is
// entered before its first look at what there is: so nothing that comes between
// that look and the wait is missed.
type Park struct {
	Device string
	Wait   time.Duration // how long it is parked at most

	signal chan struct{} // holds one, when there is something new below

	// Guarded by Parks.mu.
	waits  bool  // it is parked, and no longer under way
	number int64 // among all replicas; 0: not known
	ending Ending
	call   Call
}

// NewPark returns one that is not entered yet.
func NewPark(device string, wait time.Duration) *Park {
	return &Park{Device: device, Wait: wait, signal: make(chan struct{}, 1)}
}

// Signal tells that there is something to look at.
func (p *Park) Signal() <-chan struct{} { return p.signal }

// Call is an offer that a report was woken for; without a pool, other news.
type Call struct {
	Called bool // there is any
	Pool   string
	Since  time.Time // when the slot fell free, by this process's clock; zero: unknown
	At     time.Time // when it was called
}

// Pools are those in which a slot is offered to the device: one, or none.
func (c Call) Pools() []string {
	if c.Pool == "" {
		return nil
	}
	return []string{c.Pool}
}

// Parks are the reports that this replica has parked, by device.
type Parks struct {
	most    int
	now     func() time.Time
	looking chan struct{} // bounds those that look again

	mu      sync.Mutex
	all     map[string]*Park
	waiting int
	stopped bool
}

func newParks(most int, now func() time.Time) *Parks {
	return &Parks{most: most, now: now, looking: make(chan struct{}, maxLooking), all: make(map[string]*Park)}
}

// Begin waits until the report may look again: not too many do at once. The caller
// says done after its look; false: ctx has ended before.
func (s *Parks) Begin(ctx context.Context) (done func(), ok bool) {
	select {
	case <-ctx.Done():
		return nil, false
	case s.looking <- struct{}{}:
		return func() { <-s.looking }, true
	}
}

// notify is called with Parks.mu held, or before anybody else knows of p.
func (p *Park) notify() {
	select {
	case p.signal <- struct{}{}:
	default: // it was told and has not looked yet
	}
}

func (p *Park) over(why Ending) {
	p.ending = why
	p.notify()
}

// Arrive ends what an older report of the device waits for. The new one, unless
// nil, may be parked if there is room.
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

// Leave forgets a report that is answered, and says how it ended.
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

// Look takes what there is to know of a report.
func (s *Parks) Look(p *Park) (Ending, Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call := p.call
	p.call = Call{}
	return p.ending, call
}

// begin parks a report, which is of this number among those of all replicas.
func (s *Parks) begin(p *Park, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.waits, p.number = true, number
	s.waiting++
}

// has says whether a report of the device may be parked here, or is.
func (s *Parks) has(device string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[device] != nil
}

// count is how many are parked.
func (s *Parks) count() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.waiting)
}

// Newer ends a report whose device was parked elsewhere since.
func (s *Parks) Newer(device string, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.all[device]; p != nil && p.number != 0 && p.number < number {
		p.over(Superseded)
		delete(s.all, device)
	}
}

// Called lets reports look again.
func (s *Parks) Called(calls []parked.Call) { s.wake(calls) }

// wake lets those of the reports look again that are parked here, and returns
// the calls of the others.
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

// Stop ends the waiting of all, and parks no report any more.
func (s *Parks) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, p := range s.all {
		p.over(Stopping)
	}
}
