package api_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// Two requests for the metrics are answered at once. A third request is refused without waiting. After a request has ended, the next one is
// answered.
func TestTwoScrapesAtOnce(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}, 1), make(chan struct{})
	b := startEmbedded(t, func(o *rig.Options) {
		o.API.MetricsMaxAge = time.Hour
		o.API.Metrics = prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			began <- struct{}{}
			<-release
			return nil, nil
		})
	})
	answers := make(chan int, 3)
	scrape := func() {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL+"/metrics", nil)
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Error(err)
			answers <- 0
			return
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		answers <- response.StatusCode
	}
	for range 3 {
		go scrape()
	}
	<-began
	if status := <-answers; status != http.StatusServiceUnavailable {
		t.Errorf("%d for the third request, want 503", status)
	}
	b.Call("GET", "/metrics", "", nil).ExpectProblem(503, "busy_server")
	close(release)
	for range 2 {
		if status := <-answers; status != http.StatusOK {
			t.Errorf("%d for one of two requests, want 200", status)
		}
	}
	b.Call("GET", "/metrics", "", nil).Expect(200)
}

// With a metrics token, /metrics is open for this token and for viewers. The metrics token must open no other path. Wrong tokens must lock
// the address out, as they do at the API.
func TestMetricsToken(t *testing.T) {
	t.Parallel()
	const metricsToken = "of-the-scraper-only"
	b := startWithLockout(t, func(o *rig.Options) { o.API.MetricsToken = metricsToken })
	viewer, verifier := b.createToken("viewer"), b.createToken("verifier")
	for _, token := range []string{metricsToken, viewer, adminToken} {
		b.Call("GET", "/metrics", token, nil).Expect(200)
	}
	b.Call("GET", "/metrics", "", nil).ExpectProblem(401, "unauthenticated")
	b.Call("GET", "/metrics", verifier, nil).ExpectProblem(403, "forbidden")
	b.Call("GET", "/v1/pools", metricsToken, nil).ExpectProblem(403, "forbidden")
	b.Call("POST", "/v1/tokens", adminToken, `{"name":"metrics","role":"viewer"}`).ExpectProblem(409, "already_exists")
	for range 10 {
		b.Call("GET", "/metrics", "wrong", nil).ExpectProblem(401, "unauthenticated")
	}
	b.Call("GET", "/metrics", "wrong", nil).ExpectProblem(429, "locked_out")
	b.Call("GET", "/metrics", metricsToken, nil).Expect(200) // it was accepted from this address before
}
