package mqtt_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"go.uber.org/goleak"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/broker"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// patience is the timeout of the tests. A machine that stalls for a while does not exceed it.
const patience = time.Minute

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// server is a broker that a test can stop and start again.
type server interface {
	URL() string
	Kill()
	Start()
}

type mosquitto struct{ *servers.MosquittoServer }

func (m mosquitto) URL() string { return m.MosquittoServer.URL }

// embedded is the broker of package broker. It keeps its address after a restart.
type embedded struct {
	t      *testing.T
	addr   string
	broker *broker.Broker
}

func (e *embedded) URL() string { return "mqtt://$dispatcher:internal@" + e.addr }

func (e *embedded) Start() {
	e.t.Helper()
	var listener net.Listener
	var err error
	eventually(e.t, "listening on "+e.addr, func() bool { // Another process may use the port for a moment.
		listener, err = net.Listen("tcp", e.addr)
		return err == nil
	})
	e.addr = listener.Addr().String()
	e.broker, err = broker.New(broker.Options{
		Listener: listener, Internal: broker.Credentials{User: "$dispatcher", Password: "internal"},
		Authenticate: func(context.Context, devices.ID, string) error { return nil },
	})
	if err != nil {
		e.t.Fatal(err)
	}
	if err := e.broker.Start(); err != nil {
		e.t.Fatal(err)
	}
}

func (e *embedded) Kill() {
	if e.broker == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.broker.Stop(ctx); err != nil {
		e.t.Error(err)
	}
	e.broker = nil
}

// overBothBrokers runs a test with the embedded broker and with a real mosquitto.
func overBothBrokers(t *testing.T, test func(t *testing.T, s server)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		e := &embedded{t: t, addr: "127.0.0.1:0"}
		e.Start()
		t.Cleanup(e.Kill)
		test(t, e)
	})
	t.Run("mosquitto", func(t *testing.T) {
		t.Parallel()
		test(t, mosquitto{servers.Mosquitto(t)})
	})
}

// handlerFunc returns the reply to the report with the id report.
type handlerFunc func(ctx context.Context, device devices.ID, report string) devices.Reply

// handler is a devices.Handler that implements only HandleReport and CountReport.
type handler struct {
	devices.Handler
	counts *counter
	answer handlerFunc
}

func (h handler) HandleReport(ctx context.Context, caller devices.Caller, report devices.Report) (devices.Reply, error) {
	return h.answer(ctx, caller.Device, report.ID), nil
}

func (h handler) CountReport(_, reason string, _ time.Duration) { h.counts.add(reason) }

func handlerOf(answer handlerFunc) devices.Handler { return new(counter).of(answer) }

// echo returns a reply with the id of the report.
func echo(_ context.Context, _ devices.ID, report string) devices.Reply {
	return devices.Reply{Re: report, Reason: devices.ReasonNone}
}

// gate has a handlerFunc that signals each report on entered and answers when open is closed.
type gate struct{ entered, open chan struct{} }

func newGate() *gate { return &gate{entered: make(chan struct{}, 100), open: make(chan struct{})} }

func (g *gate) answer(ctx context.Context, device devices.ID, report string) devices.Reply {
	g.entered <- struct{}{}
	<-g.open
	return echo(ctx, device, report)
}

// counter counts reports by the reasons of their replies.
type counter struct {
	mu      sync.Mutex
	reasons map[string]int
}

func (c *counter) of(answer handlerFunc) devices.Handler { return handler{counts: c, answer: answer} }

func (c *counter) add(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reasons == nil {
		c.reasons = map[string]int{}
	}
	c.reasons[reason]++
}

func (c *counter) get(reason string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reasons[reason]
}

// eventually waits until ok returns true. After patience it fails the test with what.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

// begin starts a client and does not wait for its connection.
func begin(t *testing.T, o mqtt.Options) *mqtt.Client {
	t.Helper()
	if o.Patience == 0 {
		o.Patience = patience
	}
	c, err := mqtt.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, c) })
	return c
}

// connect starts a client and waits until it receives reports.
func connect(t *testing.T, o mqtt.Options) *mqtt.Client {
	t.Helper()
	c := begin(t, o)
	eventually(t, "connected", c.Connected)
	return c
}

func stop(t *testing.T, c *mqtt.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// stopping stops a client in the background. The returned channel is closed when the client has stopped.
func stopping(t *testing.T, c *mqtt.Client) <-chan struct{} {
	t.Helper()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop(t, c)
	}()
	return stopped
}

// fakeDevice is a device that uses a plain paho client.
type fakeDevice struct {
	paho.Client
	id      devices.ID
	replies chan string
}

func device(t *testing.T, s server, id devices.ID) *fakeDevice {
	t.Helper()
	d := &fakeDevice{id: id, replies: make(chan string, 1000)}
	_, addr, _ := strings.Cut(s.URL(), "@")
	if addr == "" {
		_, addr, _ = strings.Cut(s.URL(), "//")
	}
	d.Client = paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + addr).SetClientID(string(id)).SetUsername(string(id)).SetPassword("x").
		SetAutoReconnect(false).SetConnectTimeout(patience).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { d.replies <- string(m.Payload()) }))
	for _, step := range []func() paho.Token{d.Connect, func() paho.Token { return d.Subscribe(devices.ReplyTopic(id), 1, nil) }} {
		if token := step(); !token.WaitTimeout(patience) || token.Error() != nil {
			t.Fatalf("the device cannot connect: %v", token.Error())
		}
	}
	t.Cleanup(func() { d.Disconnect(50) })
	return d
}

// report publishes a report with an id that asks for work.
func (d *fakeDevice) report(t *testing.T, id string) {
	t.Helper()
	if token := d.Publish(devices.ReportTopic(d.id), 1, false, fmt.Sprintf(`{"id":%q}`, id)); !token.WaitTimeout(patience) || token.Error() != nil {
		t.Fatalf("report: %v", token.Error())
	}
}

func (d *fakeDevice) reply(t *testing.T) devices.Reply {
	t.Helper()
	select {
	case text := <-d.replies:
		var reply devices.Reply
		if err := json.Unmarshal([]byte(text), &reply); err != nil {
			t.Fatalf("reply %q: %v", text, err)
		}
		return reply
	case <-time.After(patience):
		t.Fatal("no reply")
		return devices.Reply{}
	}
}
