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

// pools is a poolReader. It returns the errors stats and waits, after hold has been closed.
type pools struct {
	hold         chan struct{}
	stats, waits error
	readings     atomic.Int64
}

func (p *pools) PoolStats(context.Context) ([]store.PoolStat, error) {
	p.readings.Add(1)
	<-p.hold
	return []store.PoolStat{
		{Pool: "busy", Capacity: 60, Held: 58, OldestPending: 90 * time.Second, Tasks: map[store.TaskState]int64{store.Pending: 7, store.Dispatched: 58}},
		{Pool: "quiet", Capacity: 3},
	}, p.stats
}

func (p *pools) PoolViews(_ context.Context, _ string, _, most int) ([]store.PoolView, error) {
	<-p.hold
	return []store.PoolView{{Pool: store.Pool{Name: "busy"}, Waiting: min(5, most)}, {Pool: store.Pool{Name: "quiet"}}}, p.waits
}

func newPools() *pools {
	p := &pools{hold: make(chan struct{})}
	close(p.hold)
	return p
}

func stateOf(p *pools) *stateMetrics {
	return newStateMetrics(p, slog.New(slog.DiscardHandler), nil)
}

// scrape returns the text that Prometheus would scrape.
func scrape(t *testing.T, all ...prometheus.Gatherer) string {
	t.Helper()
	w := httptest.NewRecorder()
	exposition.Handler(exposition.Sources(all)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// samples returns the lines of a scrape with these names.
func samples(text string, names ...string) (lines []string) {
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
	c := stateOf(newPools())
	c.patience = time.Minute
	text := scrape(t, c)
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
	got := samples(text, "dispatcher_oldest_pending_task_age_seconds", "dispatcher_slots_capacity", "dispatcher_slots_held", "dispatcher_slots_waiting")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n, want := len(samples(text, "dispatcher_tasks")), 2*len(store.TaskStates()); n != want {
		t.Errorf("%d series of tasks, want %d", n, want)
	}
	faults, err := promlint.New(strings.NewReader(text)).Lint()
	if len(faults) > 0 || err != nil {
		t.Errorf("%v, %v", faults, err)
	}
}

// TestStateThatCannotBeRead checks that a value that cannot be read is absent, and all other values are
// shown.
func TestStateThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stats, waits error
		want         int
	}{
		"waiting": {waits: errors.New("timeout"), want: 2},
		"stats":   {stats: errors.New("connection refused"), want: 0},
	} {
		p := newPools()
		p.stats, p.waits = test.stats, test.waits
		c := stateOf(p)
		c.patience = time.Minute
		text := scrape(t, c)
		if held := samples(text, "dispatcher_slots_held"); len(held) != test.want {
			t.Errorf("%s: %q, want %d pools", name, held, test.want)
		}
		if waiting := samples(text, "dispatcher_slots_waiting"); len(waiting) != 0 {
			t.Errorf("%s: %q, want none", name, waiting)
		}
	}
}

// TestScrapeOfADeadLedger checks that scrapes end although the ledger does not answer, and that they do
// not start more and more reads.
func TestScrapeOfADeadLedger(t *testing.T) {
	t.Parallel()
	p := &pools{hold: make(chan struct{})}
	defer close(p.hold)
	c := stateOf(p)
	c.patience = time.Millisecond
	version := prometheus.NewRegistry()
	version.MustRegister(buildInfo("v1"))
	for range 5 {
		text := scrape(t, c, version)
		if strings.Contains(text, "pool") || !strings.Contains(text, "dispatcher_build_info{") {
			t.Fatalf("%s; want the version alone", text)
		}
	}
	if n := p.readings.Load(); n != 1 {
		t.Errorf("%d readings, want one that hangs", n)
	}
}
