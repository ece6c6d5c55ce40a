package exposition_test

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/fleetslots/dispatcher/internal/exposition"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// sampleRegistry returns a registry with metrics of each type. They include text that must be escaped and special
// numbers.
func sampleRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector())
	odd := "back\\slash \"quoted\"\nnext line"
	plain := prometheus.NewGauge(prometheus.GaugeOpts{Name: "plain", Help: odd})
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gauge", Help: "h"}, []string{"pool", "state"})
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "counter_total", Help: "h"}, []string{"pool"})
	waits := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "waits", Help: "h", Buckets: []float64{0.001, 1, 86400, 1e7}}, []string{"pool"})
	bare := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bare", Help: "h", Buckets: []float64{0.5}})
	r.MustRegister(plain, gauge, counter, waits, bare)
	for i, value := range []float64{0, -0.25, 1, 1e6, 999_999, 1e21, 123_456_789, 0.1, math.Inf(1), math.Inf(-1), math.NaN()} {
		gauge.WithLabelValues(odd, string(rune('a'+i))).Set(value)
		if value >= 0 {
			counter.WithLabelValues(string(rune('a' + i))).Add(value)
			waits.WithLabelValues("p").Observe(value)
			bare.Observe(value)
		}
	}
	counter.WithLabelValues("ä")
	return r
}

// A scraper gets the same headers and the same text as from the handler of the Prometheus library.
func TestHandlerAnswersAsTheLibrary(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "counter_total", Help: "h"})
	r.MustRegister(counter)
	for _, accepted := range []string{"", "gzip", "zstd, gzip;q=0.5"} {
		want, got := scrape(promhttp.HandlerFor(r, promhttp.HandlerOpts{OfferedCompressions: []promhttp.Compression{promhttp.Gzip}}), accepted), scrape(exposition.Handler(r, time.Second, nil), accepted)
		for _, name := range []string{"Content-Type", "Content-Encoding"} {
			if got, want := got.Header().Get(name), want.Header().Get(name); strings.TrimSuffix(want, "; escaping=underscores") != got {
				t.Errorf("accepted %q: %s is %q, want %q", accepted, name, got, want)
			}
		}
		if diff := cmp.Diff(plainBody(t, want), plainBody(t, got)); diff != "" {
			t.Error(diff)
		}
	}
}

// The handler serves the metrics of all sources. If one of them fails, it serves none.
func TestHandlerServesAllSources(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]error{"well": nil, "failing": errors.New("no such table")} {
		broken := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, fails })
		second := prometheus.NewRegistry()
		second.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "second", Help: "h"}))
		got := scrape(exposition.Handler(exposition.Sources{sampleRegistry(), broken, second}, time.Second, nil), "")
		if fails != nil {
			if got.Code != http.StatusInternalServerError || !strings.Contains(got.Body.String(), fails.Error()) {
				t.Errorf("%s: %d %s", name, got.Code, got.Body)
			}
			continue
		}
		if text := got.Body.String(); !strings.Contains(text, "\nsecond 0\n") || !strings.Contains(text, "\nplain 0\n") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// All requests within the maximum age get one text, whether it is compressed or not. Later requests get a new text.
func TestRequestsShareATextForItsAge(t *testing.T) {
	t.Parallel()
	for maxAge, want := range map[time.Duration]int{time.Hour: 1, time.Nanosecond: 4} {
		gathers := prometheus.NewCounter(prometheus.CounterOpts{Name: "gathers_total", Help: "h"})
		r := prometheus.NewRegistry()
		r.MustRegister(gathers)
		handler := exposition.Handler(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			gathers.Inc()
			return r.Gather()
		}), maxAge, nil)
		last := ""
		for _, accepted := range []string{"", "gzip", "", "gzip"} {
			last = plainBody(t, scrape(handler, accepted))
		}
		if text := fmt.Sprintf("gathers_total %d\n", want); !strings.HasSuffix(last, text) {
			t.Errorf("maximum age %s: %q, want %q", maxAge, last, text)
		}
	}
}

// A panic of a source is reported, and the client gets an error.
func TestAPanicOfASourceIsReported(t *testing.T) {
	t.Parallel()
	reported := 0
	handler := exposition.Handler(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { panic("broken") }), time.Hour, func(string, *rescue.Panic) { reported++ })
	if got := scrape(handler, ""); got.Code != http.StatusInternalServerError || reported != 1 {
		t.Errorf("%d, %d panics reported; want 500 and 1", got.Code, reported)
	}
}

func scrape(handler http.Handler, accepted string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept-Encoding", accepted)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

func plainBody(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	body := io.Reader(w.Body)
	if w.Header().Get("Content-Encoding") == "gzip" {
		var err error
		if body, err = gzip.NewReader(w.Body); err != nil {
			t.Fatal(err)
		}
	}
	text, err := io.ReadAll(body)
	must.Succeed(t, err)
	return string(text)
}
