package simulator

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/fleetslots/dispatcher/internal/test/await"
)

// authHook admits devices as an embedded broker does. User name and client id must be the device id, and the
// password must be the token. A device may use only its own topics.
type authHook struct {
	mochi.HookBase
	fake *fakeDispatcher
}

func (*authHook) Provides(b byte) bool {
	return b == mochi.OnConnectAuthenticate || b == mochi.OnACLCheck || b == mochi.OnPublish
}

func (d *authHook) OnPublish(_ *mochi.Client, p packets.Packet) (packets.Packet, error) {
	d.fake.mu.Lock()
	defer d.fake.mu.Unlock()
	if p.FixedHeader.Dup {
		d.fake.resentMessages++
	}
	return p, nil
}

func (d *authHook) OnConnectAuthenticate(c *mochi.Client, p packets.Packet) bool {
	d.fake.mu.Lock()
	defer d.fake.mu.Unlock()
	return string(p.Connect.Password) == d.fake.tokenFor(c.ID) && c.ID == string(p.Connect.Username)
}

func (*authHook) OnACLCheck(c *mochi.Client, topic string, write bool) bool {
	own := "fleet/v1/" + c.ID
	return topic == own+"/report" && write || topic == own+"/reply" && !write
}

// closingListener is a listener that closes its connections before the broker library mochi closes its clients. This
// avoids two faults of mochi. mochi counts a connection only in the goroutine that serves it, so the count may rise
// from zero while mochi waits for zero. And mochi deadlocks if a client leaves while mochi lists its clients, because
// mochi takes a read lock twice.
type closingListener struct {
	*listeners.Net
	listener net.Listener
	accepted []net.Conn // written by Serve until serving is closed
	clients  sync.WaitGroup
	serving  chan struct{}
}

func newClosingListener(l net.Listener) *closingListener {
	return &closingListener{Net: listeners.NewNet("tcp", l), listener: l, serving: make(chan struct{})}
}

func (g *closingListener) Serve(establish listeners.EstablishFn) {
	defer close(g.serving)
	for c, err := g.listener.Accept(); err == nil; c, err = g.listener.Accept() {
		g.accepted = append(g.accepted, c)
		g.clients.Go(func() { _ = establish(g.ID(), c) })
	}
}

func (g *closingListener) Close(closeClients listeners.CloseFn) {
	_ = g.listener.Close()
	<-g.serving
	for _, c := range g.accepted {
		_ = c.Close()
	}
	g.clients.Wait()
	closeClients(g.ID())
}

// serveMQTT starts a broker in front of a fake dispatcher and returns its URL.
func serveMQTT(t *testing.T, f *fakeDispatcher) (string, *mochi.Server) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	broker := mochi.New(&mochi.Options{Logger: slog.New(slog.DiscardHandler), InlineClient: true})
	answer := func(_ *mochi.Client, _ packets.Subscription, p packets.Packet) { f.answerMQTT(broker, p) }
	for _, err := range []error{
		broker.AddHook(&authHook{fake: f}, nil), broker.AddListener(newClosingListener(l)),
		broker.Subscribe("fleet/v1/+/report", 1, answer), broker.Serve(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = broker.Close() })
	return "mqtt://" + l.Addr().String(), broker
}

// runInBackground starts run in a goroutine. run must end with the context of the test.
func runInBackground(t *testing.T, run func()) {
	t.Helper()
	var running sync.WaitGroup
	running.Go(run)
	t.Cleanup(running.Wait)
}

func (f *fakeDispatcher) answerMQTT(broker *mochi.Server, p packets.Packet) {
	device := strings.TrimSuffix(strings.TrimPrefix(p.TopicName, "fleet/v1/"), "/report")
	f.mu.Lock()
	status, reply := f.report(device, p.Payload)
	f.mu.Unlock()
	if status != 200 {
		reply = map[string]any{"reason": "invalid", "code": reply["code"]}
	}
	var b bytes.Buffer
	encodeTo(&b, reply)
	_ = broker.Publish("fleet/v1/"+device+"/reply", b.Bytes(), false, 1)
}

