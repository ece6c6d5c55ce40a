package mqtt_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		counts := &reasonCounter{}
		startConnected(t, mqtt.Options{URL: s.URL(), Handler: counts.newHandler(func(_ context.Context, id devices.ID, report string) devices.Reply {
			return devices.Reply{Re: string(id) + " said " + report, Reason: devices.ReasonNone}
		})})
		for _, id := range []devices.ID{"a", "00:1A:2b"} {
			d := connectDevice(t, s, id)
			d.sendReport(t, "hello")
			if got, want := d.nextReply(t).Re, string(id)+" said hello"; got != want {
				t.Errorf("re %q, want %q", got, want)
			}
		}
		if counts.get("none") != 2 {
			t.Errorf("counts %v", counts.reasons)
		}
	})
}

func TestOrderPerDevice(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		const fleet, reports, open = 3, 60, 3 // mosquitto delivers more than 20 unacknowledged messages out of order
		var busiest, now atomic.Int32
		startConnected(t, mqtt.Options{URL: s.URL(), Workers: 2, Handler: newHandler(func(ctx context.Context, id devices.ID, report string) devices.Reply {
			if n := now.Add(1); n > busiest.Load() {
				busiest.Store(n)
			}
			defer now.Add(-1)
			return echoID(ctx, id, report)
		})})
		var all sync.WaitGroup
		for i := range fleet {
			d := connectDevice(t, s, devices.ID(fmt.Sprint("device-", i)))
			all.Go(func() {
				for n := range reports {
					d.Publish(devices.ReportTopic(d.id), 1, false, fmt.Sprintf(`{"id":"%d"}`, n))
					if next := n - open + 1; next >= 0 {
						if got := d.nextReply(t).Re; got != fmt.Sprint(next) {
							t.Errorf("%s: reply to %s where %d was next", d.id, got, next)
							return
						}
					}
				}
			})
		}
		all.Wait()
		if busiest.Load() > 2 {
			t.Errorf("%d reports were handled at once by 2 workers", busiest.Load())
		}
	})
}

func TestReconnectsAndSubscribesAgain(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		var connected atomic.Int32
		c := startConnected(t, mqtt.Options{URL: s.URL(), OnConnected: func() { connected.Add(1) }, Handler: newHandler(echoID)})
		s.Kill()
		await.True(t, "noticed", func() bool { return !c.Connected() })
		s.Start()
		await.True(t, "connected again", c.Connected)
		d := connectDevice(t, s, "a")
		d.sendReport(t, "after")
		if got := d.nextReply(t).Re; got != "after" {
			t.Errorf("re %q", got)
		}
		if got := connected.Load(); got != 2 {
			t.Errorf("subscribed %d times", got)
		}
	})
}

// TestStaleReplyIsNotDelivered checks a reply that a replica publishes while it has no connection to the broker:
// the reply is dropped and not sent over the next connection.
func TestStaleReplyIsNotDelivered(t *testing.T) {
	t.Parallel()
	s := mosquittoBroker{servers.StartMosquitto(t)}
	proxy := servers.NewProxy(t, s.Addr)
	g := newReplyGate()
	log := newLineLog()
	c := startConnected(t, mqtt.Options{URL: "tcp://" + proxy.Addr, Logger: slog.New(log), Handler: newHandler(g.reply)})
	d := connectDevice(t, s, "a")
	d.sendReport(t, "stale")
	<-g.entered
	proxy.Cut()
	await.True(t, "noticed", func() bool { return !c.Connected() })
	close(g.open)
	await.True(t, "told", func() bool { return len(log.linesWith("was lost")) == 1 })
	proxy.EndCut()
	await.True(t, "connected again", c.Connected)
	d.sendReport(t, "fresh")
	if got := d.nextReply(t).Re; got != "fresh" {
		t.Errorf("re %q", got)
	}
}

