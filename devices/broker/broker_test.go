package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/broker"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

func TestReportAndReply(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	inside, a := connectDispatcher(t, b), connectDevice(t, b, "a")
	if code := a.subscribe(t, devices.ReplyTopic("a")); code != 1 {
		t.Fatalf("subscription: %#x", code)
	}
	a.publish(t, devices.ReportTopic("a"), "up", 1)
	if got := inside.nextMessage(t); got != "fleet/v1/a/report up" {
		t.Errorf("report %q", got)
	}
	inside.publish(t, devices.ReplyTopic("a"), "down", 1)
	if got := a.nextMessage(t); got != "fleet/v1/a/reply down" {
		t.Errorf("reply %q", got)
	}
}

func TestDeviceSubscribesOnlyToItsReplies(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	inside, a, other := connectDispatcher(t, b), connectDevice(t, b, "a"), connectDevice(t, b, "b")
	if code := other.subscribe(t, devices.ReplyTopic("b")); code != 1 {
		t.Fatalf("subscription: %#x", code)
	}
	for _, filter := range []string{
		"#", "+/+/+/+", "fleet/#", "fleet/v1/+/reply", "fleet/v1/b/reply", "fleet/v1/b/report", "fleet/v1/+/report", "fleet/v1/a/report",
		"fleet/v1/a/+", "fleet/v1/a/reply/#", "$share/x/#", "$share/dispatcher/fleet/v1/+/report", "$share/x/fleet/v1/a/reply", "$SYS/#", "$SYS/broker/version",
	} {
		if code := a.subscribe(t, filter); code != 0x80 {
			t.Errorf("SUBSCRIBE %s: %#x", filter, code)
		}
	}
	if code := a.subscribe(t, devices.ReplyTopic("a")); code != 1 {
		t.Fatalf("own replies: %#x", code)
	}
	other.publish(t, devices.ReportTopic("b"), "report of b", 1)
	if got := inside.nextMessage(t); got != "fleet/v1/b/report report of b" {
		t.Errorf("report %q", got)
	}
	inside.publish(t, devices.ReplyTopic("b"), "for b", 1)
	inside.publish(t, devices.ReplyTopic("a"), "for a", 1)
	if got := other.nextMessage(t); got != "fleet/v1/b/reply for b" {
		t.Errorf("b received %q", got)
	}
	if got := a.nextMessage(t); got != "fleet/v1/a/reply for a" {
		t.Errorf("a received %q", got) // A message for b would have arrived first.
	}
}

func TestDevicePublishesOnlyItsReports(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	inside := connectDispatcher(t, b)
	victim := connectDevice(t, b, "b")
	if code := victim.subscribe(t, devices.ReplyTopic("b")); code != 1 {
		t.Fatalf("subscription: %#x", code)
	}
	for i, topic := range []string{"fleet/v1/b/report", "fleet/v1/b/reply", "fleet/v1/a/reply", "fleet/v1/a/report/x", "$SYS/broker/version", "x"} {
		a := connectDevice(t, b, "a")
		a.publish(t, topic, "forged", 0) // The broker drops this message.
		a.publish(t, devices.ReportTopic("a"), fmt.Sprint("own ", i), 1)
		if got, want := inside.nextMessage(t), fmt.Sprint("fleet/v1/a/report own ", i); got != want {
			t.Errorf("after PUBLISH %s the dispatcher received %q, want %q", topic, got, want)
		}
		if strings.HasPrefix(topic, "$") {
			continue // The broker drops messages to this topic with every QoS.
		}
		a.Publish(topic, 1, false, "forged")
		a.expectEnd(t, "PUBLISH "+topic+" of QoS 1") // In MQTT 3.1.1 this is the only way to refuse it.
	}
	inside.publish(t, devices.ReplyTopic("b"), "true", 1)
	if got := victim.nextMessage(t); got != "fleet/v1/b/reply true" {
		t.Errorf("b received %q", got)
	}
}

func TestDispatcherOnlyReadsReportsAndWritesReplies(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	inside := connectDispatcher(t, b)
	for _, filter := range []string{"#", "$SYS/#", "fleet/v1/+/reply", "$share/other/fleet/v1/+/report"} {
		if code := inside.subscribe(t, filter); code != 0x80 {
			t.Errorf("SUBSCRIBE %s: %#x", filter, code)
		}
	}
	inside.Publish(devices.ReportTopic("a"), 1, false, "forged")
	inside.expectEnd(t, "a report of the dispatcher")
}

