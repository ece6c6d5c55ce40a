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

// Maximum ages of the counts of waiting devices. Counts older than waitingMaxAge are read again, which takes long. While
// a read is in progress, a scrape gets the previous counts if they are at most waitingFallbackAge old.
const (
	waitingMaxAge      = 10 * time.Second
	waitingFallbackAge = time.Minute
)

const (
	scrapeTimeout = 3 * time.Second  // maximum time that a scrape waits for a read
	readingTime   = 10 * time.Second // time limit of a read, even if no scrape waits for it
)

// poolReader reads the state of the pools. *store.Store implements it.
type poolReader interface {
	PoolStats(ctx context.Context) ([]store.PoolStat, error)
	PoolOverviews(ctx context.Context, afterName string, limit, maxWaiting int) ([]store.PoolOverview, error)
}

// stateMetrics are metrics that are read from the ledger at each scrape, so their values always agree with the ledger.
// stateMetrics does not implement prometheus.Collector, because a registry would compare and sort the metrics of
// thousands of pools.
type stateMetrics struct {
	stats         *reading.SharedRead[[]store.PoolStat] // concurrent scrapes share one read
	waitingByPool *reading.SharedRead[map[string]int]   // number of waiting devices by pool
	timeout       time.Duration
	log           *slog.Logger
	panicked      rescue.PanicHandler
}

// newStateMetrics returns the metrics that are read from pools.
func newStateMetrics(pools poolReader, log *slog.Logger, panicked rescue.PanicHandler) *stateMetrics {
	return &stateMetrics{
		stats: reading.New(0, readingTime, time.Now, pools.PoolStats),
		waitingByPool: reading.NewServingStale(waitingMaxAge, waitingFallbackAge, readingTime, time.Now,
			(&waitingCounts{pools: pools, readTime: waitingReadTime, current: map[string]int{}, previous: map[string]int{}}).readCounts),
		timeout: scrapeTimeout, log: log, panicked: panicked,
	}
}

// Gather reads the values of the metrics from the ledger. It leaves out a value that cannot be read in time: a missing
// value is better than an old value, and a scrape must end.
func (m *stateMetrics) Gather() ([]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(context.Background(), m.timeout)
	defer cancel()
	stats, err := m.stats.Read(ctx)
	if m.panicked.Report("collecting", err) != nil {
		m.log.WarnContext(ctx, "metrics of pools not read", "err", err)
		return nil, nil
	}
	waiting, err := m.waitingByPool.Read(ctx)
	if m.panicked.Report("collecting", err) != nil {
		m.log.WarnContext(ctx, "metric of waiting devices not read", "err", err)
	}
	return newMetricFamilies(stats, waiting), nil
}

// newMetricFamilies returns the metrics of the pools in stats. It omits a metric family that has no value. waitingByPool contains the
// number of waiting devices of each pool that was counted.
func newMetricFamilies(stats []store.PoolStat, waitingByPool map[string]int) []*dto.MetricFamily {
	held := newMetricFamily("slots_held", "Slots that are held, according to the ledger.")
	capacity := newMetricFamily("slots_capacity", "Slots of the pool.")
	queued := newMetricFamily("slots_waiting", "Devices that have no slot and have a task that could start now, up to 10000. The value is up to a minute old, or older if counting in all pools takes longer.")
	tasks := newMetricFamily("tasks", "Tasks by state.")
	oldest := newMetricFamily("oldest_pending_task_age_seconds", "Age of the oldest pending task; 0: no task is pending.")
	states := map[store.TaskState]*dto.LabelPair{}
	for _, state := range store.TaskStates() {
		states[state] = newMetricLabel("state", string(state))
	}
	for _, s := range stats {
		pool := newMetricLabel("pool", s.Pool)
		addGauge(held, float64(s.Held), pool)
		addGauge(capacity, float64(s.Capacity), pool)
		addGauge(oldest, s.OldestPending.Seconds(), pool)
		for _, state := range store.TaskStates() {
			addGauge(tasks, float64(s.Tasks[state]), pool, states[state])
		}
		if n, counted := waitingByPool[s.Pool]; counted {
			addGauge(queued, float64(n), pool)
		}
	}
	return slices.DeleteFunc([]*dto.MetricFamily{oldest, capacity, held, queued, tasks}, func(f *dto.MetricFamily) bool { return len(f.GetMetric()) == 0 })
}

func newMetricFamily(name, help string) *dto.MetricFamily {
	name = "dispatcher_" + name
	return &dto.MetricFamily{Name: &name, Help: &help, Type: dto.MetricType_GAUGE.Enum()}
}

func newMetricLabel(name, value string) *dto.LabelPair {
	return &dto.LabelPair{Name: &name, Value: &value}
}

func addGauge(family *dto.MetricFamily, value float64, labels ...*dto.LabelPair) {
	family.Metric = append(family.Metric, &dto.Metric{Label: labels, Gauge: &dto.Gauge{Value: &value}})
}

func newBuildInfoMetric(version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dispatcher_build_info", Help: "Always 1; the label version contains the version.",
		ConstLabels: prometheus.Labels{"version": version},
	}, func() float64 { return 1 })
}
