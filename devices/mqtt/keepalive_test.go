package mqtt_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestKeepaliveIsThatOfThePage checks that the default keepalive is the one in docs/operations.md. The tests
// TestBrokerThatHangs and TestBrokersGiveUpASilentClient use a shorter keepalive.
func TestKeepaliveIsThatOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	must.Succeed(t, err)
	w := newPacketRecorder(t, servers.StartMosquitto(t).Addr)
	startConnected(t, mqtt.Options{URL: "tcp://" + w.Addr, Handler: newHandler(echoID)})
	w.mu.Lock()
	alive := w.keepalives[0]
	w.mu.Unlock()
	const rounding = 500 * time.Millisecond
	for _, says := range []string{
		fmt.Sprintf("(its keepalive is %.0f s)", alive.Seconds()),
		fmt.Sprintf("until the broker gives it up: %.0f s", (alive * 3 / 2).Seconds()),
		fmt.Sprintf("gives up a silent broker after %.0f s", (alive*7/4 + rounding).Seconds()),
	} {
		if !strings.Contains(string(page), says) {
			t.Errorf("the page does not say %q", says)
		}
	}
}

// TestBrokersGiveUpASilentClient checks a client that sends nothing although its connection is open, such as a
// replica that hangs: the broker ends its session.
func TestBrokersGiveUpASilentClient(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		_, addr, _ := strings.Cut(s.URL(), "//")
		if _, after, ok := strings.Cut(addr, "@"); ok {
			addr = after
		}
		conn, err := net.Dial("tcp", addr)
		must.Succeed(t, err)
		defer conn.Close()
		const keepalive = 1 // second
		_, err = conn.Write([]byte("\x10\x13\x00\x04MQTT\x04\xc2\x00" + string(rune(keepalive)) + "\x00\x01a\x00\x01a\x00\x01x"))
		must.Succeed(t, err)
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), "\x20\x02\x00\x00") {
			t.Errorf("%q, %v; want to be admitted, and given up", got, err)
		}
	})
}
