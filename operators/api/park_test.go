package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/store"
)

// ask sends a report with the header Prefer.
func (b *bench) ask(ctx context.Context, device, prefer string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+"/v1/devices/"+device+"/report", strings.NewReader(`{"id":"`+device+`"}`))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+fleetToken)
	request.Header.Set("Prefer", prefer)
	return http.DefaultClient.Do(request)
}

// longPolls sets the maximum time that a response may wait.
func longPolls(most time.Duration) func(*setup) {
	return func(s *setup) { s.reports.LongPollMax = most }
}

func (b *bench) wake(device string) {
	b.dispatcher.Waiters.Parks.Called([]parked.Call{{Device: device, Pool: "p"}})
}

// wakeUntil wakes a report again and again until it is answered, because the test cannot observe when it is parked.
func (b *bench) wakeUntil(done <-chan answer, device string) answer {
	b.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		select {
		case a := <-done:
			return a
		case <-tick.C:
			b.wake(device)
		case <-deadline:
			b.Fatal("never answered")
		}
	}
}

func (b *bench) asking(ctx context.Context, device, prefer string) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		response, err := b.ask(ctx, device, prefer)
		if err != nil {
			done <- answer{t: b.T, what: err.Error()}
			return
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		done <- answer{t: b.T, what: device, status: response.StatusCode, header: response.Header, body: body}
	}()
	return done
}

func TestLongPollIsAnsweredWithTheGrant(t *testing.T) {
	t.Parallel()
	b := embedded(t, longPolls(time.Minute))
	b.pool("p", `{"capacity":60}`)
	done := b.asking(t.Context(), "d", "wait=50")
	b.batch(`{"pool":"p","devices":["d"]}`)
	a := b.wakeUntil(done, "d")
	var got devices.Reply
	a.must(200).into(&got)
	if got.Task == nil || got.Re != "d" || a.header.Get("Preference-Applied") != "wait=50" || a.header.Get("Content-Length") != fmt.Sprint(len(a.body)) {
		t.Errorf("%s with %v, want a grant, whole", a.body, a.header)
	}
}

func TestLongPollEndsAtTheLimit(t *testing.T) {
	t.Parallel()
	b := embedded(t, longPolls(1500*time.Millisecond))
	for prefer, applied := range map[string]string{"wait=9999": "wait=1", `foo, Wait = "1"`: "wait=1"} {
		a := <-b.asking(t.Context(), "d", prefer)
		var got devices.Reply
		a.must(200).into(&got)
		if got.Reason != devices.ReasonNone || got.HeldMS < 1000 || got.ReportAfterMS > 250 || a.header.Get("Preference-Applied") != applied {
			t.Errorf("%s: %s with %v", prefer, a.body, a.header)
		}
	}
	for _, prefer := range []string{"", "wait=0", "wait=soon", "respond-async"} {
		a := <-b.asking(t.Context(), "d", prefer)
		var got devices.Reply
		a.must(200).into(&got)
		if got.HeldMS != 0 || got.ReportAfterMS < 1000 || a.header.Get("Preference-Applied") != "" {
			t.Errorf("%q: %s with %v, want it answered at once", prefer, a.body, a.header)
		}
	}
}

func TestLongPollCanBeOff(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	a := (<-b.asking(t.Context(), "d", "wait=50")).must(200)
	if a.header.Get("Preference-Applied") != "" {
		t.Errorf("%v", a.header)
	}
}

// A waiting report needs no permit for concurrent reports: with one permit, another report is answered at the same time.
func TestLongPollTakesNoPermit(t *testing.T) {
	t.Parallel()
	b := embedded(t, longPolls(time.Minute), func(s *setup) { s.reports.MaxReports = 1 })
	b.pool("p", `{"capacity":60}`)
	first := b.asking(t.Context(), "d-1", "wait=50")
	b.parkedNow(1)
	for range 3 {
		b.report("d-2", `{}`).must(200)
	}
	b.dispatcher.Waiters.Parks.Stop()
	(<-first).must(200)
}

// The timeouts of the connection apply to requests that are answered at once. A longer wait must not look like a client
// that has disconnected.
func TestLongPollOutlastsTheServersTimeouts(t *testing.T) {
	t.Parallel()
	b := embedded(t, longPolls(time.Minute))
	server := &http.Server{Handler: b.api.Handler(), ReadTimeout: 500 * time.Millisecond, WriteTimeout: 500 * time.Millisecond, ReadHeaderTimeout: 500 * time.Millisecond}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	b.url = "http://" + l.Addr().String()
	a := <-b.asking(t.Context(), "d", "wait=2")
	var got devices.Reply
	a.must(200).into(&got)
	if got.HeldMS < 2000 {
		t.Errorf("%s, want it held for 2 s", a.body)
	}
}

