package mqtt_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/internal/test/await"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// packetRecorder records the packets that clients send to a broker. It works for one connection at a time.
type packetRecorder struct {
	*servers.Proxy
	mu            sync.Mutex
	partialPacket []byte          // received bytes of an incomplete packet
	packetTypes   []string        // packet types of the newest connection
	ids           []string        // client ids in the order of connecting
	keepalives    []time.Duration // the keepalive of each CONNECT
}

func newPacketRecorder(t *testing.T, addr string) *packetRecorder {
	t.Helper()
	w := &packetRecorder{Proxy: servers.NewProxy(t, addr)}
	w.OnRequest(w.record)
	return w
}

func (w *packetRecorder) record(chunk []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if chunk[0] == 0x10 && bytes.Contains(chunk, []byte("\x00\x04MQTT\x04")) {
		_, after, _ := bytes.Cut(chunk, []byte("\x00\x04MQTT\x04"))
		id := after[3:] // after the flags and the keepalive
		w.keepalives = append(w.keepalives, time.Duration(binary.BigEndian.Uint16(after[1:]))*time.Second)
		w.ids = append(w.ids, string(id[2:2+binary.BigEndian.Uint16(id)]))
		w.partialPacket, w.packetTypes = nil, nil
	}
	names := map[byte]string{1: "CONNECT", 3: "PUBLISH", 4: "PUBACK", 8: "SUBSCRIBE", 10: "UNSUBSCRIBE", 12: "PINGREQ", 14: "DISCONNECT"}
	w.partialPacket = append(w.partialPacket, chunk...)
	for len(w.partialPacket) >= 2 {
		length, n := binary.Uvarint(w.partialPacket[1:])
		if n <= 0 || len(w.partialPacket) < 1+n+int(length) { // below 256 MiB
			return
		}
		w.packetTypes = append(w.packetTypes, names[w.partialPacket[0]>>4])
		w.partialPacket = w.partialPacket[1+n+int(length):]
	}
}

// sentPackets returns the types of the packets that were sent over the newest connection.
func (w *packetRecorder) sentPackets() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.packetTypes)
}

func (w *packetRecorder) clientIDs() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ids)
}

// lineLog is a log handler that stores the logged lines.
type lineLog struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func newLineLog() *lineLog { return &lineLog{Handler: slog.DiscardHandler} }

func (*lineLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *lineLog) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.lines = append(l.lines, line)
	return nil
}

// linesWith returns the logged lines that contain these words.
func (l *lineLog) linesWith(words string) (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, words) {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestStopInOrder checks what a client does when it is stopped, in this order: it unsubscribes, replies to the
// report in progress, sends the PUBACK and then DISCONNECT. Without DISCONNECT, the broker would wait for the
// keepalive.
func TestStopInOrder(t *testing.T) {
	t.Parallel()
	s := mosquittoBroker{servers.StartMosquitto(t)}
	w := newPacketRecorder(t, s.Addr)
	g := newReplyGate()
	c := startConnected(t, mqtt.Options{URL: "tcp://" + w.Addr, Handler: newHandler(g.reply)})
	d := connectDevice(t, s, "a")
	d.sendReport(t, "under way")
	<-g.entered
	stopped := stopInBackground(t, c)
	await.True(t, "unsubscribed", func() bool { return slices.Contains(w.sentPackets(), "UNSUBSCRIBE") })
	close(g.open)
	<-stopped
	if got := d.nextReply(t).Re; got != "under way" {
		t.Errorf("re %q", got)
	}
	want := []string{"CONNECT", "SUBSCRIBE", "UNSUBSCRIBE", "PUBLISH", "PUBACK", "DISCONNECT"}
	await.True(t, fmt.Sprint(want), func() bool { return slices.Equal(w.sentPackets(), want) })
}

// TestStopLeavesReportsToTheOthers stops one of two replicas. While this replica finishes its reports, the other replica must receive all
// new reports.
func TestStopLeavesReportsToTheOthers(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		g := newReplyGate()
		ends := startConnected(t, mqtt.Options{URL: s.URL(), Handler: newHandler(g.reply)})
		d := connectDevice(t, s, "a")
		d.sendReport(t, "under way")
		<-g.entered
		startConnected(t, mqtt.Options{URL: s.URL(), Handler: newHandler(echoID)})
		stopped := stopInBackground(t, ends)
		// Connected becomes false just before the client sends UNSUBSCRIBE. The broker handles the packets of a client in order.
		await.True(t, "stopping", func() bool { return !ends.Connected() })
		other := connectDevice(t, s, "b")
		for n := range 20 {
			other.sendReport(t, fmt.Sprint(n))
			if got := other.nextReply(t).Re; got != fmt.Sprint(n) {
				t.Errorf("re %q at %d", got, n)
			}
		}
		close(g.open)
		<-stopped
		if got := d.nextReply(t).Re; got != "under way" {
			t.Errorf("re %q", got)
		}
	})
}

