package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/fleetslots/dispatcher/internal/exposition"
	"github.com/fleetslots/dispatcher/store"
)

// fakePools is a poolReader whose reads fail with statsErr and viewsErr if these are not nil. A read returns only after
// release was closed.
type fakePools struct {
	release            chan struct{}
	statsErr, viewsErr error
	reads              atomic.Int64
}

func (p *fakePools) PoolStats(context.Context) ([]store.PoolStat, error) {
	p.reads.Add(1)
	<-p.release
	return []store.PoolStat{
		{Pool: "busy", Capacity: 60, Held: 58, OldestPending: 90 * time.Second, Tasks: map[store.TaskState]int64{store.Pending: 7, store.Dispatched: 58}},
		{Pool: "quiet", Capacity: 3},
	}, p.statsErr
}

func (p *fakePools) PoolOverviews(_ context.Context, _ string, _, maxWaiting int) ([]store.PoolOverview, error) {
	<-p.release
	return []store.PoolOverview{{Pool: store.Pool{Name: "busy"}, Waiting: min(5, maxWaiting)}, {Pool: store.Pool{Name: "quiet"}}}, p.viewsErr
}

func newFakePools() *fakePools {
	p := &fakePools{release: make(chan struct{})}
	close(p.release)
	return p
}

func newTestStateMetrics(p *fakePools) *stateMetrics {
	return newStateMetrics(p, slog.New(slog.DiscardHandler), nil)
}

// scrapeText returns the metrics as the text that Prometheus would scrape.
func scrapeText(t *testing.T, gatherers ...prometheus.Gatherer) string {
	t.Helper()
	w := httptest.NewRecorder()
	exposition.Handler(exposition.Sources(gatherers), time.Nanosecond, nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// sampleLines returns the lines of a scrape that contain a sample of a metric whose name is in names.
func sampleLines(text string, names ...string) (lines []string) {
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(line, "{")
		if slices.Contains(names, name) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func TestMetricsShowTheStateOfPools(t *testing.T) {
	t.Parallel()
	c := newTestStateMetrics(newFakePools())
	c.timeout = time.Minute
	text := scrapeText(t, c)
	want := []string{
		`dispatcher_oldest_pending_task_age_seconds{pool="busy"} 90`,
		`dispatcher_oldest_pending_task_age_seconds{pool="quiet"} 0`,
		`dispatcher_slots_capacity{pool="busy"} 60`,
		`dispatcher_slots_capacity{pool="quiet"} 3`,
		`dispatcher_slots_held{pool="busy"} 58`,
		`dispatcher_slots_held{pool="quiet"} 0`,
		`dispatcher_slots_waiting{pool="busy"} 5`,
		`dispatcher_slots_waiting{pool="quiet"} 0`,
	}
	got := sampleLines(text, "dispatcher_oldest_pending_task_age_seconds", "dispatcher_slots_capacity", "dispatcher_slots_held", "dispatcher_slots_waiting")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n, want := len(sampleLines(text, "dispatcher_tasks")), 2*len(store.TaskStates()); n != want {
		t.Errorf("%d series of tasks, want %d", n, want)
	}
	faults, err := promlint.New(strings.NewReader(text)).Lint()
	if len(faults) > 0 || err != nil {
		t.Errorf("%v, %v", faults, err)
	}
}

// TestStateThatCannotBeRead checks a scrape if some values cannot be read: these are absent, and all other values
// are shown.
func TestStateThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stats, waits error
		want         int
	}{
		"waiting": {waits: errors.New("timeout"), want: 2},
		"stats":   {stats: errors.New("connection refused"), want: 0},
	} {
		p := newFakePools()
		p.statsErr, p.viewsErr = test.stats, test.waits
		c := newTestStateMetrics(p)
		c.timeout = time.Minute
		text := scrapeText(t, c)
		if held := sampleLines(text, "dispatcher_slots_held"); len(held) != test.want {
			t.Errorf("%s: %q, want %d pools", name, held, test.want)
		}
		if waiting := sampleLines(text, "dispatcher_slots_waiting"); len(waiting) != 0 {
			t.Errorf("%s: %q, want none", name, waiting)
		}
	}
}

// TestScrapeOfADeadLedger checks scrapes while the ledger does not answer: they end, and they do not start more and
// more reads.
func TestScrapeOfADeadLedger(t *testing.T) {
	t.Parallel()
	p := &fakePools{release: make(chan struct{})}
	defer close(p.release)
	c := newTestStateMetrics(p)
	c.timeout = time.Millisecond
	version := prometheus.NewRegistry()
	version.MustRegister(newBuildInfoMetric("v1"))
	for range 5 {
		text := scrapeText(t, c, version)
		if strings.Contains(text, "pool") || !strings.Contains(text, "dispatcher_build_info{") {
			t.Fatalf("%s; want the version alone", text)
		}
	}
	if n := p.reads.Load(); n != 1 {
		t.Errorf("%d readings, want one that hangs", n)
	}
}
