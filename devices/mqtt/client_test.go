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
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		counts := &counter{}
		connect(t, mqtt.Options{URL: s.URL(), Handler: counts.of(func(_ context.Context, id devices.ID, report string) devices.Reply {
			return devices.Reply{Re: string(id) + " said " + report, Reason: devices.ReasonNone}
		})})
		for _, id := range []devices.ID{"a", "00:1A:2b"} {
			d := device(t, s, id)
			d.report(t, "hello")
			if got, want := d.reply(t).Re, string(id)+" said hello"; got != want {
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
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		const fleet, reports, open = 3, 60, 3 // mosquitto delivers more than 20 unacknowledged messages out of order
		var busiest, now atomic.Int32
		connect(t, mqtt.Options{URL: s.URL(), Workers: 2, Handler: handlerOf(func(ctx context.Context, id devices.ID, report string) devices.Reply {
			if n := now.Add(1); n > busiest.Load() {
				busiest.Store(n)
			}
			defer now.Add(-1)
			return echo(ctx, id, report)
		})})
		var all sync.WaitGroup
		for i := range fleet {
			d := device(t, s, devices.ID(fmt.Sprint("device-", i)))
			all.Go(func() {
				for n := range reports {
					d.Publish(devices.ReportTopic(d.id), 1, false, fmt.Sprintf(`{"id":"%d"}`, n))
					if next := n - open + 1; next >= 0 {
						if got := d.reply(t).Re; got != fmt.Sprint(next) {
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
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		var connected atomic.Int32
		c := connect(t, mqtt.Options{URL: s.URL(), Connected: func() { connected.Add(1) }, Handler: handlerOf(echo)})
		s.Kill()
		eventually(t, "noticed", func() bool { return !c.Connected() })
		s.Start()
		eventually(t, "connected again", c.Connected)
		d := device(t, s, "a")
		d.report(t, "after")
		if got := d.reply(t).Re; got != "after" {
			t.Errorf("re %q", got)
		}
		if got := connected.Load(); got != 2 {
			t.Errorf("subscribed %d times", got)
		}
	})
}

// TestStaleReplyIsNotDelivered checks that a reply that is published without a connection is not
// kept for the next connection.
func TestStaleReplyIsNotDelivered(t *testing.T) {
	t.Parallel()
	s := mosquitto{servers.Mosquitto(t)}
	proxy := servers.NewProxy(t, s.Addr)
	g := newGate()
	log := newLog()
	c := connect(t, mqtt.Options{URL: "tcp://" + proxy.Addr, Logger: slog.New(log), Handler: handlerOf(g.answer)})
	d := device(t, s, "a")
	d.report(t, "stale")
	<-g.entered
	proxy.Cut()
	eventually(t, "noticed", func() bool { return !c.Connected() })
	close(g.open)
	eventually(t, "told", func() bool { return len(log.with("was lost")) == 1 })
	proxy.Heal()
	eventually(t, "connected again", c.Connected)
	d.report(t, "fresh")
	if got := d.reply(t).Re; got != "fresh" {
		t.Errorf("re %q", got)
	}
}

func TestStartsBeforeTheBroker(t *testing.T) {
	t.Parallel()
	e := &embedded{t: t, addr: servers.FreeAddr(t)}
	c := begin(t, mqtt.Options{URL: e.URL(), Handler: handlerOf(echo)})
	if c.Connected() {
		t.Error("connected to nothing")
	}
	e.Start()
	t.Cleanup(e.Kill)
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
		// The PUBACK may arrive before the broker has distributed the message, the answer to a later packet not.
		if token := d.Subscribe(devices.ReplyTopic("a"), 1, nil); !token.WaitTimeout(patience) || token.Error() != nil {
			t.Fatal(token.Error())
		}
		connect(t, mqtt.Options{URL: s.URL(), Handler: handlerOf(echo)})
		d.report(t, "new")
		if got := d.reply(t).Re; got != "new" {
			t.Errorf("handled %q", got)
		}
	})
}

// TestFullQueueAnswersBusy blocks the only worker and fills its queue. The next report must be
// refused at once, and the queued reports must be answered later.
func TestFullQueueAnswersBusy(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		g := newGate()
		counts := &counter{}
		connect(t, mqtt.Options{URL: s.URL(), Workers: 1, Queue: 2, BusyAfter: time.Second, Handler: counts.of(g.answer)})
		d := device(t, s, "a") // only one device: a broker keeps the order of one device's reports, but not between devices
		d.report(t, "handled")
		<-g.entered
		for _, body := range []string{"queued", "queued too", "refused"} {
			d.report(t, body)
		}
		busy := d.reply(t)
		if busy.Reason != devices.ReasonBusyServer || busy.Re != "refused" || busy.ReportAfterMS < 500 || busy.ReportAfterMS > 1500 {
			t.Errorf("reply %+v", busy)
		}
		if got := counts.get("busy_server"); got != 1 {
			t.Errorf("%d counted as busy", got)
		}
		close(g.open)
		for _, want := range []string{"handled", "queued", "queued too"} {
			if got := d.reply(t).Re; got != want {
				t.Errorf("re %q, want %q", got, want)
			}
		}
	})
}

func TestStopFinishesWhatIsInFlight(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		g := newGate()
		c := connect(t, mqtt.Options{URL: s.URL(), Workers: 1, Handler: handlerOf(g.answer)})
		d := device(t, s, "a")
		d.report(t, "handled")
		<-g.entered
		d.report(t, "queued")
		stopped := stopping(t, c)
		eventually(t, "not connected", func() bool { return !c.Connected() })
		close(g.open)
		<-stopped
		if got := d.reply(t).Re; got != "handled" {
			t.Errorf("re %q", got)
		}
		d.report(t, "too late")
		select {
		case <-g.entered: // The client has received "queued" before it unsubscribed.
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
	s := mosquitto{servers.Mosquitto(t)}
	entered, left := make(chan struct{}), make(chan struct{})
	c, err := mqtt.New(mqtt.Options{URL: s.URL(), HandleTimeout: time.Hour, Handler: handlerOf(func(ctx context.Context, _ devices.ID, _ string) devices.Reply {
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
	c, err := mqtt.New(mqtt.Options{URL: "mqtt://127.0.0.1:1", Handler: handlerOf(echo)})
	if err != nil {
		t.Fatal(err)
	}
	stop(t, c)
	stop(t, c)
}

func TestPanicIsAReply(t *testing.T) {
	t.Parallel()
	s := mosquitto{servers.Mosquitto(t)}
	counts := &counter{}
	connect(t, mqtt.Options{URL: s.URL(), Workers: 1, Handler: counts.of(func(ctx context.Context, id devices.ID, report string) devices.Reply {
		if report == "poison" {
			panic(report)
		}
		return echo(ctx, id, report)
	})})
	d := device(t, s, "a")
	d.report(t, "poison")
	if got := d.reply(t); got.Re != "poison" || got.Reason != devices.ReasonUnavailable || got.ReportAfterMS == 0 {
		t.Errorf("reply %+v", got)
	}
	d.report(t, "fine")
	if got := d.reply(t); got.Re != "fine" {
		t.Errorf("reply %+v", got)
	}
	if counts.get("unavailable") != 1 {
		t.Error("not counted")
	}
}

func TestWake(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		c := connect(t, mqtt.Options{URL: s.URL(), Handler: handlerOf(echo)})
		d := device(t, s, "a")
		c.Wake("a", 5*time.Second)
		c.Wake("a", 0)
		got := []string{<-d.replies, <-d.replies}
		if want := []string{`{"reason":"wake","hold_ms":5000}`, `{"reason":"wake"}`}; !slices.Equal(got, want) {
			t.Errorf("received %q", got)
		}
	})
}

// TestRepliesArriveAndWakesMayNot checks that a reply has QoS 1 and a wake has QoS 0. Neither is
// retained for a client that subscribes later.
func TestRepliesArriveAndWakesMayNot(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		c := connect(t, mqtt.Options{URL: s.URL(), Handler: handlerOf(echo)})
		d := device(t, s, "a")
		got := make(chan paho.Message, 3)
		subscribe := func() {
			if token := d.Subscribe(devices.ReplyTopic("a"), 1, func(_ paho.Client, m paho.Message) { got <- m }); !token.WaitTimeout(patience) || token.Error() != nil {
				t.Fatalf("subscribing: %v", token.Error())
			}
		}
		subscribe()
		d.report(t, "1")
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

// TestEveryReportIsAcknowledged sends more reports than mosquitto allows unacknowledged.
func TestEveryReportIsAcknowledged(t *testing.T) {
	t.Parallel()
	s := mosquitto{servers.Mosquitto(t)}
	connect(t, mqtt.Options{URL: s.URL(), Handler: handlerOf(echo)})
	d := device(t, s, "a")
	for n := range 300 { // max_inflight_messages is 20
		d.report(t, fmt.Sprint(n))
		if got := d.reply(t).Re; got != fmt.Sprint(n) {
			t.Fatalf("re %q at %d", got, n)
		}
	}
}

// TestReportsAreShared runs two replicas and checks that each report reaches exactly one of them.
func TestReportsAreShared(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		counts := &counter{}
		for range 2 {
			connect(t, mqtt.Options{URL: s.URL(), Handler: counts.of(echo)})
		}
		d := device(t, s, "a")
		const reports = 40
		for n := range reports {
			d.report(t, fmt.Sprint(n))
			d.reply(t)
		}
		if got := counts.get("none"); got != reports {
			t.Errorf("%d handled", got)
		}
	})
}

// TestAccessListOfTheProtocol checks that a mosquitto with the access list of protocol.md lets a
// device report, but not for another device.
func TestAccessListOfTheProtocol(t *testing.T) {
	t.Parallel()
	s := servers.MosquittoWithUsers(t, map[string]string{"dispatcher": "secret", "a": "x", "b": "x"},
		"user dispatcher", "topic read fleet/v1/+/report", "topic write fleet/v1/+/reply",
		"pattern write fleet/v1/%u/report", "pattern read fleet/v1/%u/reply")
	counts := &counter{}
	connect(t, mqtt.Options{URL: s.URL, User: "dispatcher", Password: "secret", Handler: counts.of(echo)})
	a := device(t, mosquitto{s}, "a")
	if token := a.Publish(devices.ReportTopic("b"), 1, false, "forged"); !token.WaitTimeout(patience) {
		t.Fatal("no answer") // mosquitto also acknowledges a message that it drops.
	}
	a.report(t, "own")
	if got := a.reply(t).Re; got != "own" {
		t.Errorf("re %q", got)
	}
	if got := counts.get("none"); got != 1 {
		t.Errorf("%d reports were handled", got)
	}
}

func TestRefusedSubscriptionIsNotConnected(t *testing.T) {
	t.Parallel()
	e := &embedded{t: t, addr: "127.0.0.1:0"}
	e.Start()
	t.Cleanup(e.Kill)
	log := newLog()
	c := begin(t, mqtt.Options{URL: e.URL(), Group: "other", Logger: slog.New(log), Handler: handlerOf(echo)})
	eventually(t, "refused", func() bool { return len(log.with("refused the subscription")) > 0 })
	if c.Connected() {
		t.Error("says that reports arrive")
	}
}

func TestNewRefusesWrongOptions(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "127.0.0.1:1883", "http://h", "ws://h", "mqtt://", "mqtt://:1883", "mqtt://user:secret@h:x", "mqtt://h/path"} {
		_, err := mqtt.New(mqtt.Options{URL: url, Handler: handlerOf(echo)})
		if err == nil {
			t.Errorf("%q accepted", url)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
	if _, err := mqtt.New(mqtt.Options{URL: "mqtt://h"}); err == nil {
		t.Error("no handler accepted")
	}
	if _, err := mqtt.New(mqtt.Options{URL: "mqtts://h", Handler: handlerOf(echo), Workers: -1}); err == nil {
		t.Error("negative workers accepted")
	}
}

// refusing is a handler that refuses each report.
type refusing struct{ devices.Handler }

func (refusing) HandleReport(context.Context, devices.Caller, devices.Report) (devices.Reply, error) {
	return devices.Reply{}, devices.ErrUnavailable
}

func (refusing) AfterRefusal(devices.Reason) time.Duration { return 7 * time.Second }

func (refusing) CountReport(string, string, time.Duration) {}

// TestARefusalNamesItsReport checks that a device can match a refusal to its report and knows when to report again.
func TestARefusalNamesItsReport(t *testing.T) {
	t.Parallel()
	overBothBrokers(t, func(t *testing.T, s server) {
		t.Helper()
		connect(t, mqtt.Options{URL: s.URL(), Handler: refusing{}})
		d := device(t, s, "a")
		d.report(t, "mine")
		if got := d.reply(t); got.Re != "mine" || got.Reason != devices.ReasonUnavailable || got.ReportAfterMS != 7000 {
			t.Errorf("%+v, want unavailable for mine, and 7 s", got)
		}
	})
}
