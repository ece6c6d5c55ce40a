package dispatcher

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestPanicsAreCounted checks that a panic that was recovered is counted in the metric.
func TestPanicsAreCounted(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	New(Config{Registerer: metrics}).Panicked("testing", &rescue.Panic{Cause: "by the test"})
	families, err := metrics.Gather()
	must.Succeed(t, err)
	counted := 0.0
	for _, f := range families {
		if f.GetName() == "dispatcher_panics_total" {
			counted = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if counted != 1 {
		t.Errorf("%v panics counted, want 1", counted)
	}
}
