package bench

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// client is one connection of a device, or of many in turn.
type client interface {
	// ask reports idle; task 0: nothing was granted.
	ask(device string) (task, token int64, err error)
	// end returns the result of a task, and asks for no other.
	end(device string, task, token int64) error
	Close() error
}

// load lets clients act for devices, each of them in turn.
type load struct {
	clients []client
	devices []string
	each    int           // how often a device acts before the next one does
	around  bool          // begins anew behind the last device
	span    time.Duration // at most
	rate    float64       // so many steps a second, each at its time; 0: as many as the clients can
}

// step is what a client does once; due is when it was to begin.
type step func(c client, device string, due time.Time, own *figures) error

// cycling is a load of devices that have a task each, over connections to every replica.
func (s *site) cycling(size scale, devices []string) load {
	l := load{devices: devices, each: 1, span: size.span}
	for n := range size.conns {
		c, err := dial(s.addrs[n%len(s.addrs)])
		if err != nil {
			s.t.Fatal(err)
		}
		l.clients = append(l.clients, c)
	}
	return l
}

// run ends when the devices or the time have run out. It closes the clients.
func (l load) run(s *site, do step) figures {
	var next atomic.Int64
	var sum figures
	var mu sync.Mutex
	var all sync.WaitGroup
	began := time.Now()
	for _, c := range l.clients {
		all.Go(func() {
			defer c.Close()
			own, err := l.one(s, c, &next, began, do)
			if err != nil {
				s.t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			sum.add(own)
		})
	}
	all.Wait()
	sum.elapsed = time.Since(began)
	return sum
}

// one is what one client does, until there is nothing left or something fails.
func (l load) one(s *site, c client, next *atomic.Int64, began time.Time, do step) (own figures, err error) {
	own.ends = began.Add(l.span)
	for !s.t.Failed() && s.ctx.Err() == nil {
		i := int(next.Add(1)) - 1
		if l.around {
			i %= len(l.devices)
		}
		if i >= len(l.devices) {
			return own, nil
		}
		for n := range l.each {
			due := time.Now()
			if l.rate > 0 {
				due = began.Add(time.Duration(float64(i*l.each+n) / l.rate * float64(time.Second)))
			}
			if due.Sub(began) >= l.span {
				return own, nil
			}
			s.paced(due)
			counted := own.count
			if err := do(c, l.devices[i], due, &own); err != nil {
				return own, err
			}
			own.tenths[min(9, int(10*time.Since(began)/l.span))] += own.count - counted
		}
	}
	return own, nil
}

// paced waits for a moment, or the end of the test: a device comes at its time.
func (s *site) paced(due time.Time) {
	select {
	case <-time.After(time.Until(due)):
	case <-s.ctx.Done():
	}
}

// cycle is a grant and its result: two reports, two commits. A refused report is
// sent again, until the time is over.
func cycle(c client, device string, due time.Time, own *figures) error {
	task, token, err := c.ask(device)
	for own.took(&due); task == 0; own.took(&due) {
		own.refused++
		if err != nil && !errors.Is(err, errBusy) || time.Now().After(own.ends) {
			return notBusy(err)
		}
		task, token, err = c.ask(device)
	}
	for err = errBusy; errors.Is(err, errBusy) && time.Now().Before(own.ends); own.took(&due) {
		err = c.end(device, task, token)
	}
	if err == nil {
		own.count++
	}
	return notBusy(err)
}

// took notes how long a report took. The next one is due at once.
func (f *figures) took(due *time.Time) {
	now := time.Now()
	f.times = append(f.times, now.Sub(*due))
	*due = now
}

// errBusy: the server could not answer in time, and the report may be sent again.
var errBusy = errors.New("not answered")

func notBusy(err error) error {
	if errors.Is(err, errBusy) {
		return nil
	}
	return err
}

// asking is a report of a device that has nothing to do.
func asking(c client, device string, due time.Time, own *figures) error {
	task, _, err := c.ask(device)
	own.took(&due)
	switch {
	case err != nil:
		own.refused++
		return notBusy(err)
	case task != 0:
		return fmt.Errorf("%s was granted task %d, and there is none", device, task)
	}
	own.count++
	return nil
}

// firstReports are of devices that nobody has registered.
func firstReports(s *site, size scale) figures {
	s.serve(1)
	l := s.cycling(size, names("d", int(size.span.Seconds()*float64(size.fastest))))
	return s.measured(func() figures { return l.run(s, asking) })
}

// ownTokens gives each device a token that its name tells.
const ownTokens = `INSERT INTO tokens (device, hash, created_at) SELECT id, sha256(('own-' || id)::bytea), now() FROM devices`

// idleReports are of devices with tokens of their own, each of which has reported some times.
func idleReports(s *site, size scale) figures {
	s.serve(1)
	known := s.known("d", 2*size.queued)
	s.query(ownTokens)
	for range 3 { // the first use of a token is news of its device, which is looked at again
		before := s.cycling(size, known)
		before.span = time.Minute
		own(before).run(s, asking)
	}
	l := own(s.cycling(size, known))
	l.around = true
	return s.measured(func() figures { return l.run(s, asking) })
}

func own(l load) load {
	for _, c := range l.clients {
		if one, is := c.(*conn); is {
			one.own = true
		}
	}
	return l
}
