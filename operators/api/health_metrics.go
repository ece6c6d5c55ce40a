package api

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/internal/reading"
)

// healthMetrics reports the result of /readyz as metrics at each scrape. A check that hangs counts as failed and does not
// delay the scrape.
type healthMetrics struct {
	health  *health
	states  *reading.Shared[probed]
	isReady *prometheus.Desc
	isUp    *prometheus.Desc
	served  *prometheus.Desc
}

// metrics returns a registry with the health metrics.
func (h *health) metrics() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(&healthMetrics{
		health:  h,
		states:  reading.New(probeTime, probeTime, time.Now, func(ctx context.Context) (probed, error) { return h.probe(ctx), nil }),
		isReady: prometheus.NewDesc("dispatcher_ready", "1: this replica answers /readyz with 200.", nil, nil),
		isUp:    prometheus.NewDesc("dispatcher_dependency_up", "1: this replica reaches what /readyz checks.", []string{"dependency"}, nil),
		served:  prometheus.NewDesc("dispatcher_pools_served_ratio", "Share of the pools that Redis serves; 1: all of them, 0: none.", nil, nil),
	})
	return registry
}

// Describe sends the descriptions of the metrics.
func (m *healthMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.isReady
	out <- m.isUp
	out <- m.served
}

// Collect probes the dependencies. Concurrent scrapes share one probe.
func (m *healthMetrics) Collect(out chan<- prometheus.Metric) {
	m.health.panicked.Do("collecting", func() { m.collect(out) }) // runs in a goroutine of the registry
}

func (m *healthMetrics) collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*probeTime)
	defer cancel()
	p, err := m.states.Read(ctx)
	ready := err == nil && !p.missing && !m.health.stopping.Load()
	out <- truth(m.isReady, ready)
	if err != nil {
		return // it is not known which check hangs
	}
	out <- prometheus.MustNewConstMetric(m.served, prometheus.GaugeValue, p.servedRatio())
	for _, check := range m.health.checks {
		out <- truth(m.isUp, p.states[check.Name] == checkOK, check.Name)
	}
}

func (p probed) servedRatio() float64 {
	switch u := p.unserved; {
	case u == nil:
		return 1
	case u.Known == 0:
		return 0
	default:
		return float64(u.Served) / float64(u.Known)
	}
}

func truth(d *prometheus.Desc, is bool, labels ...string) prometheus.Metric {
	value := 0.0
	if is {
		value = 1
	}
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}