func TestConnectIsRefused(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	for name, c := range map[string]struct{ id, user, password string }{
		"wrong password":             {"a", "a", "secret-of-b"},
		"no password":                {"a", "a", ""},
		"no user":                    {"a", "", ""},
		"client id of another":       {"b", "a", "secret-of-a"},
		"bad name":                   {"+", "+", "secret-of-+"},
		"name with a slash":          {"a/b", "a/b", "secret-of-a/b"},
		"bad name, password of none": {"+", "+", "secret-of-"}, // A fleet token is valid for any device id.
		"internal, wrong password":   {"x", internalUser, "secret-of-" + internalUser},
		"internal, password of none": {internalUser, internalUser, ""},
	} {
		o, client := clientOptions(b, c.id, c.user, c.password)
		if err := client.connect(t, o); err == nil {
			t.Errorf("%s: connected", name)
		}
	}
}

func TestWillOnlyToOwnReports(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	for _, topic := range []string{"fleet/v1/b/report", "fleet/v1/b/reply", "fleet/v1/a/reply", "x"} {
		o, c := clientOptions(b, "a", "a", "secret-of-a")
		if err := c.connect(t, o.SetWill(topic, "forged", 1, false)); err == nil {
			t.Errorf("will to %s: connected", topic)
		}
	}
	inside := connectDispatcher(t, b)
	o, c := clientOptions(b, "a", "a", "secret-of-a")
	must.Succeed(t, c.connect(t, o.SetWill(devices.ReportTopic("a"), "gone", 1, false)))
	c.Publish("x", 1, false, "") // This message ends the connection.
	if got := inside.nextMessage(t); got != "fleet/v1/a/report gone" {
		t.Errorf("will %q", got)
	}
}

func TestTakeOver(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	inside, first := connectDispatcher(t, b), connectDevice(t, b, "a")
	first.subscribe(t, devices.ReplyTopic("a"))
	o, thief := clientOptions(b, "a", "a", "wrong")
	if thief.connect(t, o) == nil || !first.IsConnectionOpen() {
		t.Fatal("a wrong password took over")
	}
	second := connectDevice(t, b, "a")
	first.expectEnd(t, "the second connection")
	second.subscribe(t, devices.ReplyTopic("a"))
	inside.publish(t, devices.ReplyTopic("a"), "down", 1)
	if got := second.nextMessage(t); got != "fleet/v1/a/reply down" {
		t.Errorf("reply %q", got)
	}
}

func TestSessionsAreClean(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	inside := connectDispatcher(t, b)
	o, first := clientOptions(b, "a", "a", "secret-of-a")
	must.Succeed(t, first.connect(t, o.SetCleanSession(false)))
	first.subscribe(t, devices.ReplyTopic("a"))
	first.Disconnect(50)
	inside.publish(t, devices.ReplyTopic("a"), "stale", 1)
	// The broker confirms a message before it delivers the message. So only the delivery of a later message shows that the broker has handled
	// the earlier one.
	other := connectDevice(t, b, "b")
	other.subscribe(t, devices.ReplyTopic("b"))
	inside.publish(t, devices.ReplyTopic("b"), "next", 1)
	other.nextMessage(t)
	o, second := clientOptions(b, "a", "a", "secret-of-a")
	must.Succeed(t, second.connect(t, o.SetCleanSession(false)))
	second.subscribe(t, devices.ReplyTopic("a"))
	inside.publish(t, devices.ReplyTopic("a"), "fresh", 1)
	if got := second.nextMessage(t); got != "fleet/v1/a/reply fresh" {
		t.Errorf("received %q", got)
	}
}

func TestOversizePacketEndsTheConnection(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	inside, a := connectDispatcher(t, b), connectDevice(t, b, "a")
	a.publish(t, devices.ReportTopic("a"), strings.Repeat("x", 100<<10), 1)
	if got := inside.nextMessage(t); len(got) < 100<<10 {
		t.Errorf("%d bytes arrived", len(got))
	}
	a.Publish(devices.ReportTopic("a"), 1, false, strings.Repeat("x", 128<<10))
	a.expectEnd(t, "a packet over 128 KiB")
}

