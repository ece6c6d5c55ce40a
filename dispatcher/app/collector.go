package app

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/fleetslots/dispatcher/internal/reading"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// waitingShown bounds the tasks that are looked at to count who waits in a pool.
const waitingShown = 10_000

// Two servers that scrape, or a page beside them, cost one reading a second.
// Waiters are counted task by task: with hundreds of thousands that takes longer
// than a scrape should, so a scrape shows the count that the one before had read.
const (
	readingFresh = time.Second
	waitingFresh = 10 * time.Second
	waitingSpare = time.Minute
)

const (
	scrapeTime  = 3 * time.Second  // a scrape waits no longer for a reading
	readingTime = 10 * time.Second // a reading that nobody waits for ends
)

// poolReader is the source of the pools' state; *store.Store.
type poolReader interface {
	PoolStats(ctx context.Context) ([]store.PoolStat, error)
	WaitingByPool(ctx context.Context, tasks int) (map[string]int, error)
}

// stateMetrics are read when they are gathered: nothing here is kept by increments, so it
// cannot drift. They are no Collector: a registry would compare and sort all of them, which
// for thousands of pools takes longer than to read and write them.
type stateMetrics struct {
	stats    *reading.Shared[[]store.PoolStat]
	waits    *reading.Shared[map[string]int]
	patience time.Duration
	log      *slog.Logger
	panicked rescue.Told
}

func newStateMetrics(r poolReader, log *slog.Logger, panicked rescue.Told) *stateMetrics {
	return &stateMetrics{
		stats: reading.New(readingFresh, readingTime, time.Now, r.PoolStats),
		waits: reading.NewSpared(waitingFresh, waitingSpare, readingTime, time.Now, func(ctx context.Context) (map[string]int, error) {
			return r.WaitingByPool(ctx, waitingShown)
		}),
		patience: scrapeTime, log: log, panicked: panicked,
	}
}

// Gather reads the ledger. A value that cannot be read in time is absent: none
// is better than an old one, and a scrape must end.
func (m *stateMetrics) Gather() ([]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(context.Background(), m.patience)
	defer cancel()
	stats, err := m.stats.Read(ctx)
	if m.panicked.Tell("collecting", err) != nil {
		m.log.WarnContext(ctx, "metrics of pools not read", "err", err)
		return nil, nil
	}
	waiting, err := m.waits.Read(ctx)
	if m.panicked.Tell("collecting", err) != nil {
		m.log.WarnContext(ctx, "metric of waiting devices not read", "err", err)
	}
	return gauges(stats, waiting, err == nil), nil
}

// gauges are the families of the pools, each with a series at least. With waiting, a pool
// where nobody waits shows 0.
func gauges(stats []store.PoolStat, waiting map[string]int, counted bool) []*dto.MetricFamily {
	held := family("slots_held", "Slots held by devices, by the ledger.")
	capacity := family("slots_capacity", "Slots of the pool.")
	queued := family("slots_waiting", "Devices with a task that could start now and no slot, among up to 10000 tasks; up to a minute old.")
	tasks := family("tasks", "Tasks by state.")
	oldest := family("oldest_pending_task_age_seconds", "Age of the oldest pending task; 0: none is pending.")
	states := map[store.TaskState]*dto.LabelPair{}
	for _, state := range store.TaskStates() {
		states[state] = label("state", string(state))
	}
	for _, s := range stats {
		pool := label("pool", s.Pool)
		gauge(held, float64(s.Held), pool)
		gauge(capacity, float64(s.Capacity), pool)
		gauge(oldest, s.OldestPending.Seconds(), pool)
		for _, state := range store.TaskStates() {
			gauge(tasks, float64(s.Tasks[state]), pool, states[state])
		}
		if counted {
			gauge(queued, float64(waiting[s.Pool]), pool)
		}
	}
	return slices.DeleteFunc([]*dto.MetricFamily{oldest, capacity, held, queued, tasks}, func(f *dto.MetricFamily) bool { return len(f.GetMetric()) == 0 })
}

func family(name, help string) *dto.MetricFamily {
	name = "dispatcher_" + name
	return &dto.MetricFamily{Name: &name, Help: &help, Type: dto.MetricType_GAUGE.Enum()}
}

func label(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

func gauge(of *dto.MetricFamily, value float64, labels ...*dto.LabelPair) {
	of.Metric = append(of.Metric, &dto.Metric{Label: labels, Gauge: &dto.Gauge{Value: &value}})
}

// buildInfo is a constant 1 that carries the version.
func buildInfo(version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dispatcher_build_info", Help: "Always 1; carries the version.",
		ConstLabels: prometheus.Labels{"version": version},
	}, func() float64 { return 1 })
}
