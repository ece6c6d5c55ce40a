package dispatcher

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/limits"
)

// series counts what a registry shows of each metric.
func series(t *testing.T, r *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := make(map[string]int)
	for _, f := range families {
		n[f.GetName()] = len(f.GetMetric())
	}
	return n
}

// A counter is there before its first event, and goes with its pool, whatever
// other labels it has.
func TestMetricsFollowThePools(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m := newMetrics(r)
	m.show("a")
	m.show("b")
	m.grants.WithLabelValues("b").Inc()
	m.denials.WithLabelValues("b", "full").Inc()
	m.hold.WithLabelValues("b", "succeeded").Observe(1)
	m.wait.WithLabelValues("b").Observe(1)
	m.drifted("b", 1)
	m.conflicted("a")
	m.handedOn("b", time.Second)
	m.show("b")
	n := series(t, r)
	for name, want := range map[string]int{
		"dispatcher_slot_grants_total": 2, "dispatcher_slot_conflicts_total": 2, "dispatcher_slots_forced_total": 2,
		"dispatcher_slot_idle_seconds_total": 2, "dispatcher_slots_reaped_total": 4, "dispatcher_handoff_duration_seconds": 1,
	} {
		if n[name] != want {
			t.Errorf("%d series of %s, want %d", n[name], name, want)
		}
	}
	if a, b := m.tallies.of["a"], m.tallies.of["b"]; a != (Tally{Conflicts: 1}) || b != (Tally{Drift: 1}) {
		t.Errorf("tallies: %+v, %+v", a, b)
	}
	gone := m.shown()
	delete(gone, "a")
	m.forget(gone)
	n = series(t, r)
	for name, want := range map[string]int{
		"dispatcher_slot_grants_total": 1, "dispatcher_slot_conflicts_total": 1, "dispatcher_slots_forced_total": 1,
		"dispatcher_slot_idle_seconds_total": 1, "dispatcher_slots_reaped_total": 2, "dispatcher_handoff_duration_seconds": 0,
		"dispatcher_slot_denials_total": 0, "dispatcher_slot_hold_duration_seconds": 0, "dispatcher_task_wait_duration_seconds": 0,
		"dispatcher_slot_drift": 0,
	} {
		if n[name] != want {
			t.Errorf("without b: %d series of %s, want %d", n[name], name, want)
		}
	}
	if len(m.tallies.of) != 1 {
		t.Errorf("without b: %v", m.tallies.of)
	}
}

// TestPolicyLabelsAreBounded: batches come and go, each with policies of its own.
func TestPolicyLabelsAreBounded(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m := newMetrics(r)
	for i := range 3 * policyNames {
		p := limits.Policy{Name: fmt.Sprintf("n-%d", i), Per: "pool", Algorithm: limits.Fixed, PerMS: 1000, Max: 1}
		rules, err := limits.Compile("batch 1", []limits.Policy{p})
		if err != nil {
			t.Fatal(err)
		}
		m.limited("a", judged{check: limits.NewCheck("1", "", rules, limits.Facts{})})
	}
	if n := series(t, r)["dispatcher_limit_checks_total"]; n != policyNames+1 {
		t.Errorf("%d series, want %d", n, policyNames+1)
	}
}

// TestPoliciesOfOneNameAreToldApart: of a pool and of a profile, say.
func TestPoliciesOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m := newMetrics(r)
	var all []*limits.Rule
	for _, owner := range []string{"pool a", "profile x"} {
		rules, err := limits.Compile(owner, []limits.Policy{{Name: "n", Per: "pool", Algorithm: limits.Fixed, PerMS: 1000, Max: 1}})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rules...)
	}
	m.limited("a", judged{check: limits.NewCheck("1", "", all, limits.Facts{}), refused: []int{1}, obstacle: &decision.Obstacle{}})
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families { // what did not refuse is not counted where another did
		if f.GetName() == "dispatcher_limit_checks_total" && (len(f.GetMetric()) != 1 || f.GetMetric()[0].GetCounter().GetValue() != 1) {
			t.Errorf("%v, want one that was limited", f.GetMetric())
		}
	}
}