func TestLogsCarryNoPayloads(t *testing.T) {
	t.Parallel()
	log := &await.Output{}
	b := startBroker(t, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	a := connectDevice(t, b, "a")
	a.Publish("x", 1, false, "PAYLOAD") // mochi logs each packet that it refuses.
	a.expectEnd(t, "a forbidden PUBLISH")
	o, c := clientOptions(b, "c", "c", "PASSWORD")
	if c.connect(t, o) == nil {
		t.Fatal("connected")
	}
	expectLogged(t, log, "not authorized")
	if text := log.String(); strings.Contains(text, "PAYLOAD") || strings.Contains(text, "PASSWORD") || strings.Contains(text, "80 65 89 76") {
		t.Errorf("log:\n%s", text)
	} else if strings.Contains(text, "level=WARN") || strings.Contains(text, "level=INFO") {
		t.Errorf("louder than debug:\n%s", text)
	}
}

func TestStopEndsHandshakes(t *testing.T) {
	t.Parallel()
	b := openBroker(t, broker.Options{Authenticate: func(context.Context, devices.ID, string) error { return errors.New("nobody") }})
	silent, err := net.Dial("tcp", b.Addr().String())
	must.Succeed(t, err)
	defer silent.Close()
	_, err = silent.Write([]byte{0x10})
	must.Succeed(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second) // less than the timeout of the handshake
	defer cancel()
	if err := b.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// TestDeafDeviceDoesNotStallTheOthers sends many messages to a device that never reads. Another device still
// receives its messages, and the first device is disconnected.
func TestDeafDeviceDoesNotStallTheOthers(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	inside, other := connectDispatcher(t, b), connectDevice(t, b, "other")
	other.subscribe(t, devices.ReplyTopic("other"))
	deaf := rawConnect(t, b.Addr().String(), "deaf1", passwordPrefix+"deaf1")
	defer deaf.Close()
	_, err := deaf.Write([]byte("\x82\x19\x00\x01\x00\x14fleet/v1/deaf1/reply\x01"))
	must.Succeed(t, err)
	var suback [5]byte
	if _, err := io.ReadFull(deaf, suback[:]); err != nil || suback[4] != 1 {
		t.Fatalf("SUBACK %x, %v", suback, err)
	}
	alive := make(chan struct{}) // The device continues to send, so that its keepalive does not end the connection.
	go func() {
		defer close(alive)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := deaf.Write([]byte("\x40\x02\xff\xff")); err != nil { // PUBACK of an unknown message
				return
			}
		}
	}()
	body := strings.Repeat("x", 100<<10)
	for range 300 {
		inside.Publish(devices.ReplyTopic("deaf1"), 1, false, body)
	}
	inside.publish(t, devices.ReplyTopic("other"), "down", 1)
	if got := other.nextMessage(t); got != "fleet/v1/other/reply down" {
		t.Errorf("reply %q", got)
	}
	select {
	case <-alive:
	case <-time.After(patience):
		t.Error("the deaf device is still connected")
	}
}

// TestStopWithManyClients checks that Stop does not deadlock while many clients leave. The library mochi takes the
// read lock of its clients twice, so it can deadlock if a client leaves while mochi lists its clients.
func TestStopWithManyClients(t *testing.T) {
	t.Parallel()
	for range 30 {
		b := openBroker(t, broker.Options{Authenticate: func(context.Context, devices.ID, string) error { return nil }})
		for i := range 50 {
			defer rawConnect(t, b.Addr().String(), fmt.Sprintf("dev%02d", i), "x").Close()
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := b.Stop(ctx)
		cancel()
		must.Succeed(t, err)
	}
}

func TestNewRefusesWrongOptions(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer listener.Close()
	yes := func(context.Context, devices.ID, string) error { return nil }
	for name, o := range map[string]broker.Options{
		"no listener":        {Authenticate: yes, Internal: broker.Credentials{User: "$d", Password: "x"}},
		"no authenticate":    {Listener: listener, Internal: broker.Credentials{User: "$d", Password: "x"}},
		"no password":        {Listener: listener, Authenticate: yes, Internal: broker.Credentials{User: "$d"}},
		"a device's name":    {Listener: listener, Authenticate: yes, Internal: broker.Credentials{User: "dispatcher", Password: "x"}},
		"no internal user":   {Listener: listener, Authenticate: yes, Internal: broker.Credentials{Password: "x"}},
		"no internal client": {Listener: listener, Authenticate: yes},
	} {
		if _, err := broker.New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
