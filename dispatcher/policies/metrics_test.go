package policies

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// TestPolicyLabelsAreBounded checks that the number of metric series stays bounded even if every batch has policies
// with new names.
func TestPolicyLabelsAreBounded(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m := newMetrics(meters.New(r))
	for i := range 3 * policyNames {
		p := policy.Policy{Name: fmt.Sprintf("n-%d", i), Per: "pool", Algorithm: policy.Fixed, PerMS: 1000, Max: 1}
		rules, err := limits.Compile("batch 1", []policy.Policy{p})
		must.Succeed(t, err)
		m.countCheckResult("a", checkResult{check: limits.NewCheck("1", "", rules, limits.Facts{})})
	}
	families, err := r.Gather()
	if err != nil || len(families) != 1 || len(families[0].GetMetric()) != policyNames+1 {
		t.Errorf("%v, %v: want %d series of one metric", families, err, policyNames+1)
	}
}

// TestPoliciesOfOneNameAreToldApart checks a pool and a profile that have a policy of the same name: the metrics
// count them separately.
func TestPoliciesOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m := newMetrics(meters.New(r))
	var all []*limits.Rule
	for _, owner := range []string{"pool a", "profile x"} {
		rules, err := limits.Compile(owner, []policy.Policy{{Name: "n", Per: "pool", Algorithm: policy.Fixed, PerMS: 1000, Max: 1}})
		must.Succeed(t, err)
		all = append(all, rules...)
	}
	m.countCheckResult("a", checkResult{check: limits.NewCheck("1", "", all, limits.Facts{}), refused: []limits.ItemRefusal{{Item: 1}}, obstacle: &decision.Obstacle{}})
	families, err := r.Gather()
	must.Succeed(t, err)
	for _, f := range families { // if one policy refuses, the other policies are not counted
		if f.GetName() == "dispatcher_limit_checks_total" && (len(f.GetMetric()) != 1 || f.GetMetric()[0].GetCounter().GetValue() != 1) {
			t.Errorf("%v, want one that was limited", f.GetMetric())
		}
	}
}