// TestConfirmationThatNeverCameIsForgotten checks a reply that the broker has received but whose PUBACK was lost
// with the connection: the reply is not sent again.
func TestConfirmationThatNeverCameIsForgotten(t *testing.T) {
	t.Parallel()
	s := mosquittoBroker{servers.StartMosquitto(t)}
	w := newPacketRecorder(t, s.Addr)
	g := newReplyGate()
	log := newLineLog()
	c := startConnected(t, mqtt.Options{URL: "tcp://" + w.Addr, Logger: slog.New(log), Handler: newHandler(g.reply)})
	d := connectDevice(t, s, "a")
	d.sendReport(t, "once")
	<-g.entered
	w.HoldReplies()
	close(g.open)
	if got := d.nextReply(t).Re; got != "once" {
		t.Errorf("re %q", got)
	}
	w.Cut()
	w.ReleaseReplies()
	await.True(t, "told", func() bool { return len(log.linesWith("was lost")) == 1 })
	w.EndCut()
	await.True(t, "connected again", c.Connected)
	d.sendReport(t, "fresh")
	if got := d.nextReply(t).Re; got != "fresh" {
		t.Errorf("re %q", got)
	}
}

// TestReplicasComeBackApart checks the pauses of replicas that lost the broker at the same time: they differ.
func TestReplicasComeBackApart(t *testing.T) {
	t.Parallel()
	pauses := make([]time.Duration, 8)
	for n := range pauses {
		pauses[n] = mqtt.DrawPause(time.Second)
	}
	if first, last := slices.Min(pauses), slices.Max(pauses); last-first < 100*time.Millisecond || last >= time.Second {
		t.Errorf("%v, want pauses that are spread over a second", pauses)
	}
}

// TestBrokerThatHangs pauses the broker for longer than the keepalive. The client must notice this. When the broker
// continues, it must connect again with the same client id.
func TestBrokerThatHangs(t *testing.T) {
	t.Parallel()
	s := mosquittoBroker{servers.StartMosquitto(t)}
	w := newPacketRecorder(t, s.Addr)
	log := newLineLog()
	c := startConnected(t, mqtt.Options{URL: "tcp://" + w.Addr, KeepAlive: time.Second, Logger: slog.New(log), Handler: newHandler(echoID)})
	s.Signal(syscall.SIGSTOP)
	deadline := time.After(2 * patience)
	for tick := time.Tick(50 * time.Millisecond); c.Connected(); {
		select {
		case <-tick:
		case <-deadline:
			t.Fatal("never noticed")
		}
	}
	s.Signal(syscall.SIGCONT)
	await.True(t, "connected again", c.Connected)
	if ids := w.clientIDs(); ids[0] != ids[len(ids)-1] {
		t.Errorf("client ids %q", ids)
	}
	if got := log.linesWith("lost the connection to the MQTT broker"); len(got) != 1 {
		t.Errorf("logged %q", got)
	}
	d := connectDevice(t, s, "a")
	d.sendReport(t, "after")
	if got := d.nextReply(t).Re; got != "after" {
		t.Errorf("re %q", got)
	}
}

// TestTakenClientID checks a client whose client id is used by another client: it connects with another id. With
// the same id, the two clients would end each other's connection again and again.
func TestTakenClientID(t *testing.T) {
	t.Parallel()
	s := mosquittoBroker{servers.StartMosquitto(t)}
	w := newPacketRecorder(t, s.Addr)
	c := startConnected(t, mqtt.Options{URL: "tcp://" + w.Addr, Handler: newHandler(echoID)})
	var lost atomic.Int32
	thief := paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + s.Addr).SetClientID(w.clientIDs()[0]).SetAutoReconnect(false).
		SetConnectionLostHandler(func(paho.Client, error) { lost.Add(1) }))
	if token := thief.Connect(); !token.WaitTimeout(patience) || token.Error() != nil {
		t.Fatal(token.Error())
	}
	defer thief.Disconnect(50)
	await.True(t, "connected under another id", func() bool {
		ids := w.clientIDs()
		return c.Connected() && len(ids) > 1 && ids[len(ids)-1] != ids[0]
	})
	if lost.Load() != 0 {
		t.Error("the id was taken back")
	}
}