// A device that closes its connection gets no grant, and its slot is not lost: the next report gets it.
func TestLongPollOfADeviceThatLeaves(t *testing.T) {
	t.Parallel()
	b := embedded(t, longPolls(time.Minute))
	b.pool("p", `{"capacity":1}`)
	ctx, leave := context.WithCancel(t.Context())
	done := b.asking(ctx, "d", "wait=50")
	b.parkedNow(1)
	leave()
	<-done
	b.parkedNow(0)
	b.batch(`{"pool":"p","devices":["d","e"]}`)
	b.wake("d")
	var got devices.Reply
	b.report("e", `{}`).must(200).into(&got)
	if got.Task == nil {
		t.Errorf("%+v, want the slot", got)
	}
}

// parkedNow waits until the dispatcher counts this number of parked reports.
func (b *bench) parkedNow(want uint64) {
	b.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	line := fmt.Sprintf("dispatcher_reports_parked %d\n", want)
	for deadline := time.Now().Add(patience); ; <-tick.C {
		text := string(b.call("GET", "/metrics", adminToken, nil).must(200).body)
		if strings.Contains(text, line) {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("never %d parked", want)
		}
	}
}

// pipes is a listener whose connections stay in this process, so that their number is limited only by memory.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{accept: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.accept <- server
	return client
}

// The memory of each parked report is limited, and all are answered when the process ends. PARKED=10000 parks 10,000
// reports. The test does not run in parallel, because it measures the memory of the process.
func TestManyLongPolls(t *testing.T) { //nolint:paralleltest // see above
	const wave = 50 // reports at once
	fleet := uint64(500)
	if text := os.Getenv("PARKED"); text != "" {
		var err error
		if fleet, err = strconv.ParseUint(text, 10, 16); err != nil {
			t.Fatal(err)
		}
	}
	b := embedded(t, longPolls(10*time.Minute))
	known := make([]store.NewDevice, fleet)
	for n := range known {
		hash := credentials.HashToken(strconv.Itoa(n))
		known[n] = store.NewDevice{ID: fmt.Sprintf("d-%d", n), Hash: hash[:]}
	}
	if _, err := b.store.ImportDevices(t.Context(), "test", known, store.RefuseExisting, 0, 0); err != nil {
		t.Fatal(err)
	}
	l := newPipes()
	server := &http.Server{Handler: b.api.Handler(), ReadTimeout: patience}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	before := inUse()
	var clients sync.WaitGroup
	for n := range fleet {
		clients.Go(func() { l.waits(t, fmt.Sprintf("d-%d", n)) })
		if (n+1)%wave == 0 {
			b.parkedNow(n + 1)
		}
	}
	after := inUse()
	each := (after.HeapInuse + after.StackInuse - before.HeapInuse - before.StackInuse) / fleet
	t.Logf("%d bytes for each of %d parked reports, both ends of the connection included (heap %d, stacks %d)",
		each, fleet, (after.HeapInuse-before.HeapInuse)/fleet, (after.StackInuse-before.StackInuse)/fleet)
	if each > 100<<10 {
		t.Errorf("%d bytes for each", each)
	}
	begin := time.Now()
	b.dispatcher.Waiters.Parks.Stop()
	clients.Wait()
	t.Logf("all answered after %s", time.Since(begin).Round(time.Millisecond))
}

// waits sends a report that prefers to wait and returns after the response 200. If a busy machine refuses the report, waits sends it
// again.
func (p *pipes) waits(t *testing.T, device string) {
	t.Helper()
	c := p.dial()
	defer c.Close()
	in := bufio.NewReaderSize(c, 512)
	for {
		_, err := fmt.Fprintf(c, "POST /v1/devices/%s/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nPrefer: wait=600\r\nContent-Length: 2\r\n\r\n{}", device, fleetToken)
		if err != nil {
			t.Error(err)
			return
		}
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Errorf("%s: %v", device, err)
			return
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return
		}
	}
}

// inUse returns the memory statistics after several collections, because each collection halves the stacks.
func inUse() (m runtime.MemStats) {
	for range 4 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m
}
