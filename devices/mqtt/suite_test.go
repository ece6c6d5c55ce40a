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
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// patience is the timeout of the tests. It is so long that it is not exceeded if the machine stalls for a while.
const patience = await.Patience

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// restartableBroker is a broker that a test can stop and start again.
type restartableBroker interface {
	URL() string
	Kill()
	Start()
}

type mosquittoBroker struct{ *servers.MosquittoServer }

func (m mosquittoBroker) URL() string { return m.MosquittoServer.URL }

// embeddedBroker is the embedded broker (package broker). It keeps its address when it is restarted.
type embeddedBroker struct {
	t      *testing.T
	addr   string
	broker *broker.Broker
}

func (e *embeddedBroker) URL() string { return "mqtt://$dispatcher:internal@" + e.addr }

func (e *embeddedBroker) Start() {
	e.t.Helper()
	var listener net.Listener
	var err error
	await.True(e.t, "listening on "+e.addr, func() bool { // Another process may use the port for a moment.
		listener, err = net.Listen("tcp", e.addr)
		return err == nil
	})
	e.addr = listener.Addr().String()
	e.broker, err = broker.New(broker.Options{
		Listener: listener, Internal: broker.Credentials{User: "$dispatcher", Password: "internal"},
		Authenticate: func(context.Context, devices.ID, string) error { return nil },
	})
	must.Succeed(e.t, err)
	must.Succeed(e.t, e.broker.Start())
}

func (e *embeddedBroker) Kill() {
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

// forBothBrokers runs a test once with the embedded broker and once with a real mosquitto.
func forBothBrokers(t *testing.T, test func(t *testing.T, s restartableBroker)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		e := &embeddedBroker{t: t, addr: "127.0.0.1:0"}
		e.Start()
		t.Cleanup(e.Kill)
		test(t, e)
	})
	t.Run("mosquitto", func(t *testing.T) {
		t.Parallel()
		test(t, mosquittoBroker{servers.StartMosquitto(t)})
	})
}

// replyFunc returns the reply to a report of the device. report is the id of the report.
type replyFunc func(ctx context.Context, device devices.ID, report string) devices.Reply

// reportHandler is a devices.Handler that has only two working methods: HandleReport and CountReport.
type reportHandler struct {
	devices.Handler
	counts *reasonCounter
	reply  replyFunc
}

func (h reportHandler) HandleReport(ctx context.Context, caller devices.Caller, report devices.Report) (devices.Reply, error) {
	return h.reply(ctx, caller.Device, report.ID), nil
}

func (h reportHandler) CountReport(_, reason string, _ time.Duration) { h.counts.add(reason) }

func newHandler(answer replyFunc) devices.Handler { return new(reasonCounter).newHandler(answer) }

// echoID returns a reply that contains only the id of the report.
func echoID(_ context.Context, _ devices.ID, report string) devices.Reply {
	return devices.Reply{Re: report, Reason: devices.ReasonNone}
}

// replyGate blocks the replies to reports: it signals each report on the channel entered, and answers when open is
// closed.
type replyGate struct{ entered, open chan struct{} }

func newReplyGate() *replyGate {
	return &replyGate{entered: make(chan struct{}, 100), open: make(chan struct{})}
}

func (g *replyGate) reply(ctx context.Context, device devices.ID, report string) devices.Reply {
	g.entered <- struct{}{}
	<-g.open
	return echoID(ctx, device, report)
}

// reasonCounter counts reports by the reason in their reply.
type reasonCounter struct {
	mu      sync.Mutex
	reasons map[string]int
}

func (c *reasonCounter) newHandler(answer replyFunc) devices.Handler {
	return reportHandler{counts: c, reply: answer}
}

func (c *reasonCounter) add(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reasons == nil {
		c.reasons = map[string]int{}
	}
	c.reasons[reason]++
}

func (c *reasonCounter) get(reason string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reasons[reason]
}

// startClient starts an MQTT client and does not wait until it is connected.
func startClient(t *testing.T, o mqtt.Options) *mqtt.Client {
	t.Helper()
	if o.Patience == 0 {
		o.Patience = patience
	}
	c, err := mqtt.New(o)
	must.Succeed(t, err)
	must.Succeed(t, c.Start(t.Context()))
	t.Cleanup(func() { stopClient(t, c) })
	return c
}

// startConnected starts an MQTT client and waits until it receives reports.
func startConnected(t *testing.T, o mqtt.Options) *mqtt.Client {
	t.Helper()
	c := startClient(t, o)
	await.True(t, "connected", c.Connected)
	return c
}

func stopClient(t *testing.T, c *mqtt.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// stopInBackground stops the client in the background. The returned channel is closed when the client has stopped.
func stopInBackground(t *testing.T, c *mqtt.Client) <-chan struct{} {
	t.Helper()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stopClient(t, c)
	}()
	return stopped
}

// fakeDevice is a device that uses a plain paho MQTT client.
type fakeDevice struct {
	paho.Client
	id      devices.ID
	replies chan string
}

func connectDevice(t *testing.T, s restartableBroker, id devices.ID) *fakeDevice {
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

// sendReport publishes a report with this id. The report asks for a task.
func (d *fakeDevice) sendReport(t *testing.T, id string) {
	t.Helper()
	if token := d.Publish(devices.ReportTopic(d.id), 1, false, fmt.Sprintf(`{"id":%q}`, id)); !token.WaitTimeout(patience) || token.Error() != nil {
		t.Fatalf("report: %v", token.Error())
	}
}

func (d *fakeDevice) nextReply(t *testing.T) devices.Reply {
	t.Helper()
	text := await.Receive(t, d.replies, "no reply")
	var reply devices.Reply
	if err := json.Unmarshal([]byte(text), &reply); err != nil {
		t.Fatalf("reply %q: %v", text, err)
	}
	return reply
}
