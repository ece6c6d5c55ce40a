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
	"github.com/fleetslots/dispatcher/internal/test/must"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/store"
)

// longPoll sends a report of the device with this value of the header Prefer, so that it may be parked.
func (b *testAPI) longPoll(ctx context.Context, device, preferHeader string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, b.URL+"/v1/devices/"+device+"/report", strings.NewReader(`{"id":"`+device+`"}`))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+fleetToken)
	request.Header.Set("Prefer", preferHeader)
	return http.DefaultClient.Do(request)
}

// withLongPollMax sets the longest time for which a report may be parked.
func withLongPollMax(maxWait time.Duration) func(*rig.Options) {
	return func(s *rig.Options) { s.Reports.LongPollMax = maxWait }
}

func (b *testAPI) wakeParked(device string) {
	b.Dispatcher.Waiters.ParkedReports.OnWake([]parked.WakeMessage{{Device: device, Pool: "p"}})
}

// wakeUntil wakes the parked report of a device again and again until it is answered, because the test cannot
// observe when it is parked.
func (b *testAPI) wakeUntil(done <-chan rig.Response, device string) (answer rig.Response) {
	b.Helper()
	b.Await("the answer", func() bool {
		select {
		case answer = <-done:
			return true
		default:
			b.wakeParked(device)
			return false
		}
	})
	return answer
}

func (b *testAPI) startLongPoll(ctx context.Context, device, prefer string) <-chan rig.Response {
	done := make(chan rig.Response, 1)
	go func() {
		response, err := b.longPoll(ctx, device, prefer)
		if err != nil {
			done <- rig.Response{T: b.T, Line: err.Error()}
			return
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		done <- rig.Response{T: b.T, Line: device, Status: response.StatusCode, Header: response.Header, Body: body}
	}()
	return done
}

func TestLongPollIsAnsweredWithTheGrant(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, withLongPollMax(time.Minute))
	b.PutPool("p", `{"capacity":60}`)
	done := b.startLongPoll(t.Context(), "d", "wait=50")
	b.CreateBatch(`{"pool":"p","devices":["d"]}`)
	a := b.wakeUntil(done, "d")
	var got devices.Reply
	a.Expect(200).Decode(&got)
	if got.Task == nil || got.Re != "d" || a.Header.Get("Preference-Applied") != "wait=50" || a.Header.Get("Content-Length") != fmt.Sprint(len(a.Body)) {
		t.Errorf("%s with %v, want a grant, whole", a.Body, a.Header)
	}
}

func TestLongPollEndsAtTheLimit(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, withLongPollMax(1500*time.Millisecond))
	for prefer, applied := range map[string]string{"wait=9999": "wait=1", `foo, Wait = "1"`: "wait=1"} {
		a := <-b.startLongPoll(t.Context(), "d", prefer)
		var got devices.Reply
		a.Expect(200).Decode(&got)
		if got.Reason != devices.ReasonNone || got.HeldMS < 1000 || got.ReportAfterMS > 250 || a.Header.Get("Preference-Applied") != applied {
			t.Errorf("%s: %s with %v", prefer, a.Body, a.Header)
		}
	}
	for _, prefer := range []string{"", "wait=0", "wait=soon", "respond-async"} {
		a := <-b.startLongPoll(t.Context(), "d", prefer)
		var got devices.Reply
		a.Expect(200).Decode(&got)
		if got.HeldMS != 0 || got.ReportAfterMS < 1000 || a.Header.Get("Preference-Applied") != "" {
			t.Errorf("%q: %s with %v, want it answered at once", prefer, a.Body, a.Header)
		}
	}
}

func TestLongPollCanBeOff(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	a := (<-b.startLongPoll(t.Context(), "d", "wait=50")).Expect(200)
	if a.Header.Get("Preference-Applied") != "" {
		t.Errorf("%v", a.Header)
	}
}

// A report is parked while only one report may be handled at a time. It needs no permit, so another report is
// answered at the same time.
func TestLongPollTakesNoPermit(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, withLongPollMax(time.Minute), func(s *rig.Options) { s.Reports.MaxReports = 1 })
	b.PutPool("p", `{"capacity":60}`)
	first := b.startLongPoll(t.Context(), "d-1", "wait=50")
	b.waitForParked(1)
	for range 3 {
		b.SendReport("d-2", `{}`).Expect(200)
	}
	b.Dispatcher.Waiters.ParkedReports.Stop()
	(<-first).Expect(200)
}

