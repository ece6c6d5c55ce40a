package simulator

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func idleConfig(url string) Config {
	return Config{
		URL: url, OperatorToken: testOperatorToken, FleetToken: testFleetToken,
		Devices: 40, Period: 200 * time.Millisecond, Connections: 7, Timeout: time.Minute,
	}
}

// runIdleUntil runs a fleet of idle devices until isEnough returns true.
func runIdleUntil(t *testing.T, c Config, isEnough func() bool) (IdleSummary, string) {
	t.Helper()
	var progress bytes.Buffer
	ctx, end := context.WithCancel(t.Context())
	defer end()
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil && !isEnough() {
			<-tick.C
		}
		end()
	}()
	s, err := RunIdle(ctx, c, &progress)
	if err != nil {
		t.Fatal(err)
	}
	return s, progress.String()
}

// TestEachIdleDeviceReportsOnceInAPeriod checks that each device of an idle fleet reports once in a period. The
// devices have tokens of their own, which one import created.
func TestEachIdleDeviceReportsOnceInAPeriod(t *testing.T) {
	t.Parallel()
	f, server := newFake(t)
	c := idleConfig(server.URL)
	c.Credentials, c.FleetToken = CredentialsOwn, "of no use"
	s, progress := runIdleUntil(t, c, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.receivedReports > 260 })
	if s.Errors > 0 {
		t.Error(s.Err())
	}
	f.mu.Lock() // the server may still be reading the last reports
	defer f.mu.Unlock()
	if most := 40 * (1 + int64(s.Elapsed/c.Period)); s.Reports < 200 || s.Reports > most || len(f.reportedDevices) != 40 || f.repeatedReports > 0 || f.badAuth > 0 {
		t.Errorf("%d reports of %d devices, %d copies, %d with a wrong token; want each once in a period",
			s.Reports, len(f.reportedDevices), f.repeatedReports, f.badAuth)
	}
	if !strings.Contains(progress, "registered 40 of 40 devices") || !strings.Contains(progress, "reports/s: none ") {
		t.Errorf("progress %q", progress)
	}
}

// startAnswering starts a fake dispatcher that answers each report with the result of the function answer.
func startAnswering(t *testing.T, answer func(device, token string) (status int, body string)) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		said, _ := io.ReadAll(r.Body)
		device := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/v1/devices/"), "/report")
		status, body := answer(device, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		_, id, _ := strings.Cut(string(said), `"id":"`)
		id, _, _ = strings.Cut(id, `"`)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, strings.ReplaceAll(body, "ID", id))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestAnIdleRunFailsWhenReportsAreNotAnswered(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"re":"ID","reason":"granted","task":{"id":1,"token":2}}`: "were granted tasks",
		`{"re":"other","reason":"none"}`:                           `a reply to "other"`,
		`{"re":"ID","reason":"granted"}`:                           "with task false",
		`{"code":"busy_server","detail":"too much"}`:               "503 busy_server: too much",
		`{`: "unexpected end of JSON",
	} {
		status := http.StatusOK
		if strings.Contains(body, "busy") {
			status = http.StatusServiceUnavailable
		}
		var answered atomic.Int64
		url := startAnswering(t, func(string, string) (int, string) { answered.Add(1); return status, body })
		s, _ := runIdleUntil(t, idleConfig(url), func() bool { return answered.Load() > 50 })
		if err := s.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}

// TestAnIdleFleetSaysThatItIsBehind checks an idle fleet whose dispatcher answers too slowly for the report period of
// the fleet: the summary has an error and the delay.
func TestAnIdleFleetSaysThatItIsBehind(t *testing.T) {
	t.Parallel()
	var answered atomic.Int64
	url := startAnswering(t, func(string, string) (int, string) {
		<-time.After(20 * time.Millisecond)
		answered.Add(1)
		return 200, `{"re":"ID","reason":"none"}`
	})
	c := idleConfig(url)
	c.Connections, c.Period = 1, 40*time.Millisecond
	if s, _ := runIdleUntil(t, c, func() bool { return answered.Load() > 75 }); s.Err() == nil || s.DelayAtEnd < time.Second || s.Times.P50 < 19*time.Millisecond {
		t.Errorf("%v, %+v", s.Err(), s)
	}
}

// TestAnIdleDeviceKeepsItsCredential checks an idle fleet whose dispatcher enrolls devices. Each device must use
// the token that it got, because the fleet token is valid only until the device has used its own token.
func TestAnIdleDeviceKeepsItsCredential(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	enrolled, wrong := map[string]bool{}, 0
	url := startAnswering(t, func(device, token string) (int, string) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case token == "own-of-"+device:
			enrolled[device] = true
			return 200, `{"re":"ID","reason":"none"}`
		case enrolled[device]:
			wrong++
			return 403, `{"code":"forbidden"}`
		}
		return 200, `{"re":"ID","reason":"none","credential":"own-of-` + device + `"}`
	})
	c := idleConfig(url)
	s, _ := runIdleUntil(t, c, func() bool { mu.Lock(); defer mu.Unlock(); return len(enrolled) == 40 })
	mu.Lock()
	defer mu.Unlock()
	if s.Errors > 0 || wrong > 0 || len(enrolled) != 40 {
		t.Errorf("%v, %d reports with the fleet token after the own, %d enrolled", s.Err(), wrong, len(enrolled))
	}
}

// TestAMillionIdleDevicesAreNumbers checks an idle fleet of a million devices: it needs no goroutine for each
// device, and memory only for the tokens.
func TestAMillionIdleDevicesAreNumbers(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var n atomic.Int64
	var at runtime.MemStats
	url := startAnswering(t, func(string, string) (int, string) {
		if n.Add(1) == 500 {
			runtime.ReadMemStats(&at)
			end()
		}
		return 200, `{"re":"ID","reason":"none"}`
	})
	c := idleConfig(url)
	c.Devices, c.Period = 1_000_000, 30*time.Second
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := RunIdle(ctx, c, io.Discard); err != nil {
		t.Fatal(err)
	}
	if grown := int64(at.HeapAlloc) - int64(before.HeapAlloc); n.Load() < 500 || grown > 64<<20 {
		t.Errorf("%d reports, %d MB more", n.Load(), grown>>20)
	}
}
