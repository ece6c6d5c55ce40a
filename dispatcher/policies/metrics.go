package policies

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/limits"
)

type metrics struct {
	checks     *prometheus.CounterVec
	suppressed *prometheus.CounterVec

	mu    sync.Mutex
	named map[string]bool // policy names that have a label value of their own
}

func newMetrics(set *meters.Set) *metrics {
	return &metrics{
		checks:     set.Counter("limit_checks_total", "Starts that a policy was asked about, by what it said: passed, limited or unchecked.", "pool", "policy", "outcome"),
		suppressed: set.Counter("tasks_suppressed_total", "Tasks that ended because a policy refused their start and drops what it refuses.", "pool", "policy"),
		named:      make(map[string]bool),
	}
}

// policyNames is the maximum number of policy names with a label value of their own. Each batch can bring new
// names, so without a bound the number of series would grow forever.
const policyNames = 200

func (m *metrics) policyLabel(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.named[name] {
		if len(m.named) == policyNames {
			return "(other)"
		}
		m.named[name] = true
	}
	return name
}

// Suppressed counts a task that ended because this policy refused its start.
func (k *Checker) Suppressed(pool, policy string) {
	k.metrics.suppressed.WithLabelValues(pool, k.metrics.policyLabel(policy)).Inc()
}

// checked counts the outcome of each policy of a task.
func (m *metrics) checked(pool string, j judged) {
	for i, item := range j.check.Items {
		outcome := "passed"
		switch {
		case slices.ContainsFunc(j.refused, func(r limits.Refusal) bool { return r.Item == i }):
			outcome = "limited"
		case j.unchecked:
			outcome = "unchecked"
		case j.obstacle != nil:
			continue // another policy refused the start
		}
		m.checks.WithLabelValues(pool, m.policyLabel(item.Rule.Name), outcome).Inc()
	}
}
