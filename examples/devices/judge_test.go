package devices_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// grantKey names a grant: the number of a task and the fencing token.
type grantKey struct{ task, token int64 }

// stay is one connection of a device to the external system. The device is inside from entered to left.
type stay struct {
	device        string
	grant         grantKey
	entered, left time.Time // left is zero while the connection is open
}

// judge is the external system of the devices: a TCP server. A device writes a line "DEVICE TASK TOKEN", and is inside
// until its connection is closed.
type judge struct {
	addr             string
	onEnter, onLeave func(stay)

	running sync.WaitGroup
	mu      sync.Mutex
	all     []*stay
}

// newJudge starts a judge that calls onEnter and onLeave from several goroutines. It ends with the test.
func newJudge(t *testing.T, onEnter, onLeave func(stay)) *judge {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	j := &judge{addr: listener.Addr().String(), onEnter: onEnter, onLeave: onLeave}
	j.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			j.running.Go(func() { j.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		j.running.Wait() // all devices have ended
	})
	return j
}

func (j *judge) serve(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewReader(conn)
	line, err := lines.ReadString('\n')
	if err != nil {
		return // killed between connecting and writing
	}
	s := &stay{entered: time.Now()}
	if _, err := fmt.Sscan(line, &s.device, &s.grant.task, &s.grant.token); err != nil {
		s.device = fmt.Sprintf("%q", line)
	}
	j.mu.Lock()
	j.all = append(j.all, s)
	j.mu.Unlock()
	j.onEnter(*s)
	_, _ = io.Copy(io.Discard, lines)
	j.mu.Lock()
	s.left = time.Now()
	j.mu.Unlock()
	j.onLeave(*s)
}

// stays returns the stays that have ended, in the order in which they began.
func (j *judge) stays() []stay {
	j.mu.Lock()
	defer j.mu.Unlock()
	var ended []stay
	for _, s := range j.all {
		if !s.left.IsZero() {
			ended = append(ended, *s)
		}
	}
	return ended
}

// readingDelay is the longest time by which the judge may record an event late, on a busy machine.
const readingDelay = 150 * time.Millisecond

// violations returns what the stays violate: two devices in the external system at the same time, or a grant that was
// started twice.
func (j *judge) violations() []string {
	var found []string
	grants := map[grantKey]bool{}
	stays := j.stays()
	for i, s := range stays {
		if grants[s.grant] {
			found = append(found, fmt.Sprintf("%s started task %d twice with the token %d", s.device, s.grant.task, s.grant.token))
		}
		grants[s.grant] = true
		for _, later := range stays[i+1:] {
			end := s.left
			if later.left.Before(end) {
				end = later.left
			}
			if both := end.Sub(later.entered); both > readingDelay {
				found = append(found, fmt.Sprintf("%s (token %d) and %s (token %d) were inside together for %s", s.device, s.grant.token, later.device, later.grant.token, both))
			}
		}
	}
	return found
}
