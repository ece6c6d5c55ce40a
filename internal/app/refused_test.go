package app

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	paho "github.com/eclipse/paho.mqtt.golang"
)

// lockedLog is a log that the test can read while the program writes it.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) lacksLine(parts ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		has := true
		for _, part := range parts {
			has = has && strings.Contains(line, part)
		}
		if has {
			return false
		}
	}
	return true
}

// TestRefusedSessionsAreSeen checks sessions of devices that the embedded broker refuses: they are counted, and
// logged with the device, the address and the reason.
func TestRefusedSessionsAreSeen(t *testing.T) {
	t.Parallel()
	o, log := devOptions(t.TempDir()), &lockedLog{}
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	d, err := NewDev(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	i := startInstance(t, instance{url: d.URL, admin: d.AdminToken, fleet: d.FleetToken}, d.Run)
	i.callOperator(t, http.MethodPost, "/v1/devices", `{"id":"blocked"}`)
	i.callOperator(t, http.MethodPost, "/v1/devices/blocked/block", ``)
	refused := func(id, user, password string) {
		t.Helper()
		c := paho.NewClient(paho.NewClientOptions().AddBroker(d.MQTTURL).SetClientID(id).SetUsername(user).SetPassword(password).SetConnectRetry(false))
		if token := c.Connect(); !token.WaitTimeout(patience) || token.Error() == nil {
			t.Fatalf("%s as %s: connected, or no answer", id, user)
		}
	}
	refused("m1", "m1", "wrong")
	refused("blocked", "blocked", d.FleetToken)
	refused("m3", "m2", d.FleetToken)
	refused("x", "no device", d.FleetToken)
	for _, want := range [][]string{
		{"principal=m1 ", "reason=unauthenticated"}, {"principal=blocked ", "reason=forbidden"}, {"principal=m2 ", "client id"}, {`principal="no device"`, "user name"},
	} {
		if log.lacksLine(append(want, "level=WARN", "msg=refused", "at=broker", "from=127.0.0.1")...) {
			t.Errorf("the log lacks a line with %q", want)
		}
	}
	metrics := string(i.callOperator(t, http.MethodGet, "/metrics", ""))
	for _, want := range []string{`{at="broker",reason="forbidden"} 3`, `{at="broker",reason="unauthenticated"} 1`} {
		if !strings.Contains(metrics, "dispatcher_refusals_total"+want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
}