// A report is parked for longer than the timeouts of its connection, which apply to requests that are answered at
// once. The server must not treat it as a client that has disconnected.
func TestLongPollOutlastsTheServersTimeouts(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, withLongPollMax(time.Minute))
	server := &http.Server{Handler: b.API.Handler(), ReadTimeout: 500 * time.Millisecond, WriteTimeout: 500 * time.Millisecond, ReadHeaderTimeout: 500 * time.Millisecond}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	b.Must(err)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	b.URL = "http://" + l.Addr().String()
	a := <-b.startLongPoll(t.Context(), "d", "wait=2")
	var got devices.Reply
	a.Expect(200).Decode(&got)
	if got.HeldMS < 2000 {
		t.Errorf("%s, want it held for 2 s", a.Body)
	}
}

// A device closes its connection while its report is parked. It gets no grant, and the slot is not lost: the next
// report gets it.
func TestLongPollOfADeviceThatLeaves(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, withLongPollMax(time.Minute))
	b.PutPool("p", `{"capacity":1}`)
	ctx, leave := context.WithCancel(t.Context())
	done := b.startLongPoll(ctx, "d", "wait=50")
	b.waitForParked(1)
	leave()
	<-done
	b.waitForParked(0)
	b.CreateBatch(`{"pool":"p","devices":["d","e"]}`)
	b.wakeParked("d")
	var got devices.Reply
	b.SendReport("e", `{}`).Expect(200).Decode(&got)
	if got.Task == nil {
		t.Errorf("%+v, want the slot", got)
	}
}

// waitForParked waits until the dispatcher counts this number of parked reports.
func (b *testAPI) waitForParked(want uint64) {
	b.Helper()
	var metrics string
	b.Await(fmt.Sprint(want, " parked reports"), func() bool {
		metrics = string(b.Call("GET", "/metrics", adminToken, nil).Expect(200).Body)
		return strings.Contains(metrics, fmt.Sprintf("dispatcher_reports_parked %d\n", want))
	}, &metrics)
}

// pipeListener is a listener whose connections stay inside this process, so that only memory limits their number.
type pipeListener struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{accept: make(chan net.Conn), closed: make(chan struct{})}
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	p.accept <- server
	return client
}

// Many reports are parked. The memory for each is limited, and all of them are answered when the process ends.
// PARKED=10000 parks 10,000 reports. The test measures the memory of the process, so it does not run in parallel.
func TestManyLongPolls(t *testing.T) { //nolint:paralleltest // see above
	const wave = 50 // reports at once
	fleet := uint64(500)
	if text := os.Getenv("PARKED"); text != "" {
		var err error
		if fleet, err = strconv.ParseUint(text, 10, 16); err != nil {
			t.Fatal(err)
		}
	}
	b := startEmbedded(t, withLongPollMax(10*time.Minute))
	known := make([]store.NewDevice, fleet)
	for n := range known {
		hash := credentials.HashToken(strconv.Itoa(n))
		known[n] = store.NewDevice{ID: fmt.Sprintf("d-%d", n), Hash: hash[:]}
	}
	_, err := b.store.ImportDevices(t.Context(), "test", known, store.RefuseExisting, 0, 0)
	must.Succeed(t, err)
	l := newPipeListener()
	server := &http.Server{Handler: b.API.Handler(), ReadTimeout: patience}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	before := readMemory()
	var clients sync.WaitGroup
	for n := range fleet {
		clients.Go(func() { l.longPollUntilAnswered(t, fmt.Sprintf("d-%d", n)) })
		if (n+1)%wave == 0 {
			b.waitForParked(n + 1)
		}
	}
	after := readMemory()
	each := (after.HeapInuse + after.StackInuse - before.HeapInuse - before.StackInuse) / fleet
	t.Logf("%d bytes for each of %d parked reports, both ends of the connection included (heap %d, stacks %d)",
		each, fleet, (after.HeapInuse-before.HeapInuse)/fleet, (after.StackInuse-before.StackInuse)/fleet)
	if each > 100<<10 {
		t.Errorf("%d bytes for each", each)
	}
	begin := time.Now()
	b.Dispatcher.Waiters.ParkedReports.Stop()
	clients.Wait()
	t.Logf("all answered after %s", time.Since(begin).Round(time.Millisecond))
}

// longPollUntilAnswered sends a report that prefers to wait and returns after the response 200. If a busy machine
// refuses the report, it is sent again.
func (p *pipeListener) longPollUntilAnswered(t *testing.T, device string) {
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

// readMemory returns the memory statistics of the process after several garbage collections. Several are needed,
// because each collection only halves the stacks.
func readMemory() (m runtime.MemStats) {
	for range 4 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m
}