func TestStartsBeforeTheBroker(t *testing.T) {
	t.Parallel()
	e := &embeddedBroker{t: t, addr: servers.FreeAddr(t)}
	c := startClient(t, mqtt.Options{URL: e.URL(), Handler: newHandler(echoID)})
	if c.Connected() {
		t.Error("connected to nothing")
	}
	e.Start()
	t.Cleanup(e.Kill)
	await.True(t, "connected", c.Connected)
}

func TestRetainedReportIsNotHandled(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		d := connectDevice(t, s, "a")
		if token := d.Publish(devices.ReportTopic("a"), 1, true, "old"); !token.WaitTimeout(patience) || token.Error() != nil {
			t.Fatal(token.Error())
		}
		// The PUBACK may arrive before the broker has distributed the message. The answer to a later packet shows
		// that the message was distributed.
		if token := d.Subscribe(devices.ReplyTopic("a"), 1, nil); !token.WaitTimeout(patience) || token.Error() != nil {
			t.Fatal(token.Error())
		}
		startConnected(t, mqtt.Options{URL: s.URL(), Handler: newHandler(echoID)})
		d.sendReport(t, "new")
		if got := d.nextReply(t).Re; got != "new" {
			t.Errorf("handled %q", got)
		}
	})
}

// TestFullQueueAnswersBusy checks a replica whose only worker is blocked and whose queue is full. The next report
// is refused at once. The queued reports are answered later.
func TestFullQueueAnswersBusy(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		g := newReplyGate()
		counts := &reasonCounter{}
		startConnected(t, mqtt.Options{URL: s.URL(), Workers: 1, Queue: 2, BusyAfter: time.Second, Handler: counts.newHandler(g.reply)})
		d := connectDevice(t, s, "a") // only one device: a broker keeps the order of one device's reports, but not between devices
		d.sendReport(t, "handled")
		<-g.entered
		for _, body := range []string{"queued", "queued too", "refused"} {
			d.sendReport(t, body)
		}
		busy := d.nextReply(t)
		if busy.Reason != devices.ReasonBusyServer || busy.Re != "refused" || busy.ReportAfterMS < 500 || busy.ReportAfterMS > 1500 {
			t.Errorf("reply %+v", busy)
		}
		if got := counts.get("busy_server"); got != 1 {
			t.Errorf("%d counted as busy", got)
		}
		close(g.open)
		for _, want := range []string{"handled", "queued", "queued too"} {
			if got := d.nextReply(t).Re; got != want {
				t.Errorf("re %q, want %q", got, want)
			}
		}
	})
}

