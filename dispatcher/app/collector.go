package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

// stateCollector reads what is state at scrape time: nothing here is kept by
// increments, so it cannot drift.
type stateCollector struct {
	stats    *reading.Shared[[]store.PoolStat]
	waits    *reading.Shared[map[string]int]
	patience time.Duration
	log      *slog.Logger
	panicked rescue.Told
	held     *prometheus.Desc
	capacity *prometheus.Desc
	waiting  *prometheus.Desc
	tasks    *prometheus.Desc
	oldest   *prometheus.Desc
}

func newStateCollector(r poolReader, log *slog.Logger, panicked rescue.Told) *stateCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("dispatcher_"+name, help, labels, nil)
	}
	return &stateCollector{
		stats: reading.New(readingFresh, readingTime, time.Now, r.PoolStats),
		waits: reading.NewSpared(waitingFresh, waitingSpare, readingTime, time.Now, func(ctx context.Context) (map[string]int, error) {
			return r.WaitingByPool(ctx, waitingShown)
		}),
		patience: scrapeTime, log: log, panicked: panicked,
		held:     desc("slots_held", "Slots held by devices, by the ledger.", "pool"),
		capacity: desc("slots_capacity", "Slots of the pool.", "pool"),
		waiting:  desc("slots_waiting", "Devices with a task that could start now and no slot, among up to 10000 tasks; up to a minute old.", "pool"),
		tasks:    desc("tasks", "Tasks by state.", "pool", "state"),
		oldest:   desc("oldest_pending_task_age_seconds", "Age of the oldest pending task; 0: none is pending.", "pool"),
	}
}

// Describe names the metrics.
func (c *stateCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.held, c.capacity, c.waiting, c.tasks, c.oldest} {
		out <- d
	}
}

// Collect reads the ledger. A value that cannot be read in time is absent: none
// is better than an old one, and a scrape must end.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), c.patience)
	defer cancel()
	wait := rescue.Crew{Told: c.panicked}
	defer wait.Wait()
	wait.Go("collecting", func() { c.collectStats(ctx, out) })
	wait.Go("collecting", func() { c.collectWaiting(ctx, out) })
}

func (c *stateCollector) collectStats(ctx context.Context, out chan<- prometheus.Metric) {
	stats, err := c.stats.Read(ctx)
	if c.panicked.Tell("collecting", err) != nil {
		c.log.WarnContext(ctx, "metrics of pools not read", "err", err)
		return
	}
	for _, s := range stats {
		out <- gauge(c.held, float64(s.Held), s.Pool)
		out <- gauge(c.capacity, float64(s.Capacity), s.Pool)
		out <- gauge(c.oldest, s.OldestPending.Seconds(), s.Pool)
		for _, state := range store.TaskStates() {
			out <- gauge(c.tasks, float64(s.Tasks[state]), s.Pool, string(state))
		}
	}
}

// collectWaiting needs the pools, too: one where nobody waits shows 0.
func (c *stateCollector) collectWaiting(ctx context.Context, out chan<- prometheus.Metric) {
	stats, err := c.stats.Read(ctx)
	if err != nil {
		return // logged above
	}
	waiting, err := c.waits.Read(ctx)
	if c.panicked.Tell("collecting", err) != nil {
		c.log.WarnContext(ctx, "metric of waiting devices not read", "err", err)
		return
	}
	for _, s := range stats {
		out <- gauge(c.waiting, float64(waiting[s.Pool]), s.Pool)
	}
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// buildInfo is a constant 1 that carries the version.
func buildInfo(version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dispatcher_build_info", Help: "Always 1; carries the version.",
		ConstLabels: prometheus.Labels{"version": version},
	}, func() float64 { return 1 })
}
