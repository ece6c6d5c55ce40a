package meters_test

import (
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
)

type labels struct{ transport, reason string }

func ready(r prometheus.Registerer) *meters.Ready[labels, prometheus.Counter] {
	counter := meters.New(r).Counter("reports_total", "Reports.", "transport", "reason")
	return meters.NewReady(func(l labels) prometheus.Counter { return counter.WithLabelValues(l.transport, l.reason) })
}

// TestReadyCountsUnderItsLabels, whoever finds them first.
func TestReadyCountsUnderItsLabels(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	r := ready(registry)
	var counting sync.WaitGroup
	for range 10 {
		counting.Go(func() {
			for range 10 {
				r.Of(labels{"http", "none"}).Inc()
				r.Of(labels{"mqtt", "none"}).Inc()
			}
		})
	}
	counting.Wait()
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || len(families[0].GetMetric()) != 2 {
		t.Fatalf("%v, %v, want two of one metric", families, err)
	}
	for _, m := range families[0].GetMetric() {
		if got := m.GetCounter().GetValue(); got != 100 {
			t.Errorf("%v: %v, want 100", m.GetLabel(), got)
		}
	}
}

// BenchmarkCount compares what is ready with what is found by its labels each time.
func BenchmarkCount(b *testing.B) {
	b.Run("ready", func(b *testing.B) {
		r := ready(nil)
		b.ReportAllocs()
		for b.Loop() {
			r.Of(labels{"http", "none"}).Inc()
		}
	})
	b.Run("by labels", func(b *testing.B) {
		counter := meters.New(nil).Counter("reports_total", "Reports.", "transport", "reason")
		b.ReportAllocs()
		for b.Loop() {
			counter.WithLabelValues("http", "none").Inc()
		}
	})
}