// TestTroubleIsLoggedOnce checks an error that occurs with every attempt to connect: it is logged only once.
func TestTroubleIsLoggedOnce(t *testing.T) {
	t.Parallel()
	users := servers.StartMosquittoWithUsers(t, map[string]string{"dispatcher": "secret"}, "user dispatcher", "topic read fleet/v1/+/report")
	e := &embeddedBroker{t: t, addr: "127.0.0.1:0"}
	e.Start()
	t.Cleanup(e.Kill)
	for name, test := range map[string]struct {
		addr     string
		options  mqtt.Options
		want     string
		attempts int
	}{
		"wrong password":       {users.Addr, mqtt.Options{User: "dispatcher", Password: "wrong"}, "not Authorized", 3},
		"refused subscription": {e.addr, mqtt.Options{User: "$dispatcher", Password: "internal", Group: "other"}, "refused the subscription $share/other/fleet/v1/+/report", 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, log := newPacketRecorder(t, test.addr), newLineLog()
			o := test.options
			o.URL, o.Logger, o.Handler = "tcp://"+w.Addr, slog.New(log), newHandler(echoID)
			c := startClient(t, o)
			await.True(t, "attempts", func() bool { return len(w.clientIDs()) >= test.attempts && len(log.linesWith("")) > 0 })
			if lines := log.linesWith(""); len(lines) != 1 || !strings.Contains(lines[0], test.want) || strings.Contains(lines[0], "wrong") {
				t.Errorf("logged %q, want one line with %q", lines, test.want)
			}
			if c.Connected() {
				t.Error("says that reports arrive")
			}
		})
	}
}

// TestTroubleThatChangesIsLoggedOnceEach checks several errors that alternate: each is logged once. The proxy has
// no broker behind it and ends connections in one of two ways. Then the proxy itself is closed.
func TestTroubleThatChangesIsLoggedOnceEach(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var attempts atomic.Int32
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1024)) // everything that the client sends
			if tcp, ok := conn.(*net.TCPConn); ok && attempts.Add(1)%2 == 0 {
				_ = tcp.SetLinger(0) // reset
			}
			conn.Close()
		}
	}()
	log := newLineLog()
	startClient(t, mqtt.Options{URL: "tcp://" + l.Addr().String(), Logger: slog.New(log), Handler: newHandler(echoID)})
	await.True(t, "attempts", func() bool { return attempts.Load() >= 5 })
	if lines := log.linesWith(""); len(lines) != 2 || !strings.Contains(lines[0], "EOF") || !strings.Contains(lines[1], "reset") {
		t.Errorf("logged %q, want one line with EOF and one with reset", lines)
	}
	l.Close()
	await.True(t, "told that nobody is there", func() bool { return len(log.linesWith("refused")) == 1 })
}

// TestTheSameTroubleIsRecognized checks that ReasonOf returns the same text for errors that differ only in their
// port numbers.
func TestTheSameTroubleIsRecognized(t *testing.T) {
	t.Parallel()
	from := func(port int) net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port} }
	for name, trouble := range map[string]func(port int) error{
		"reset": func(port int) error { return &net.OpError{Op: "read", Source: from(port), Err: syscall.ECONNRESET} },
		"a name server that is silent": func(port int) error {
			said := fmt.Sprintf("read udp %s->10.0.0.2:53: i/o timeout", from(port))
			return &net.OpError{Op: "dial", Err: &net.DNSError{Err: said, Name: "broker", Server: "10.0.0.2:53", IsTimeout: true}}
		},
	} {
		if a, b := mqtt.ReasonOf(trouble(1)), mqtt.ReasonOf(trouble(2)); a != b {
			t.Errorf("%s: %q is told beside %q", name, b, a)
		}
	}
}

// TestSilentBroker checks a broker that accepts connections but sends nothing: Stop does not wait for it.
func TestSilentBroker(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			accepted <- conn
		}
	}()
	c := startClient(t, mqtt.Options{URL: "tcp://" + l.Addr().String(), Handler: newHandler(echoID)})
	conn := <-accepted
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil { // its CONNECT
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // less than connectTimeout
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	if ctx.Err() != nil {
		t.Error("Stop waited for the broker")
	}
}
