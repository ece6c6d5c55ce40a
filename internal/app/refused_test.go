package app

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// lacksLine reports whether the log has no line with all these parts.
func lacksLine(log *await.Output, parts ...string) bool {
	for line := range strings.Lines(log.String()) {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			return false
		}
	}
	return true
}

// TestRefusedSessionsAreSeen checks sessions of devices that the embedded broker refuses: they are counted, and
// logged with the device, the address and the reason.
func TestRefusedSessionsAreSeen(t *testing.T) {
	t.Parallel()
	o, log := devOptions(t.TempDir()), &await.Output{}
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	d, err := NewDev(t.Context(), o)
	must.Succeed(t, err)
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
		if lacksLine(log, append(want, "level=WARN", "msg=refused", "at=broker", "from=127.0.0.1")...) {
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

// TestGuessesOfDeviceTokensAreSlowed checks wrong tokens of devices that share an address: after ten, further tokens of the same device are
// refused without a query of the ledger. Other devices, and tokens that were accepted before, are not affected.
func TestGuessesOfDeviceTokensAreSlowed(t *testing.T) {
	t.Parallel()
	i, _ := startDev(t, t.TempDir())
	tokens := map[string]string{}
	for _, device := range []string{"victim", "cold", "other"} {
		var made struct{ Token string }
		must.Succeed(t, json.Unmarshal(i.callOperator(t, http.MethodPost, "/v1/devices", `{"id":"`+device+`"}`), &made))
		tokens[device] = made.Token
	}
	report := func(device, token string) int {
		status, _ := i.call(t, http.MethodPost, "/v1/devices/"+device+"/report", token, `{}`)
		return status
	}
	if status := report("victim", tokens["victim"]); status != http.StatusOK {
		t.Fatalf("a report: %d", status)
	}
	for _, device := range []string{"victim", "cold"} {
		var group sync.WaitGroup
		var wrong, lockedOut atomic.Int64
		for range 150 {
			group.Go(func() {
				switch report(device, "wrong") {
				case http.StatusUnauthorized:
					wrong.Add(1)
				case http.StatusTooManyRequests:
					lockedOut.Add(1)
				}
			})
		}
		group.Wait()
		if wrong.Load() != 10 || lockedOut.Load() != 140 {
			t.Errorf("150 wrong tokens of %s at once: %d answered 401 and %d 429, want 10 and 140", device, wrong.Load(), lockedOut.Load())
		}
	}
	for _, test := range []struct {
		device, token string
		want          int
	}{
		{"victim", tokens["victim"], http.StatusOK}, // in the cache
		{"cold", tokens["cold"], http.StatusTooManyRequests},
		{"other", tokens["other"], http.StatusOK}, // another device at this address, its first report
		{"new", i.fleet, http.StatusOK},
		{"cold", i.fleet, http.StatusOK}, // accepted from this address before
	} {
		if status := report(test.device, test.token); status != test.want {
			t.Errorf("%s: %d, want %d", test.device, status, test.want)
		}
	}
	i.callOperator(t, http.MethodGet, "/v1/pools", "") // operators at this address are not locked out
	await.True(t, "the counted refusals", func() bool {
		return bytes.Contains(i.callOperator(t, http.MethodGet, "/metrics", ""), []byte(`dispatcher_refusals_total{at="report",reason="locked_out"} 283`+"\n"))
	})
}
