package mqtt_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"go.uber.org/goleak"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/broker"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/internal/testservers"
)

const patience = 20 * time.Second

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// server is a broker that a test can take away and give back.
type server interface {
	URL() string
	Kill()
	Start()
}

type mosquitto struct{ *testservers.MosquittoServer }

func (m mosquitto) URL() string { return m.MosquittoServer.URL }

// embedded is our own broker, with an address that it keeps.
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
	eventually(e.t, "listening on "+e.addr, func() bool { // somebody may hold the port for a moment
		listener, err = net.Listen("tcp", e.addr)
		return err == nil
	})
	e.addr = listener.Addr().String()
	e.broker, err = broker.New(broker.Options{
		Listener: listener, Internal: broker.Credentials{User: "$dispatcher", Password: "internal"},
		Authenticate: func(context.Context, devices.ID, string) bool { return true },
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

// overBothBrokers runs a test over the embedded broker and a real mosquitto.
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
		test(t, mosquitto{testservers.Mosquitto(t)})
	})
}

// handlerFunc is a Handler.
type handlerFunc func(ctx context.Context, device devices.ID, body []byte) devices.Reply

func (f handlerFunc) HandleMQTT(ctx context.Context, device devices.ID, body []byte) devices.Reply {
	return f(ctx, device, body)
}

// echo answers a report with its body as re.
func echo(_ context.Context, _ devices.ID, body []byte) devices.Reply {
	return devices.Reply{Re: string(body), Reason: devices.ReasonNone}
}

// counter counts events.
type counter struct {
	mu     sync.Mutex
	events map[mqtt.Event]int
}

func (c *counter) add(e mqtt.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.events == nil {
		c.events = map[mqtt.Event]int{}
	}
	c.events[e]++
}

func (c *counter) get(e mqtt.Event) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events[e]
}

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

func connect(t *testing.T, o mqtt.Options) *mqtt.Client {
	t.Helper()
	c, err := mqtt.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, c) })
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

// fakeDevice is a device over plain paho.
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
	ready := make(chan struct{}, 10)
	d.Client = paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + addr).SetClientID(string(id)).SetUsername(string(id)).SetPassword("x").
		SetConnectRetry(true).SetConnectRetryInterval(100 * time.Millisecond).SetMaxReconnectInterval(time.Second).
		SetOnConnectHandler(func(c paho.Client) {
			token := c.Subscribe(devices.ReplyTopic(id), 1, func(_ paho.Client, m paho.Message) { d.replies <- string(m.Payload()) })
			if token.WaitTimeout(patience) && token.Error() == nil {
				ready <- struct{}{}
			}
		}))
	d.Connect()
	t.Cleanup(func() { d.Disconnect(50) })
	select {
	case <-ready:
	case <-time.After(patience):
		t.Fatal("the device cannot connect")
	}
	return d
}

func (d *fakeDevice) report(t *testing.T, body string) {
	t.Helper()
	if token := d.Publish(devices.ReportTopic(d.id), 1, false, body); !token.WaitTimeout(patience) || token.Error() != nil {
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

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		counts := &counter{}
		connect(t, mqtt.Options{URL: s.URL(), Count: counts.add, Handler: handlerFunc(func(_ context.Context, id devices.ID, body []byte) devices.Reply {
			return devices.Reply{Re: string(id) + " said " + string(body), Reason: devices.ReasonNone}
		})})
		for _, id := range []devices.ID{"a", "00:1A:2b"} {
			d := device(t, s, id)
			d.report(t, "hello")
			if got, want := d.reply(t).Re, string(id)+" said hello"; got != want {
				t.Errorf("re %q, want %q", got, want)
			}
		}
		if counts.get(mqtt.EventReport) != 2 || counts.get(mqtt.EventReplyLost) != 0 {
			t.Errorf("counts %v", counts.events)
		}
	})
}

