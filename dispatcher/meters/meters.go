// Package meters creates the metrics of the dispatcher's decisions, and deletes the metrics of deleted pools. Each replica counts only its
// own decisions. A GaugeFunc reads its value when metrics are scraped. No label contains a device id.
package meters

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Set creates metrics whose names begin with "dispatcher_". A label "pool" must be the first label, so that ForgetPool finds the series. Set
// is safe for concurrent use.
type Set struct {
	registerer prometheus.Registerer

	mu        sync.Mutex
	byPool    []metricByPool      // metrics whose first label is pool
	poolInits []func(pool string) // functions of OnNewPool
	tally     map[string]Tally
}

type metricByPool interface {
	prometheus.Collector
	DeletePartialMatch(labels prometheus.Labels) int
}

// New returns an empty Set. registerer exports its metrics. If registerer is nil, the metrics are counted but not exported.
func New(registerer prometheus.Registerer) *Set {
	if registerer == nil {
		registerer = prometheus.NewRegistry()
	}
	return &Set{registerer: registerer, tally: make(map[string]Tally)}
}

// Counter creates and registers a counter.
func (s *Set) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dispatcher_" + name, Help: help}, labels)
	s.registerMetric(c, labels)
	return c
}

// Histogram creates and registers a histogram.
func (s *Set) Histogram(buckets []float64, name, help string, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "dispatcher_" + name, Help: help, Buckets: buckets}, labels)
	s.registerMetric(h, labels)
	return h
}

// Gauge creates and registers a gauge.
func (s *Set) Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "dispatcher_" + name, Help: help}, labels)
	s.registerMetric(g, labels)
	return g
}

// GaugeFunc registers a gauge. At each scrape, value is called to compute the value of the gauge.
func (s *Set) GaugeFunc(name, help string, value func() float64) {
	s.registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "dispatcher_" + name, Help: help}, value))
}

func (s *Set) registerMetric(metric metricByPool, labels []string) {
	s.registerer.MustRegister(metric)
	if len(labels) > 0 && labels[0] == "pool" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.byPool = append(s.byPool, metric)
	}
}

// OnNewPool registers a function that creates the counters of a pool with the value 0. Without these zeros, Prometheus would miss the first
// increase of a counter.
func (s *Set) OnNewPool(initPool func(pool string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poolInits = append(s.poolInits, initPool)
}

// InitPool calls the functions that OnNewPool registered, to create the counters of a new pool.
func (s *Set) InitPool(pool string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, initPool := range s.poolInits {
		initPool(pool)
	}
}

// ForgetPool deletes the metrics and the tally of a pool.
func (s *Set) ForgetPool(pool string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tally, pool)
	for _, metric := range s.byPool {
		metric.DeletePartialMatch(prometheus.Labels{"pool": pool})
	}
}

// PoolBuckets returns the histogram buckets, in seconds, of metrics with a label pool. They are few, because with thousands of pools each
// bucket means thousands of series.
func PoolBuckets() []float64 {
	return []float64{0.1, 1, 5, 10, 30, 60, 300, 1800, 14400, 86400}
}

// DurationBuckets returns histogram buckets, in seconds, from one millisecond to a day.
func DurationBuckets() []float64 {
	return []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400}
}
