package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/store"
)

// waitingShown bounds the count of waiting devices.
const waitingShown = 10_000

// scrapeTime bounds the reading of one scrape.
const scrapeTime = 3 * time.Second

// stateCollector reads what is state at scrape time: nothing here is kept by
// increments, so it cannot drift.
type stateCollector struct {
	store    *store.Store
	log      *slog.Logger
	held     *prometheus.Desc
	capacity *prometheus.Desc
	waiting  *prometheus.Desc
	tasks    *prometheus.Desc
	oldest   *prometheus.Desc
}

func newStateCollector(s *store.Store, log *slog.Logger) *stateCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("dispatcher_"+name, help, labels, nil)
	}
	return &stateCollector{
		store: s, log: log,
		held:     desc("slots_held", "Slots held by devices, by the ledger.", "pool"),
		capacity: desc("slots_capacity", "Slots of the pool.", "pool"),
		waiting:  desc("slots_waiting", "Devices with a task that could start now and no slot, counted up to 10000.", "pool"),
		tasks:    desc("tasks", "Tasks by state.", "pool", "state"),
		oldest:   desc("oldest_pending_task_age_seconds", "Age of the oldest pending task.", "pool"),
	}
}

// Describe names the metrics.
func (c *stateCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.held, c.capacity, c.waiting, c.tasks, c.oldest} {
		out <- d
	}
}

// Collect reads the ledger. When it cannot be read these metrics are absent:
// no value is better than an old one.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	stats, err := c.store.PoolStats(ctx)
	if err != nil {
		c.log.Warn("metrics of pools not read", "err", err)
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, s := range stats {
		gauge(c.held, float64(s.Held), s.Pool)
		gauge(c.capacity, float64(s.Capacity), s.Pool)
		if waiting, err := c.store.Waiting(ctx, s.Pool, waitingShown); err == nil {
			gauge(c.waiting, float64(waiting), s.Pool)
		}
		gauge(c.oldest, s.OldestPending.Seconds(), s.Pool)
		for _, state := range store.TaskStates() {
			gauge(c.tasks, float64(s.Tasks[state]), s.Pool, string(state))
		}
	}
}

// buildInfo is a constant 1 that carries the version.
func buildInfo(version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dispatcher_build_info", Help: "Always 1; carries the version.",
		ConstLabels: prometheus.Labels{"version": version},
	}, func() float64 { return 1 })
}