func TestStopFinishesWhatIsInFlight(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		g := newReplyGate()
		c := startConnected(t, mqtt.Options{URL: s.URL(), Workers: 1, Handler: newHandler(g.reply)})
		d := connectDevice(t, s, "a")
		d.sendReport(t, "handled")
		<-g.entered
		d.sendReport(t, "queued")
		stopped := stopInBackground(t, c)
		await.True(t, "not connected", func() bool { return !c.Connected() })
		<-time.After(500 * time.Millisecond) // so that Stop, which first waits 50 ms for reports that paho has read, waits for the reply
		close(g.open)
		<-stopped
		if got := d.nextReply(t).Re; got != "handled" {
			t.Errorf("re %q", got)
		}
		d.sendReport(t, "too late")
		select {
		case <-g.entered: // The client has received "queued" before it unsubscribed.
			if got := d.nextReply(t).Re; got != "queued" {
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
	s := mosquittoBroker{servers.StartMosquitto(t)}
	entered, left := make(chan struct{}), make(chan struct{})
	c, err := mqtt.New(mqtt.Options{URL: s.URL(), HandleTimeout: time.Hour, Handler: newHandler(func(ctx context.Context, _ devices.ID, _ string) devices.Reply {
		close(entered)
		<-ctx.Done()
		close(left)
		return devices.Reply{Reason: devices.ReasonUnavailable}
	})})
	must.Succeed(t, err)
	must.Succeed(t, c.Start(t.Context()))
	await.True(t, "connected", c.Connected)
	connectDevice(t, s, "a").sendReport(t, "x")
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
	c, err := mqtt.New(mqtt.Options{URL: "mqtt://127.0.0.1:1", Handler: newHandler(echoID)})
	must.Succeed(t, err)
	stopClient(t, c)
	stopClient(t, c)
}

func TestPanicIsAReply(t *testing.T) {
	t.Parallel()
	s := mosquittoBroker{servers.StartMosquitto(t)}
	counts := &reasonCounter{}
	startConnected(t, mqtt.Options{URL: s.URL(), Workers: 1, Handler: counts.newHandler(func(ctx context.Context, id devices.ID, report string) devices.Reply {
		if report == "poison" {
			panic(report)
		}
		return echoID(ctx, id, report)
	})})
	d := connectDevice(t, s, "a")
	d.sendReport(t, "poison")
	if got := d.nextReply(t); got.Re != "poison" || got.Reason != devices.ReasonUnavailable || got.ReportAfterMS == 0 {
		t.Errorf("reply %+v", got)
	}
	d.sendReport(t, "fine")
	if got := d.nextReply(t); got.Re != "fine" {
		t.Errorf("reply %+v", got)
	}
	if counts.get("unavailable") != 1 {
		t.Error("not counted")
	}
}

func TestWake(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		c := startConnected(t, mqtt.Options{URL: s.URL(), Handler: newHandler(echoID)})
		d := connectDevice(t, s, "a")
		c.Wake("a", 5*time.Second)
		c.Wake("a", 0)
		got := []string{<-d.replies, <-d.replies}
		if want := []string{`{"reason":"wake","hold_ms":5000}`, `{"reason":"wake"}`}; !slices.Equal(got, want) {
			t.Errorf("received %q", got)
		}
	})
}

// TestRepliesArriveAndWakesMayNot checks the messages to a device: a reply has QoS 1 and a wake has QoS 0. The
// broker retains neither of them for a client that subscribes later.
func TestRepliesArriveAndWakesMayNot(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		c := startConnected(t, mqtt.Options{URL: s.URL(), Handler: newHandler(echoID)})
		d := connectDevice(t, s, "a")
		got := make(chan paho.Message, 3)
		subscribe := func() {
			if token := d.Subscribe(devices.ReplyTopic("a"), 1, func(_ paho.Client, m paho.Message) { got <- m }); !token.WaitTimeout(patience) || token.Error() != nil {
				t.Fatalf("subscribing: %v", token.Error())
			}
		}
		subscribe()
		d.sendReport(t, "1")
		reply := <-got
		c.Wake("a", 0)
		wake := <-got
		subscribe() // A retained message would be delivered again, before any newer message.
		c.Wake("a", time.Second)
		last := <-got
		if reply.Qos() != 1 || wake.Qos() != 0 || last.Retained() || !strings.Contains(string(last.Payload()), "hold_ms") {
			t.Errorf("reply with QoS %d, wake with %d, then %s (retained: %t)", reply.Qos(), wake.Qos(), last.Payload(), last.Retained())
		}
	})
}

// TestEveryReportIsAcknowledged sends more reports than mosquitto allows to be unacknowledged. The client must
// acknowledge each, or no more would arrive.
func TestEveryReportIsAcknowledged(t *testing.T) {
	t.Parallel()
	s := mosquittoBroker{servers.StartMosquitto(t)}
	startConnected(t, mqtt.Options{URL: s.URL(), Handler: newHandler(echoID)})
	d := connectDevice(t, s, "a")
	for n := range 300 { // max_inflight_messages is 20
		d.sendReport(t, fmt.Sprint(n))
		if got := d.nextReply(t).Re; got != fmt.Sprint(n) {
			t.Fatalf("re %q at %d", got, n)
		}
	}
}

