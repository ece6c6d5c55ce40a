package api

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// healthMetrics reports the result of /readyz as metrics at each scrape. A check that hangs counts as failed and does not
// delay the scrape.
type healthMetrics struct {
	health                        *health
	readyDesc, upDesc, servedDesc *prometheus.Desc
}

func (h *health) metrics() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(&healthMetrics{
		health:     h,
		readyDesc:  prometheus.NewDesc("dispatcher_ready", "1: this replica answers /readyz with 200.", nil, nil),
		upDesc:     prometheus.NewDesc("dispatcher_dependency_up", "1: this replica reaches the server that /readyz checks.", []string{"dependency"}, nil),
		servedDesc: prometheus.NewDesc("dispatcher_pools_served_ratio", "Share of the pools that Redis serves; 1: all of them, 0: none.", nil, nil),
	})
	return registry
}

// Describe sends the descriptions of the health metrics to descriptions, as prometheus.Collector requires.
func (m *healthMetrics) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- m.readyDesc
	descriptions <- m.upDesc
	descriptions <- m.servedDesc
}

// Collect probes the dependencies, unless a recent probe exists, and sends their states to metrics.
func (m *healthMetrics) Collect(metrics chan<- prometheus.Metric) {
	m.health.panicked.Run("collecting", func() { m.collect(metrics) }) // runs in a goroutine of the registry
}

func (m *healthMetrics) collect(target chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*probeTimeout)
	defer cancel()
	p, err := m.health.shared.Read(ctx)
	target <- newBoolGauge(m.readyDesc, err == nil && !p.requiredFailed && !m.health.stopping.Load())
	if err != nil {
		return // it is not known which check hangs
	}
	target <- prometheus.MustNewConstMetric(m.servedDesc, prometheus.GaugeValue, p.servedPoolShare())
	for _, check := range m.health.checks {
		target <- newBoolGauge(m.upDesc, p.states[check.Name] == checkOK, check.Name)
	}
}

// servedPoolShare returns the share of the known pools that Redis serves, from 0 to 1.
func (p probeResult) servedPoolShare() float64 {
	switch u := p.unserved; {
	case u == nil:
		return 1
	case u.KnownPools == 0:
		return 0
	default:
		return float64(u.ServedPools) / float64(u.KnownPools)
	}
}

func newBoolGauge(description *prometheus.Desc, isTrue bool, labels ...string) prometheus.Metric {
	value := 0.0
	if isTrue {
		value = 1
	}
	return prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, labels...)
}
