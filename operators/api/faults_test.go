package api_test

import (
	"net/http"
	"strings"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/operators/api"
)

func TestWithoutTheLedgerAllIsUnavailable(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		operations := b.readDocument().operations()
		b.PutPool("p", `{"capacity":60}`)
		b.CreateBatch(newBatchBody)
		g := b.ReportUntilGranted("d-1")
		b.Must(b.store.Close())
		for name := range operations {
			method, pattern, _ := strings.Cut(name, " ")
			path := strings.NewReplacer("{pool}", "p", "{device}", "d-1", "{id}", "1", "{slot}", "0", "{token}", "1", "{profile}", "f", "{set}", "f", "{lease}", "1").Replace(pattern)
			token, body := adminToken, strings.ReplaceAll(validBodies()[name], "{token}", "1")
			if operations[name].OperationID == "report" {
				token, body = fleetToken, g.Result("succeeded", "")
			}
			a := b.Call(method, addRequiredFilter(path), token, body)
			p := a.ExpectProblem(503, "unavailable")
			if a.Header.Get("Retry-After") != "3" || operations[name].OperationID == "report" && p.ReportAfterMS != 3000 {
				b.Errorf("%s: Retry-After %q: %s", name, a.Header.Get("Retry-After"), a.Body)
			}
			if strings.Contains(string(a.Body), "sql") || strings.Contains(string(a.Body), "closed") {
				b.Errorf("%s: shows what is inside: %s", name, a.Body)
			}
		}
		a := b.Call("GET", "/v1/pools", "some-other-token", nil)
		a.ExpectProblem(503, "unavailable")
		b.Call("POST", "/v1/devices/d-1/report", "some-other-token", `{}`).ExpectProblem(503, "unavailable")
	})
}

func TestWithoutRedisResultsAreRecordedAndNothingIsGranted(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":60}`)
	b.CreateBatch(newBatchBody)
	g := b.ReportUntilGranted("d-1")
	b.Must(b.Redis.Close())
	var got deviceReply
	b.SendReport("d-1", g.Result("succeeded", "")).Expect(200).Decode(&got)
	if got.sortedOutcomes() != "recorded" {
		t.Errorf("outcomes %q", got.sortedOutcomes())
	}
	b.SendReport("d-2", `{"id":"x"}`).Expect(200).Decode(&got)
	if got.Reason != "unavailable" {
		t.Errorf("reason %s, want unavailable", got.Reason)
	}
	b.Call("PUT", "/v1/pools/q", adminToken, `{"capacity":60}`).Expect(201) // Redis gets the change when it is reachable again
}

func TestTooManyReportsAreToldToWait(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(s *rig.Options) { s.Reports.MaxReports = 1 })
	started, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	hang := func() { close(started); <-end }
	b.store.beforeViews.Store(&hang)
	go func() {
		defer close(done)
		b.SendReport("d", `{}`)
	}()
	<-started
	a := b.SendReport("e", `{}`)
	if p := a.ExpectProblem(503, "busy_server"); p.ReportAfterMS != 3000 || a.Header.Get("Retry-After") != "3" {
		t.Errorf("%s, Retry-After %q", a.Body, a.Header.Get("Retry-After"))
	}
	b.Get("/v1/pools").Expect(200) // devices do not block operators
	b.store.beforeViews.Store(nil)
	close(end)
	<-done
	b.SendReport("e", `{}`).Expect(200)
}

// A device is deleted while its report is handled. The response tells the device to send the report again.
func TestADeviceDeletedMeanwhileIsToSendAgain(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.SendReport("d", `{}`).Expect(200)
	deleted := func() { b.Call("DELETE", "/v1/devices/d", adminToken, nil) }
	b.store.beforeMerge.Store(&deleted)
	if p := b.SendReport("d", `{"attributes":{"k":1}}`).ExpectProblem(503, "unavailable"); p.ReportAfterMS != 3000 {
		t.Errorf("report_after_ms %d", p.ReportAfterMS)
	}
}

func TestPanicIsAProblemAndTheServerLives(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":60}`)
	spoil := func() { panic("a secret inside") }
	b.store.beforePool.Store(&spoil)
	if a := b.Get("/v1/pools/p"); strings.Contains(string(a.Body), "secret") {
		t.Errorf("shows what is inside: %s", a.Body)
	} else {
		a.ExpectProblem(500, "internal")
	}
	abort := func() { panic(http.ErrAbortHandler) }
	b.store.beforePool.Store(&abort)
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL+"/v1/pools/p", http.NoBody)
	request.Header.Set("Authorization", "Bearer "+adminToken)
	if response, err := http.DefaultTransport.RoundTrip(request); err == nil {
		_ = response.Body.Close()
		t.Errorf("an aborted handler answered %d", response.StatusCode)
	}
	b.store.beforePool.Store(nil)
	b.Get("/v1/pools/p").Expect(200)
}

func TestUnknownPathsAndMethodsAreProblems(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for _, path := range []string{"/", "/v1", "/v1/", "/v1/pool", "/v1/pools/", "/v1/pools/p/slot", "/v2/pools", "/favicon.ico", "/docs", "/v1/devices/d/report/"} {
		b.Get(path).ExpectProblem(404, "not_found")
	}
	for call, allow := range map[string]string{
		"DELETE /v1/pools": "GET, HEAD", "POST /v1/pools/p": "DELETE, GET, HEAD, PATCH, PUT", "PUT /v1/batches": "GET, HEAD, POST", "POST /healthz": "GET, HEAD",
		"GET /v1/tasks/1/cancel": "POST",
	} {
		method, path, _ := strings.Cut(call, " ")
		a := b.Call(method, path, adminToken, nil)
		a.ExpectProblem(405, "method_not_allowed")
		if got := a.Header.Get("Allow"); got != allow {
			t.Errorf("%s: Allow %q, want %q", call, got, allow)
		}
	}
	for _, path := range []string{"//", "/v1//pools", "/v1/../v1/pools", "/v1/pools/..", "/v1/pools/.", "/../metrics", "/v1/%2e%2e/pools"} {
		a := b.Get(path)
		a.ExpectProblem(400, "invalid_path")
		if a.Header.Get("Location") != "" {
			t.Errorf("%s redirects", path)
		}
	}
}

func TestDeviceListenerServesNoOperator(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":60}`)
	devices := b.Serve(b.API.DeviceHandler())
	devices.Call("POST", "/v1/devices/d/report", fleetToken, `{}`).Expect(200)
	devices.Call("GET", "/healthz", "", nil).Expect(200)
	devices.Call("GET", "/readyz", "", nil).Expect(200)
	for name := range b.readDocument().operations() {
		method, pattern, _ := strings.Cut(name, " ")
		path := strings.NewReplacer("{pool}", "p", "{device}", "d", "{id}", "1", "{slot}", "0", "{token}", "1", "{profile}", "f").Replace(pattern)
		if !strings.HasSuffix(path, "/report") {
			devices.Call(method, path, adminToken, validBodies()[name]).ExpectProblem(404, "not_found")
		}
	}
	for _, path := range []string{"/metrics", "/openapi.json", "/openapi.yaml", "/"} {
		devices.Call("GET", path, adminToken, nil).ExpectProblem(404, "not_found")
	}
}

var _ api.Store = (*interceptedStore)(nil)
