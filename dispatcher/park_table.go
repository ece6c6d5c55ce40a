package dispatcher

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/parked"
)

// Limits of a replica's parked reports.
const (
	maxParked  = 20_000 // at about 40 KB each over HTTP/1.1, most of it the connection's
	maxLooking = 64     // that look again at the same time
)

// ending is why a report is parked no longer.
type ending int

const (
	parkedStill ending = iota
	superseded         // the device sent a newer report
	stopping           // this process ends
)

// park is the newest report of a device that lets its answer wait. It is
// entered before its first look at what there is: so nothing that comes between
// that look and the wait is missed.
type park struct {
	device string
	wait   time.Duration // how long it is parked at most
	signal chan struct{} // holds one, when there is something new below

	// Guarded by parks.mu.
	waits  bool  // it is parked, and no longer under way
	number int64 // among all replicas; 0: not known
	ending ending
	call   offered
}

// offered is a place that a report was woken for; without a pool, other news.
type offered struct {
	called bool // there is any
	pool   string
	since  time.Time // when the place fell free, by this process's clock; zero: unknown
	at     time.Time // when it was called
}

// pools are those that keep a place for the device: one, or none.
func (o offered) pools() []string {
	if o.pool == "" {
		return nil
	}
	return []string{o.pool}
}

// parks are the reports that this replica has parked, by device.
type parks struct {
	most    int
	now     func() time.Time
	looking chan struct{} // bounds those that look again

	mu      sync.Mutex
	all     map[string]*park
	waiting int
	stopped bool
}

func newParks(most int, now func() time.Time) *parks {
	return &parks{most: most, now: now, looking: make(chan struct{}, maxLooking), all: make(map[string]*park)}
}

func newPark(device string, wait time.Duration) *park {
	return &park{device: device, wait: wait, signal: make(chan struct{}, 1)}
}

// show adds the number of parked reports to the metrics.
func (s *parks) show(r prometheus.Registerer) {
	if r == nil {
		return
	}
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dispatcher_reports_parked", Help: "Reports whose answer waits for a task (long poll).",
	}, s.count))
}

// notify is called with parks.mu held, or before anybody else knows of p.
func (p *park) notify() {
	select {
	case p.signal <- struct{}{}:
	default: // it was told and has not looked yet
	}
}

func (p *park) over(why ending) {
	p.ending = why
	p.notify()
}

// arrive ends what an older report of the device waits for. The new one, unless
// nil, may be parked if there is room.
func (s *parks) arrive(device string, p *park) (room bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if older := s.all[device]; older != nil {
		older.over(superseded)
		delete(s.all, device)
	}
	if p == nil || s.stopped || len(s.all) >= s.most {
		return false
	}
	s.all[device] = p
	return true
}

// leave forgets a report that is answered, and says how it ended.
func (s *parks) leave(p *park) ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[p.device] == p {
		delete(s.all, p.device)
	}
	if p.waits {
		p.waits = false
		s.waiting--
	}
	return p.ending
}

// look takes what there is to know of a report.
func (s *parks) look(p *park) (ending, offered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call := p.call
	p.call = offered{}
	return p.ending, call
}

// begin parks a report, which is of this number among those of all replicas.
func (s *parks) begin(p *park, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.waits, p.number = true, number
	s.waiting++
}

// has says whether a report of the device may be parked here, or is.
func (s *parks) has(device string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[device] != nil
}

// count is how many are parked.
func (s *parks) count() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.waiting)
}

// Newer ends a report whose device was parked elsewhere since.
func (s *parks) Newer(device string, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.all[device]; p != nil && p.number != 0 && p.number < number {
		p.over(superseded)
		delete(s.all, device)
	}
}

// Called lets reports look again.
func (s *parks) Called(calls []parked.Call) { s.wake(calls) }

// wake lets those of the reports look again that are parked here, and returns
// the calls of the others.
func (s *parks) wake(calls []parked.Call) (elsewhere []parked.Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range calls {
		p := s.all[c.Device]
		if p == nil {
			elsewhere = append(elsewhere, c)
			continue
		}
		p.call = offered{called: true, pool: c.Pool, at: s.now()}
		if c.Age >= 0 {
			p.call.since = p.call.at.Add(-c.Age)
		}
		p.notify()
	}
	return elsewhere
}

// stop ends the waiting of all, and lets nobody wait any more.
func (s *parks) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, p := range s.all {
		p.over(stopping)
	}
}