func TestOrderPerDevice(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		const fleet, reports = 5, 60
		var busiest, now atomic.Int32
		connect(t, mqtt.Options{URL: s.URL(), Workers: 4, Queue: fleet * reports, Handler: handlerFunc(func(ctx context.Context, id devices.ID, body []byte) devices.Reply {
			if n := now.Add(1); n > busiest.Load() {
				busiest.Store(n)
			}
			defer now.Add(-1)
			return echo(ctx, id, body)
		})})
		var all sync.WaitGroup
		for i := range fleet {
			d := device(t, s, devices.ID(fmt.Sprint("device-", i)))
			all.Go(func() {
				for n := range reports {
					d.Publish(devices.ReportTopic(d.id), 1, false, fmt.Sprint(n))
				}
				for n := range reports {
					if got := d.reply(t).Re; got != fmt.Sprint(n) {
						t.Errorf("%s: reply to %s where %d was next", d.id, got, n)
						return
					}
				}
			})
		}
		all.Wait()
		if busiest.Load() > 4 {
			t.Errorf("%d reports were handled at once by 4 workers", busiest.Load())
		}
	})
}

func TestReconnectsAndSubscribesAgain(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		counts := &counter{}
		c := connect(t, mqtt.Options{URL: s.URL(), Count: counts.add, Handler: handlerFunc(echo)})
		s.Kill()
		eventually(t, "noticed", func() bool { return !c.Connected() })
		s.Start()
		restarted := time.Now()
		eventually(t, "connected again", c.Connected)
		if took := time.Since(restarted); took > 5*time.Second {
			t.Errorf("connected again after %s", took)
		}
		d := device(t, s, "a")
		d.report(t, "after")
		if got := d.reply(t).Re; got != "after" {
			t.Errorf("re %q", got)
		}
		if got := counts.get(mqtt.EventConnected); got != 2 {
			t.Errorf("subscribed %d times", got)
		}
	})
}

// TestStaleReplyIsNotDelivered: an answer that found no connection is not kept
// for the next one.
func TestStaleReplyIsNotDelivered(t *testing.T) {
	t.Parallel()
	s := mosquitto{testservers.Mosquitto(t)}
	proxy := testservers.NewProxy(t, s.Addr)
	release, entered := make(chan struct{}), make(chan struct{}, 10)
	counts := &counter{}
	c := connect(t, mqtt.Options{URL: "tcp://" + proxy.Addr, Count: counts.add, Handler: handlerFunc(func(ctx context.Context, id devices.ID, body []byte) devices.Reply {
		entered <- struct{}{}
		<-release
		return echo(ctx, id, body)
	})})
	d := device(t, s, "a")
	d.report(t, "stale")
	<-entered
	proxy.Cut()
	eventually(t, "noticed", func() bool { return !c.Connected() })
	close(release)
	eventually(t, "counted", func() bool { return counts.get(mqtt.EventReplyLost) == 1 })
	proxy.Heal()
	eventually(t, "connected again", c.Connected)
	d.report(t, "fresh")
	if got := d.reply(t).Re; got != "fresh" {
		t.Errorf("re %q", got)
	}
}

func TestStartsBeforeTheBroker(t *testing.T) {
	t.Parallel()
	e := &embedded{t: t, addr: testservers.FreeAddr(t)}
	c, err := mqtt.New(mqtt.Options{URL: e.URL(), Handler: handlerFunc(echo)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.Connected() {
		t.Error("connected to nothing")
	}
	e.Start()
	t.Cleanup(e.Kill)
	t.Cleanup(func() { stop(t, c) })
	eventually(t, "connected", c.Connected)
}

func TestRetainedReportIsNotHandled(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		d := device(t, s, "a")
		if token := d.Publish(devices.ReportTopic("a"), 1, true, "old"); !token.WaitTimeout(patience) || token.Error() != nil {
			t.Fatal(token.Error())
		}
		// A PUBACK may come before the distribution, but what follows comes after it.
		if token := d.Subscribe(devices.ReplyTopic("a"), 1, nil); !token.WaitTimeout(patience) || token.Error() != nil {
			t.Fatal(token.Error())
		}
		connect(t, mqtt.Options{URL: s.URL(), Handler: handlerFunc(echo)})
		d.report(t, "new")
		if got := d.reply(t).Re; got != "new" {
			t.Errorf("handled %q", got)
		}
	})
}

