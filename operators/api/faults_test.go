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
	runOnServers(t, func(b *testAPI) {
		operations := b.readDocument().operations()
		b.putPool("p", `{"capacity":60}`)
		b.createBatch(newBatchBody)
		g := b.reportUntilGranted("d-1")
		if err := b.store.Close(); err != nil {
			b.Fatal(err)
		}
		for name := range operations {
			method, pattern, _ := strings.Cut(name, " ")
			path := strings.NewReplacer("{pool}", "p", "{device}", "d-1", "{id}", "1", "{slot}", "0", "{token}", "1", "{profile}", "f", "{set}", "f", "{lease}", "1").Replace(pattern)
			token, body := adminToken, strings.ReplaceAll(validBodies()[name], "{token}", "1")
			if operations[name].OperationID == "report" {
				token, body = fleetToken, g.resultBody("succeeded", "")
			}
			a := b.call(method, addRequiredFilter(path), token, body)
			p := a.expectProblem(503, "unavailable")
			if a.header.Get("Retry-After") != "3" || operations[name].OperationID == "report" && p.ReportAfterMS != 3000 {
				b.Errorf("%s: Retry-After %q: %s", name, a.header.Get("Retry-After"), a.body)
			}
			if strings.Contains(string(a.body), "sql") || strings.Contains(string(a.body), "closed") {
				b.Errorf("%s: shows what is inside: %s", name, a.body)
			}
		}
		a := b.call("GET", "/v1/pools", "some-other-token", nil)
		a.expectProblem(503, "unavailable")
		b.call("POST", "/v1/devices/d-1/report", "some-other-token", `{}`).expectProblem(503, "unavailable")
	})
}

func TestWithoutRedisResultsAreRecordedAndNothingIsGranted(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putPool("p", `{"capacity":60}`)
	b.createBatch(newBatchBody)
	g := b.reportUntilGranted("d-1")
	if err := b.redis.Close(); err != nil {
		t.Fatal(err)
	}
	var got deviceReply
	b.sendReport("d-1", g.resultBody("succeeded", "")).expectStatus(200).decode(&got)
	if got.sortedOutcomes() != "recorded" {
		t.Errorf("outcomes %q", got.sortedOutcomes())
	}
	b.sendReport("d-2", `{"id":"x"}`).expectStatus(200).decode(&got)
	if got.Reason != "unavailable" {
		t.Errorf("reason %s, want unavailable", got.Reason)
	}
	b.call("PUT", "/v1/pools/q", adminToken, `{"capacity":60}`).expectStatus(201) // Redis gets the change when it is reachable again
}

func TestTooManyReportsAreToldToWait(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(s *testOptions) { s.reports.MaxReports = 1 })
	started, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	hang := func() { close(started); <-end }
	b.store.beforeViews.Store(&hang)
	go func() {
		defer close(done)
		b.sendReport("d", `{}`)
	}()
	<-started
	a := b.sendReport("e", `{}`)
	if p := a.expectProblem(503, "busy_server"); p.ReportAfterMS != 3000 || a.header.Get("Retry-After") != "3" {
		t.Errorf("%s, Retry-After %q", a.body, a.header.Get("Retry-After"))
	}
	b.get("/v1/pools").expectStatus(200) // devices do not block operators
	b.store.beforeViews.Store(nil)
	close(end)
	<-done
	b.sendReport("e", `{}`).expectStatus(200)
}

// A device is deleted while its report is handled. The response tells the device to send the report again.
func TestADeviceDeletedMeanwhileIsToSendAgain(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.sendReport("d", `{}`).expectStatus(200)
	deleted := func() { b.call("DELETE", "/v1/devices/d", adminToken, nil) }
	b.store.beforeMerge.Store(&deleted)
	if p := b.sendReport("d", `{"attributes":{"k":1}}`).expectProblem(503, "unavailable"); p.ReportAfterMS != 3000 {
		t.Errorf("report_after_ms %d", p.ReportAfterMS)
	}
}

// waitUntil checks the condition again and again until it is true.
func waitUntil(t *testing.T, condition func() bool) {
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
	b := startEmbedded(t)
	b.putPool("p", `{"capacity":60}`)
	spoil := func() { panic("a secret inside") }
	b.store.beforePool.Store(&spoil)
	if a := b.get("/v1/pools/p"); strings.Contains(string(a.body), "secret") {
		t.Errorf("shows what is inside: %s", a.body)
	} else {
		a.expectProblem(500, "internal")
	}
	abort := func() { panic(http.ErrAbortHandler) }
	b.store.beforePool.Store(&abort)
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/v1/pools/p", http.NoBody)
	request.Header.Set("Authorization", "Bearer "+adminToken)
	if response, err := http.DefaultTransport.RoundTrip(request); err == nil {
		_ = response.Body.Close()
		t.Errorf("an aborted handler answered %d", response.StatusCode)
	}
	b.store.beforePool.Store(nil)
	b.get("/v1/pools/p").expectStatus(200)
}

func TestUnknownPathsAndMethodsAreProblems(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for _, path := range []string{"/", "/v1", "/v1/", "/v1/pool", "/v1/pools/", "/v1/pools/p/slot", "/v2/pools", "/favicon.ico", "/docs", "/v1/devices/d/report/"} {
		b.get(path).expectProblem(404, "not_found")
	}
	for call, allow := range map[string]string{
		"DELETE /v1/pools": "GET, HEAD", "POST /v1/pools/p": "DELETE, GET, HEAD, PATCH, PUT", "PUT /v1/batches": "GET, HEAD, POST", "POST /healthz": "GET, HEAD",
		"GET /v1/tasks/1/cancel": "POST",
	} {
		method, path, _ := strings.Cut(call, " ")
		a := b.call(method, path, adminToken, nil)
		a.expectProblem(405, "method_not_allowed")
		if got := a.header.Get("Allow"); got != allow {
			t.Errorf("%s: Allow %q, want %q", call, got, allow)
		}
	}
	for _, path := range []string{"//", "/v1//pools", "/v1/../v1/pools", "/v1/pools/..", "/v1/pools/.", "/../metrics", "/v1/%2e%2e/pools"} {
		a := b.get(path)
		a.expectProblem(400, "invalid_path")
		if a.header.Get("Location") != "" {
			t.Errorf("%s redirects", path)
		}
	}
}

func TestDeviceListenerServesNoOperator(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putPool("p", `{"capacity":60}`)
	url := b.startServer(b.api.DeviceHandler())
	b.callURL(url, "POST", "/v1/devices/d/report", fleetToken, `{}`).expectStatus(200)
	b.callURL(url, "GET", "/healthz", "", nil).expectStatus(200)
	b.callURL(url, "GET", "/readyz", "", nil).expectStatus(200)
	for name := range b.readDocument().operations() {
		method, pattern, _ := strings.Cut(name, " ")
		path := strings.NewReplacer("{pool}", "p", "{device}", "d", "{id}", "1", "{slot}", "0", "{token}", "1", "{profile}", "f").Replace(pattern)
		if !strings.HasSuffix(path, "/report") {
			b.callURL(url, method, path, adminToken, validBodies()[name]).expectProblem(404, "not_found")
		}
	}
	for _, path := range []string{"/metrics", "/openapi.json", "/openapi.yaml", "/"} {
		b.callURL(url, "GET", path, adminToken, nil).expectProblem(404, "not_found")
	}
}

var _ api.Store = (*interceptedStore)(nil)
