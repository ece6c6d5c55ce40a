package policies

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/limits"
)

// metrics are the Prometheus metrics of policies.
type metrics struct {
	checks     *prometheus.CounterVec
	suppressed *prometheus.CounterVec

	mu       sync.Mutex
	labelled map[string]bool // policy names that have a label value of their own
}

// newMetrics creates the metrics in set.
func newMetrics(set *meters.Set) *metrics {
	return &metrics{
		checks:     set.Counter("limit_checks_total", "Starts checked against a policy, by outcome: passed, limited or unchecked.", "pool", "policy", "outcome"),
		suppressed: set.Counter("tasks_suppressed_total", "Tasks that ended because a policy with on_limited drop refused their start.", "pool", "policy"),
		labelled:   make(map[string]bool),
	}
}

// policyNames is the maximum number of policy names with a label value of their own. Each batch can bring new
// names, so without a bound the number of series would grow forever.
const policyNames = 200

// policyLabel returns the value of the label policy for a policy: its name, or a common value if too many policies have a value of their
// own.
func (m *metrics) policyLabel(policy string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.labelled[policy] {
		if len(m.labelled) == policyNames {
			return "(other)"
		}
		m.labelled[policy] = true
	}
	return policy
}

// CountSuppressed counts a task that ended because this policy refused its start.
func (k *Checker) CountSuppressed(pool, policy string) {
	k.metrics.suppressed.WithLabelValues(pool, k.metrics.policyLabel(policy)).Inc()
}

// countChecks counts the outcomes of a check of the policies of a task in the pool, one outcome for each policy.
func (m *metrics) countChecks(pool string, result checkResult) {
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