// TestFullQueueAnswersBusy holds the only worker, fills its queue, and expects
// the rest to be refused at once, and the others answered in the end.
func TestFullQueueAnswersBusy(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		release, entered := make(chan struct{}), make(chan struct{}, 100)
		counts := &counter{}
		connect(t, mqtt.Options{
			URL: s.URL(), Workers: 1, Queue: 2, BusyAfter: time.Second, Count: counts.add,
			Handler: handlerFunc(func(ctx context.Context, id devices.ID, body []byte) devices.Reply {
				entered <- struct{}{}
				<-release
				return echo(ctx, id, body)
			}),
		})
		slow, late := device(t, s, "slow"), device(t, s, "late")
		slow.report(t, "1")
		<-entered
		slow.report(t, `{"id":"2"}`)
		slow.report(t, `{"id":"3"}`)
		// A broker may hand these over after the first of late: ask until it is full.
		eventually(t, "busy", func() bool {
			late.report(t, `{"id":"4"}`)
			return counts.get(mqtt.EventBusy) > 0
		})
		busy := devices.Reply{}
		select {
		case text := <-late.replies:
			_ = json.Unmarshal([]byte(text), &busy)
		case text := <-slow.replies:
			_ = json.Unmarshal([]byte(text), &busy)
		case <-time.After(patience):
			t.Fatal("no reply while the worker is held")
		}
		if busy.Reason != devices.ReasonBusyServer || busy.Re == "" || busy.ReportAfterMS < 500 || busy.ReportAfterMS > 1500 {
			t.Errorf("reply %+v", busy)
		}
		close(release)
		if got := slow.reply(t); got.Re != "1" {
			t.Errorf("first reply %+v", got)
		}
	})
}

func TestStopFinishesWhatIsInFlight(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		release, entered := make(chan struct{}), make(chan struct{}, 100)
		c := connect(t, mqtt.Options{URL: s.URL(), Workers: 1, Handler: handlerFunc(func(ctx context.Context, id devices.ID, body []byte) devices.Reply {
			entered <- struct{}{}
			<-release
			return echo(ctx, id, body)
		})})
		d := device(t, s, "a")
		d.report(t, "handled")
		<-entered
		d.report(t, "queued")
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			stop(t, c)
		}()
		eventually(t, "not connected", func() bool { return !c.Connected() })
		close(release)
		<-stopped
		if got := d.reply(t).Re; got != "handled" {
			t.Errorf("re %q", got)
		}
		d.report(t, "too late")
		select {
		case <-entered: // "queued" was received before the unsubscription
			if got := d.reply(t).Re; got != "queued" {
				t.Errorf("re %q", got)
			}
		default:
		}
		if err := c.Start(t.Context()); err == nil {
			t.Error("started again")
		}
	})
}

func TestStopCancelsAHandlerThatHangs(t *testing.T) {
	t.Parallel()
	s := mosquitto{testservers.Mosquitto(t)}
	entered, left := make(chan struct{}), make(chan struct{})
	c, err := mqtt.New(mqtt.Options{URL: s.URL(), HandleTimeout: time.Hour, Handler: handlerFunc(func(ctx context.Context, _ devices.ID, _ []byte) devices.Reply {
		close(entered)
		<-ctx.Done()
		close(left)
		return devices.Reply{Reason: devices.ReasonUnavailable}
	})})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "connected", c.Connected)
	device(t, s, "a").report(t, "x")
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Stop(ctx); err == nil {
		t.Error("the report was not answered, and Stop says nothing")
	}
	select {
	case <-left:
	case <-time.After(patience):
		t.Error("the handler was not told to end")
	}
}

func TestStopWithoutStart(t *testing.T) {
	t.Parallel()
	c, err := mqtt.New(mqtt.Options{URL: "mqtt://127.0.0.1:1", Handler: handlerFunc(echo)})
	if err != nil {
		t.Fatal(err)
	}
	stop(t, c)
	stop(t, c)
}

func TestPanicIsAReply(t *testing.T) {
	t.Parallel()
	s := mosquitto{testservers.Mosquitto(t)}
	counts := &counter{}
	connect(t, mqtt.Options{URL: s.URL(), Workers: 1, Count: counts.add, Handler: handlerFunc(func(ctx context.Context, id devices.ID, body []byte) devices.Reply {
		if string(body) == `{"id":"poison"}` {
			panic(body)
		}
		return echo(ctx, id, body)
	})})
	d := device(t, s, "a")
	d.report(t, `{"id":"poison"}`)
	if got := d.reply(t); got.Re != "poison" || got.Reason != devices.ReasonUnavailable || got.ReportAfterMS == 0 {
		t.Errorf("reply %+v", got)
	}
	d.report(t, "fine")
	if got := d.reply(t); got.Re != "fine" {
		t.Errorf("reply %+v", got)
	}
	if counts.get(mqtt.EventPanic) != 1 {
		t.Error("not counted")
	}
}

