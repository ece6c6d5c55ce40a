package simulator

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

func TestKindsAreDealtInTurn(t *testing.T) {
	t.Parallel()
	via := ViaMQTT + ", " + ViaLongPoll + "," + ViaHTTP
	if err := via.Check(); err != nil {
		t.Fatal(err)
	}
	for i, want := range []Via{ViaMQTT, ViaLongPoll, ViaHTTP, ViaMQTT} {
		if got := via.transportOfDevice(i); got != want {
			t.Errorf("device %d is %q, want %q", i, got, want)
		}
	}
	for _, c := range []struct {
		via        Via
		http, mqtt bool
	}{{ViaMQTT, false, true}, {ViaMixed, true, true}, {ViaPeriodic, true, false}, {ViaLongPoll, true, false}} {
		if http, mqtt := c.via.needsTransports(); http != c.http || mqtt != c.mqtt {
			t.Errorf("%q uses HTTP: %t, MQTT: %t; want %t, %t", c.via, http, mqtt, c.http, c.mqtt)
		}
	}
	for _, wrong := range []Via{"", "http,", "mixed,http", "pigeon"} {
		if wrong.Check() == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

// reportShape has the parts of a report that the test checks: the header Prefer and the number of results.
type reportShape struct {
	prefer  string
	results int
}

// receiveReports runs one device that reports in the way via. The function answer returns the server's answer to the
// n-th report, counted from 1. receiveReports waits for as many reports as the parameter reports says, and returns
// their shapes.
func receiveReports(t *testing.T, via Via, period time.Duration, reports int, answer func(n int, w http.ResponseWriter, r report) any) []reportShape {
	t.Helper()
	seen := make(chan reportShape, 1000)
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var up report
		_ = json.Unmarshal(body, &up)
		n++ // there is one report at a time, because the device waits for each answer
		down := answer(n, w, up)
		seen <- reportShape{r.Header.Get("Prefer"), len(up.Results)}
		writeJSON(w, http.StatusOK, down)
	}))
	t.Cleanup(server.Close)
	external, err := NewExternal(t.Context(), "", 1, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = external.Close() })
	fleet := newFleet(Config{
		URL: server.URL, FleetToken: "t", Devices: 1, Via: via,
		Work: time.Millisecond, Period: period, ResendAfter: time.Minute,
	}, external.Addr(), nil, newLeases())
	go fleet.Run(t.Context())
	var first []reportShape
	deadline := time.After(time.Minute)
	for len(first) < reports {
		select {
		case v := <-seen:
			first = append(first, v)
		case <-deadline:
			t.Fatalf("%d reports within a minute, want %d", len(first), reports)
		}
	}
	return first
}

// TestLongPoll checks a device that uses long polls. While it is idle, it asks the server to hold its report, and
// reports again at once after the reply. A report with a result does not ask for this, so that its outcome comes at
// once.
func TestLongPoll(t *testing.T) {
	t.Parallel()
	got := receiveReports(t, ViaLongPoll, time.Hour, 4, func(n int, w http.ResponseWriter, r report) any {
		switch n {
		case 1: // held, and nothing came
			w.Header().Set("Preference-Applied", "wait=25")
			return map[string]any{"re": r.ID, "reason": "full"}
		case 2:
			return grantReply(r, 60_000, 1)
		case 3:
			return map[string]any{
				"re": r.ID, "reason": "none", "report_after_ms": 1,
				"acks": []map[string]any{{"task": r.Results[0].Task, "token": r.Results[0].Token, "outcome": "recorded"}},
			}
		}
		return idleReply(r)
	})
	if want := []reportShape{{"wait=25", 0}, {"wait=25", 0}, {"", 1}, {"wait=25", 0}}; !slices.Equal(got, want) {
		t.Errorf("reports %v, want %v", got, want)
	}
}

// TestPeriodicDeviceDoesNotFollow checks a device that reports periodically: it reports once in each period,
// whatever time the server asks for.
func TestPeriodicDeviceDoesNotFollow(t *testing.T) {
	t.Parallel()
	got := receiveReports(t, ViaPeriodic, 20*time.Millisecond, 3, func(_ int, _ http.ResponseWriter, r report) any {
		return map[string]any{"re": r.ID, "reason": "full", "report_after_ms": 86_400_000}
	})
	if want := []reportShape{{}, {}, {}}; !slices.Equal(got, want) {
		t.Errorf("reports %v, want %v", got, want)
	}
}

func TestAGoneDeviceIsNeverHeardOfAgain(t *testing.T) {
	t.Parallel()
	d := &device{timer: time.NewTimer(time.Hour), memory: memory{silent: true}}
	d.scheduleRebootAfterSilence(&runningTask{gone: true})
	if d.timer.Stop() || !d.silent {
		t.Error("it will report again")
	}
}
