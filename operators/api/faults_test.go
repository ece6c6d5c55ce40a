package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators/api"
)

func TestWithoutTheLedgerAllIsUnavailable(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		operations := b.document().operations()
		b.pool("p", `{"capacity":60}`)
		b.batch(newFields)
		g := b.granted("d-1")
		if err := b.store.Close(); err != nil {
			b.Fatal(err)
		}
		for name := range operations {
			method, pattern, _ := strings.Cut(name, " ")
			path := strings.NewReplacer("{pool}", "p", "{device}", "d-1", "{id}", "1", "{slot}", "0", "{token}", "1", "{profile}", "f", "{set}", "f", "{lease}", "1").Replace(pattern)
			token, body := adminToken, strings.ReplaceAll(asks()[name], "{token}", "1")
			if operations[name].OperationID == "report" {
				token, body = fleetToken, g.result("succeeded", "")
			}
			a := b.call(method, filtered(path), token, body)
			p := a.problem(503, "unavailable")
			if a.header.Get("Retry-After") != "3" || operations[name].OperationID == "report" && p.ReportAfterMS != 3000 {
				b.Errorf("%s: Retry-After %q: %s", name, a.header.Get("Retry-After"), a.body)
			}
			if strings.Contains(string(a.body), "sql") || strings.Contains(string(a.body), "closed") {
				b.Errorf("%s: shows what is inside: %s", name, a.body)
			}
		}
		a := b.call("GET", "/v1/pools", "some-other-token", nil)
		a.problem(503, "unavailable")
		b.call("POST", "/v1/devices/d-1/report", "some-other-token", `{}`).problem(503, "unavailable")
	})
}

func TestWithoutRedisResultsAreRecordedAndNothingIsGranted(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":60}`)
	b.batch(newFields)
	g := b.granted("d-1")
	if err := b.redis.Close(); err != nil {
		t.Fatal(err)
	}
	var got reply
	b.report("d-1", g.result("succeeded", "")).must(200).into(&got)
	if got.outcomes() != "recorded" {
		t.Errorf("outcomes %q", got.outcomes())
	}
	b.report("d-2", `{"id":"x"}`).must(200).into(&got)
	if got.Reason != "unavailable" {
		t.Errorf("reason %s, want unavailable", got.Reason)
	}
	b.call("PUT", "/v1/pools/q", adminToken, `{"capacity":60}`).must(201) // Redis gets the change when it is reachable again
}

func TestTooManyReportsAreToldToWait(t *testing.T) {
	t.Parallel()
	b := embedded(t, func(s *setup) { s.reports.MaxReports = 1 })
	started, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	hang := func() { close(started); <-end }
	b.store.views.Store(&hang)
	go func() {
		defer close(done)
		b.report("d", `{}`)
	}()
	<-started
	a := b.report("e", `{}`)
	if p := a.problem(503, "busy_server"); p.ReportAfterMS != 3000 || a.header.Get("Retry-After") != "3" {
		t.Errorf("%s, Retry-After %q", a.body, a.header.Get("Retry-After"))
	}
	b.get("/v1/pools").must(200) // devices do not block operators
	b.store.views.Store(nil)
	close(end)
	<-done
	b.report("e", `{}`).must(200)
}

// If a device is deleted while its report is handled, the device must send the report again.
func TestADeviceDeletedMeanwhileIsToSendAgain(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.report("d", `{}`).must(200)
	deleted := func() { b.call("DELETE", "/v1/devices/d", adminToken, nil) }
	b.store.merge.Store(&deleted)
	if p := b.report("d", `{"attributes":{"k":1}}`).problem(503, "unavailable"); p.ReportAfterMS != 3000 {
		t.Errorf("report_after_ms %d", p.ReportAfterMS)
	}
}

// until polls until the condition is true.
func until(t *testing.T, condition func() bool) {
	t.Helper()
	deadline := time.After(2 * patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the condition did not come true")
		}
	}
}

func TestPanicIsAProblemAndTheServerLives(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":60}`)
	spoil := func() { panic("a secret inside") }
	b.store.pool.Store(&spoil)
	if a := b.get("/v1/pools/p"); strings.Contains(string(a.body), "secret") {
		t.Errorf("shows what is inside: %s", a.body)
	} else {
		a.problem(500, "internal")
	}
	abort := func() { panic(http.ErrAbortHandler) }
	b.store.pool.Store(&abort)
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/v1/pools/p", http.NoBody)
	request.Header.Set("Authorization", "Bearer "+adminToken)
	if response, err := http.DefaultTransport.RoundTrip(request); err == nil {
		_ = response.Body.Close()
		t.Errorf("an aborted handler answered %d", response.StatusCode)
	}
	b.store.pool.Store(nil)
	b.get("/v1/pools/p").must(200)
}

func TestUnknownPathsAndMethodsAreProblems(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	for _, path := range []string{"/", "/v1", "/v1/", "/v1/pool", "/v1/pools/", "/v1/pools/p/slot", "/v2/pools", "/favicon.ico", "/docs", "/v1/devices/d/report/"} {
		b.get(path).problem(404, "not_found")
	}
	for call, allow := range map[string]string{
		"DELETE /v1/pools": "GET, HEAD", "POST /v1/pools/p": "DELETE, GET, HEAD, PATCH, PUT", "PUT /v1/batches": "GET, HEAD, POST", "POST /healthz": "GET, HEAD",
		"GET /v1/tasks/1/cancel": "POST",
	} {
		method, path, _ := strings.Cut(call, " ")
		a := b.call(method, path, adminToken, nil)
		a.problem(405, "method_not_allowed")
		if got := a.header.Get("Allow"); got != allow {
			t.Errorf("%s: Allow %q, want %q", call, got, allow)
		}
	}
	for _, path := range []string{"//", "/v1//pools", "/v1/../v1/pools", "/v1/pools/..", "/v1/pools/.", "/../metrics", "/v1/%2e%2e/pools"} {
		a := b.get(path)
		a.problem(400, "invalid_path")
		if a.header.Get("Location") != "" {
			t.Errorf("%s redirects", path)
		}
	}
}

func TestDeviceListenerServesNoOperator(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":60}`)
	url := b.serve(b.api.DeviceHandler())
	b.callAt(url, "POST", "/v1/devices/d/report", fleetToken, `{}`).must(200)
	b.callAt(url, "GET", "/healthz", "", nil).must(200)
	b.callAt(url, "GET", "/readyz", "", nil).must(200)
	for name := range b.document().operations() {
		method, pattern, _ := strings.Cut(name, " ")
		path := strings.NewReplacer("{pool}", "p", "{device}", "d", "{id}", "1", "{slot}", "0", "{token}", "1", "{profile}", "f").Replace(pattern)
		if !strings.HasSuffix(path, "/report") {
			b.callAt(url, method, path, adminToken, asks()[name]).problem(404, "not_found")
		}
	}
	for _, path := range []string{"/metrics", "/openapi.json", "/openapi.yaml", "/"} {
		b.callAt(url, "GET", path, adminToken, nil).problem(404, "not_found")
	}
}

var _ api.Store = (*ledger)(nil)