func TestWake(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		c := connect(t, mqtt.Options{URL: s.URL(), Handler: handlerFunc(echo)})
		d := device(t, s, "a")
		c.Wake("a", 5*time.Second)
		c.Wake("a", 0)
		got := []string{<-d.replies, <-d.replies}
		if want := []string{`{"reason":"wake","hold_ms":5000}`, `{"reason":"wake"}`}; !slices.Equal(got, want) {
			t.Errorf("received %q", got)
		}
	})
}

// TestEveryReportIsAcknowledged sends more than mosquitto lets be open at once.
func TestEveryReportIsAcknowledged(t *testing.T) {
	t.Parallel()
	s := mosquitto{testservers.Mosquitto(t)}
	connect(t, mqtt.Options{URL: s.URL(), Handler: handlerFunc(echo)})
	d := device(t, s, "a")
	for n := range 300 { // max_inflight_messages is 20
		d.report(t, fmt.Sprint(n))
		if got := d.reply(t).Re; got != fmt.Sprint(n) {
			t.Fatalf("re %q at %d", got, n)
		}
	}
}

// TestReportsAreShared runs two replicas: each report reaches one of them.
func TestReportsAreShared(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		counts := &counter{}
		for range 2 {
			connect(t, mqtt.Options{URL: s.URL(), Count: counts.add, Handler: handlerFunc(echo)})
		}
		d := device(t, s, "a")
		const reports = 40
		for n := range reports {
			d.report(t, fmt.Sprint(n))
			d.reply(t)
		}
		if got := counts.get(mqtt.EventReport); got != reports {
			t.Errorf("%d handled", got)
		}
	})
}

// TestAccessListOfTheProtocol: a mosquitto set up as PROTOCOL.md says lets a
// device report, and not for another.
func TestAccessListOfTheProtocol(t *testing.T) {
	t.Parallel()
	s := testservers.MosquittoWithUsers(t, map[string]string{"dispatcher": "secret", "a": "x", "b": "x"},
		"user dispatcher", "topic read fleet/v1/+/report", "topic write fleet/v1/+/reply",
		"pattern write fleet/v1/%u/report", "pattern read fleet/v1/%u/reply")
	counts := &counter{}
	connect(t, mqtt.Options{URL: s.URL, User: "dispatcher", Password: "secret", Count: counts.add, Handler: handlerFunc(echo)})
	a := device(t, mosquitto{s}, "a")
	if token := a.Publish(devices.ReportTopic("b"), 1, false, "forged"); !token.WaitTimeout(patience) {
		t.Fatal("no answer") // mosquitto acknowledges what it drops
	}
	a.report(t, "own")
	if got := a.reply(t).Re; got != "own" {
		t.Errorf("re %q", got)
	}
	if got := counts.get(mqtt.EventReport); got != 1 {
		t.Errorf("%d reports were handled", got)
	}
}

func TestRefusedSubscriptionIsNotConnected(t *testing.T) {
	t.Parallel()
	e := &embedded{t: t, addr: "127.0.0.1:0"}
	e.Start()
	t.Cleanup(e.Kill)
	counts := &counter{}
	c, err := mqtt.New(mqtt.Options{URL: e.URL(), Group: "other", Count: counts.add, Handler: handlerFunc(echo)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer stop(t, c)
	eventually(t, "refused", func() bool { return counts.get(mqtt.EventSubscribeFail) > 0 })
	if c.Connected() {
		t.Error("says that reports arrive")
	}
}

func TestNewRefusesWrongOptions(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "127.0.0.1:1883", "http://h", "ws://h", "mqtt://", "mqtt://:1883", "mqtt://user:secret@h:x", "mqtt://h/path"} {
		_, err := mqtt.New(mqtt.Options{URL: url, Handler: handlerFunc(echo)})
		if err == nil {
			t.Errorf("%q accepted", url)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
	if _, err := mqtt.New(mqtt.Options{URL: "mqtt://h"}); err == nil {
		t.Error("no handler accepted")
	}
	if _, err := mqtt.New(mqtt.Options{URL: "mqtts://h", Handler: handlerFunc(echo), Workers: -1}); err == nil {
		t.Error("negative workers accepted")
	}
}