func TestAMixedFleetWithAllFaults(t *testing.T) {
	t.Parallel()
	for _, via := range []Via{ViaMQTT, ViaMixed} {
		t.Run(string(via), func(t *testing.T) {
			t.Parallel()
			f, server := newFake(t)
			f.shortenLeases()
			c := testConfig(server.URL)
			c.MQTTURL, _ = serveMQTT(t, f)
			c.Via, c.Devices, c.Tasks, c.ResendAfter = via, 10, 40, 200*time.Millisecond
			c.Faults = Faults{Silent: 0.15, Slow: 0.1, Reboot: 0.1, Duplicate: 0.2, LostReplies: 0.1, Garbage: 0.2}
			s, _ := runAgainstFake(t, f, c)
			if err := s.Err(); err != nil {
				t.Fatalf("Err: %v", err)
			}
			if s.Compared != 40 || s.Fleet.GarbageRefused == 0 || s.Fleet.LostReplies == 0 || s.Fleet.Silent == 0 {
				t.Errorf("compared %d, %+v", s.Compared, s.Fleet)
			}
		})
	}
}

func TestAWakeBringsAReportAtOnce(t *testing.T) {
	t.Parallel()
	f, _ := newFake(t)
	url, broker := serveMQTT(t, f)
	fleet := newFleet(Config{
		MQTTURL: url, FleetToken: testFleetToken, Devices: 1, Via: ViaMQTT,
		Period: 20 * time.Millisecond, ResendAfter: time.Hour, FirstRetry: time.Millisecond,
	}, "127.0.0.1:1", nil, newLeases())
	d := fleet.newDevice(0)
	runInBackground(t, func() { d.run(t.Context(), 0) })
	received := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.receivedReports
	}
	await.True(t, "the expected state of the fleet", func() bool { return fleet.Stats().Replies >= 1 })
	before := received()
	f.mu.Lock()
	f.reportAfterMS = 3_600_000
	f.mu.Unlock()
	await.True(t, "the expected state of the fleet", func() bool { return received() > before })
	before = received()
	if err := broker.Publish(fmt.Sprintf("fleet/v1/%s/reply", d.id), []byte(`{"reason":"wake","hold_ms":5000}`), false, 0); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the expected state of the fleet", func() bool { return received() > before })
	if got := fleet.Stats().Violations; got != 0 {
		t.Errorf("%d violations: %s", got, fleet.Stats().FirstViolation)
	}
}

// TestAStrangerIsNotLetInByTheBroker checks a simulated device with a wrong token: the broker refuses it, so it
// never reports, and it counts errors.
func TestAStrangerIsNotLetInByTheBroker(t *testing.T) {
	t.Parallel()
	f, _ := newFake(t)
	url, _ := serveMQTT(t, f)
	fleet := newFleet(Config{
		MQTTURL: url, FleetToken: "wrong", Devices: 1, Via: ViaMQTT,
		Period: 10 * time.Millisecond, FirstRetry: time.Millisecond,
	}, "127.0.0.1:1", nil, newLeases())
	d := fleet.newDevice(0)
	runInBackground(t, func() { d.run(t.Context(), 0) })
	await.True(t, "the expected state of the fleet", func() bool { return fleet.Stats().Errors > 2 })
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.receivedReports != 0 {
		t.Errorf("%d reports got through", f.receivedReports)
	}
}

// TestTheGateClosesClientsAfterTheirConnections checks that no client is just leaving when the library mochi closes
// its clients, because then mochi would deadlock.
func TestTheGateClosesClientsAfterTheirConnections(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := newClosingListener(l)
	var connected, left atomic.Int32
	go g.Serve(func(_ string, c net.Conn) error {
		connected.Add(1)
		defer left.Add(1)
		_, err := c.Read(make([]byte, 1))
		return err
	})
	for range 10 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	await.True(t, "the expected state of the fleet", func() bool { return connected.Load() == 10 })
	g.Close(func(string) {
		if left := left.Load(); left != 10 {
			t.Errorf("%d of 10 connections had ended when the clients were closed", left)
		}
	})
}
