package dispatcher

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// seriesCounts returns the number of series of each metric in a registry.
func seriesCounts(t *testing.T, r *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := r.Gather()
	must.Succeed(t, err)
	n := make(map[string]int)
	for _, f := range families {
		n[f.GetName()] = len(f.GetMetric())
	}
	return n
}

// The counters of a pool must exist before their first event. They must be deleted with the pool, whatever other labels they have.
func TestMetricsFollowThePools(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	d := New(Config{Registerer: r})
	m, set := d.metrics, d.metrics.set
	set.InitPool("a")
	set.InitPool("b")
	m.grants.WithLabelValues("b").Inc()
	m.denials.WithLabelValues("b", "full").Inc()
	m.hold.WithLabelValues("b", "succeeded").Observe(1)
	m.wait.WithLabelValues("b").Observe(1)
	set.AddTally("b", meters.Tally{Drift: 1})
	m.countClaimConflict("a")
	d.Waiters.Handoffs.RecordDuration("b", time.Second)
	set.InitPool("b")
	n := seriesCounts(t, r)
	for name, want := range map[string]int{
		"dispatcher_slot_grants_total": 2, "dispatcher_slot_conflicts_total": 2, "dispatcher_slots_forced_total": 2,
		"dispatcher_slot_idle_seconds_total": 2, "dispatcher_slots_reaped_total": 4, "dispatcher_handoff_duration_seconds": 1,
	} {
		if n[name] != want {
			t.Errorf("%d series of %s, want %d", n[name], name, want)
		}
	}
	if a, b := set.Tallies()["a"], set.Tallies()["b"]; a != (meters.Tally{Conflicts: 1}) || b != (meters.Tally{Drift: 1}) {
		t.Errorf("tallies: %+v, %+v", a, b)
	}
	set.ForgetPool("b")
	n = seriesCounts(t, r)
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
	if len(set.Tallies()) != 1 {
		t.Errorf("without b: %v", set.Tallies())
	}
}
