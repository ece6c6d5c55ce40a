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
	health     *health
	states     *reading.SharedRead[probeResult]
	readyDesc  *prometheus.Desc
	upDesc     *prometheus.Desc
	servedDesc *prometheus.Desc
}

// metrics returns a registry with the health metrics.
func (h *health) metrics() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(&healthMetrics{
		health:     h,
		states:     reading.New(probeTimeout, probeTimeout, time.Now, func(ctx context.Context) (probeResult, error) { return h.probe(ctx), nil }),
		readyDesc:  prometheus.NewDesc("dispatcher_ready", "1: this replica answers /readyz with 200.", nil, nil),
		upDesc:     prometheus.NewDesc("dispatcher_dependency_up", "1: this replica reaches the server that /readyz checks.", []string{"dependency"}, nil),
		servedDesc: prometheus.NewDesc("dispatcher_pools_served_ratio", "Share of the pools that Redis serves; 1: all of them, 0: none.", nil, nil),
	})
	return registry
}

// Describe sends the descriptions of the metrics.
func (m *healthMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.readyDesc
	out <- m.upDesc
	out <- m.servedDesc
}

// Collect probes the dependencies. Concurrent scrapes share one probe.
func (m *healthMetrics) Collect(out chan<- prometheus.Metric) {
	m.health.panicked.Run("collecting", func() { m.collect(out) }) // runs in a goroutine of the registry
}

func (m *healthMetrics) collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*probeTimeout)
	defer cancel()
	p, err := m.states.Read(ctx)
	ready := err == nil && !p.requiredFailed && !m.health.stopping.Load()
	out <- boolGauge(m.readyDesc, ready)
	if err != nil {
		return // it is not known which check hangs
	}
	out <- prometheus.MustNewConstMetric(m.servedDesc, prometheus.GaugeValue, p.servedRatio())
	for _, check := range m.health.checks {
		out <- boolGauge(m.upDesc, p.states[check.Name] == checkOK, check.Name)
	}
}

func (p probeResult) servedRatio() float64 {
	switch u := p.unserved; {
	case u == nil:
		return 1
	case u.KnownPools == 0:
		return 0
	default:
		return float64(u.ServedPools) / float64(u.KnownPools)
	}
}

func boolGauge(d *prometheus.Desc, isTrue bool, labels ...string) prometheus.Metric {
	value := 0.0
	if isTrue {
		value = 1
	}
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}
