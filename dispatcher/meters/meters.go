// Package meters makes the metrics of the decisions, and takes away those of a pool
// that was deleted. Each replica counts its own. State (slots held, tasks by state)
// is read when metrics are scraped, and never kept by increments. No label carries a
// device id.
package meters

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Set makes metrics, whose names begin with "dispatcher_". It is safe for concurrent use.
type Set struct {
	registerer prometheus.Registerer

	mu     sync.Mutex
	byPool []pooled // those with the label pool
	first  []func(pool string)
	tally  map[string]Tally
}

// pooled is a metric with the label pool.
type pooled interface {
	DeletePartialMatch(labels prometheus.Labels) int
}

// New returns an empty set. Without a registerer its metrics are kept and not shown.
func New(r prometheus.Registerer) *Set {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	return &Set{registerer: r, tally: make(map[string]Tally)}
}

// Counter makes one.
func (s *Set) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dispatcher_" + name, Help: help}, labels)
	s.add(c, labels)
	return c
}

// Histogram makes one.
func (s *Set) Histogram(buckets []float64, name, help string, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "dispatcher_" + name, Help: help, Buckets: buckets}, labels)
	s.add(h, labels)
	return h
}

// Gauge makes one.
func (s *Set) Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "dispatcher_" + name, Help: help}, labels)
	s.add(g, labels)
	return g
}

// Func makes a gauge whose value is asked for.
func (s *Set) Func(name, help string, value func() float64) {
	s.registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "dispatcher_" + name, Help: help}, value))
}

func (s *Set) add(metric interface {
	prometheus.Collector
	pooled
}, labels []string,
) {
	s.registerer.MustRegister(metric)
	if len(labels) > 0 && labels[0] == "pool" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.byPool = append(s.byPool, metric)
	}
}

// First is run for each pool that becomes known: Prometheus sees no increase in the
// first value of a counter, so each pool has its counters from 0 on.
func (s *Set) First(show func(pool string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = append(s.first, show)
}

// Show makes the counters of a pool visible.
func (s *Set) Show(pool string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, show := range s.first {
		show(pool)
	}
}

// Forget takes away a pool.
func (s *Set) Forget(pool string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tally, pool)
	for _, metric := range s.byPool {
		metric.DeletePartialMatch(prometheus.Labels{"pool": pool})
	}
}

// PoolSeconds are Seconds for a metric of each pool: of thousands of pools each bucket is
// thousands of series.
func PoolSeconds() []float64 {
	return []float64{0.1, 1, 5, 10, 30, 60, 300, 1800, 14400, 86400}
}

// Seconds are buckets for waits and holds from instants to a day.
func Seconds() []float64 {
	return []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400}
}