// TestReportsAreShared runs two replicas at one broker. Each report must reach exactly one of them.
func TestReportsAreShared(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		counts := &reasonCounter{}
		for range 2 {
			startConnected(t, mqtt.Options{URL: s.URL(), Handler: counts.newHandler(echoID)})
		}
		d := connectDevice(t, s, "a")
		const reports = 40
		for n := range reports {
			d.sendReport(t, fmt.Sprint(n))
			d.nextReply(t)
		}
		if got := counts.get("none"); got != reports {
			t.Errorf("%d handled", got)
		}
	})
}

// TestAccessListOfTheProtocol checks a mosquitto with the access list of docs/protocol.md: a device can report for
// itself, but not for another device.
func TestAccessListOfTheProtocol(t *testing.T) {
	t.Parallel()
	s := servers.StartMosquittoWithUsers(t, map[string]string{"dispatcher": "secret", "a": "x", "b": "x"},
		"user dispatcher", "topic read fleet/v1/+/report", "topic write fleet/v1/+/reply",
		"pattern write fleet/v1/%u/report", "pattern read fleet/v1/%u/reply")
	counts := &reasonCounter{}
	startConnected(t, mqtt.Options{URL: s.URL, User: "dispatcher", Password: "secret", Handler: counts.newHandler(echoID)})
	a := connectDevice(t, mosquittoBroker{s}, "a")
	if token := a.Publish(devices.ReportTopic("b"), 1, false, "forged"); !token.WaitTimeout(patience) {
		t.Fatal("no answer") // mosquitto also acknowledges a message that it drops.
	}
	a.sendReport(t, "own")
	if got := a.nextReply(t).Re; got != "own" {
		t.Errorf("re %q", got)
	}
	if got := counts.get("none"); got != 1 {
		t.Errorf("%d reports were handled", got)
	}
}

func TestRefusedSubscriptionIsNotConnected(t *testing.T) {
	t.Parallel()
	e := &embeddedBroker{t: t, addr: "127.0.0.1:0"}
	e.Start()
	t.Cleanup(e.Kill)
	log := newLineLog()
	c := startClient(t, mqtt.Options{URL: e.URL(), Group: "other", Logger: slog.New(log), Handler: newHandler(echoID)})
	await.True(t, "refused", func() bool { return len(log.linesWith("refused the subscription")) > 0 })
	if c.Connected() {
		t.Error("says that reports arrive")
	}
	await.True(t, "the reason", func() bool {
		err := c.Check()
		return err != nil && strings.Contains(err.Error(), "refused the subscription")
	})
}

func TestNewRefusesWrongOptions(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "127.0.0.1:1883", "http://h", "ws://h", "mqtt://", "mqtt://:1883", "mqtt://user:secret@h:x", "mqtt://h/path"} {
		_, err := mqtt.New(mqtt.Options{URL: url, Handler: newHandler(echoID)})
		if err == nil {
			t.Errorf("%q accepted", url)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
	if _, err := mqtt.New(mqtt.Options{URL: "mqtt://h"}); err == nil {
		t.Error("no handler accepted")
	}
	if _, err := mqtt.New(mqtt.Options{URL: "mqtts://h", Handler: newHandler(echoID), Workers: -1}); err == nil {
		t.Error("negative workers accepted")
	}
}

type refusingHandler struct{ devices.Handler }

func (refusingHandler) HandleReport(context.Context, devices.Caller, devices.Report) (devices.Reply, error) {
	return devices.Reply{}, devices.ErrUnavailable
}

func (refusingHandler) DelayAfterRefusal(devices.Reason) time.Duration { return 7 * time.Second }

func (refusingHandler) CountReport(string, string, time.Duration) {}

// TestARefusalNamesItsReport checks a refused report: the reply names the report and the time of the next one.
func TestARefusalNamesItsReport(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		startConnected(t, mqtt.Options{URL: s.URL(), Handler: refusingHandler{}})
		d := connectDevice(t, s, "a")
		d.sendReport(t, "mine")
		if got := d.nextReply(t); got.Re != "mine" || got.Reason != devices.ReasonUnavailable || got.ReportAfterMS != 7000 {
			t.Errorf("%+v, want unavailable for mine, and 7 s", got)
		}
	})
}
