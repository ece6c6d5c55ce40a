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

	mu       sync.Mutex
	labelled map[string]bool // policy names that have a label value of their own
}

func newMetrics(set *meters.Set) *metrics {
	return &metrics{
		checks:     set.Counter("limit_checks_total", "Starts checked against a policy, by outcome: passed, limited or unchecked.", "pool", "policy", "outcome"),
		suppressed: set.Counter("tasks_suppressed_total", "Tasks that ended because a policy with on_limited drop refused their start.", "pool", "policy"),
		labelled:   make(map[string]bool),
	}
}

// policyNames is the maximum number of policy names with a label value of their own. There is a maximum, because each batch can bring new
// names.
const policyNames = 200

func (m *metrics) policyLabel(policyName string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.labelled[policyName] {
		if len(m.labelled) == policyNames {
			return "(other)"
		}
		m.labelled[policyName] = true
	}
	return policyName
}

// CountSuppressedTask counts a task that ended because this policy refused its start.
func (k *Checker) CountSuppressedTask(pool, policyName string) {
	k.metrics.suppressed.WithLabelValues(pool, k.metrics.policyLabel(policyName)).Inc()
}

// countCheckResult counts the outcome of each policy that was checked for a task.
func (m *metrics) countCheckResult(pool string, result checkResult) {
	for i, item := range result.check.Items {
		outcome := "passed"
		switch {
		case slices.ContainsFunc(result.refused, func(r limits.ItemRefusal) bool { return r.Item == i }):
			outcome = "limited"
		case result.unchecked:
			outcome = "unchecked"
		case result.obstacle != nil:
			continue // another policy refused the start
		}
		m.checks.WithLabelValues(pool, m.policyLabel(item.Rule.Name), outcome).Inc()
	}
}
