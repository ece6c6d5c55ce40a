package upkeep

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
)

type metrics struct {
	set           *meters.Set
	reaped        *prometheus.CounterVec
	idle          *prometheus.CounterVec
	drift         *prometheus.GaugeVec
	reaperSuccess prometheus.Gauge
}

func newMetrics(set *meters.Set) *metrics {
	m := &metrics{
		set:           set,
		reaped:        set.Counter("slots_reaped_total", "Slots taken back because the lease ended, by outcome of the task.", "pool", "outcome"),
		idle:          set.Counter("slot_idle_seconds_total", "Slot-seconds in which a slot was free although a device that reports had a task for it.", "pool"),
		drift:         set.Gauge("slot_drift", "Slots on which Redis and the ledger disagreed at the last reconciliation.", "pool"),
		reaperSuccess: set.Gauge("reaper_last_success_timestamp_seconds", "Time at which this replica's reaper last finished a pass.").WithLabelValues(),
	}
	set.OnNewPool(func(pool string) {
		m.idle.WithLabelValues(pool)
		m.reaped.WithLabelValues(pool, reapedRetried)
		m.reaped.WithLabelValues(pool, reapedEnded)
	})
	return m
}

func (m *metrics) recordDrift(pool string, driftedSlots int) {
	m.drift.WithLabelValues(pool).Set(float64(driftedSlots))
	if driftedSlots > 0 {
		m.set.AddTally(pool, meters.Tally{Drift: int64(driftedSlots)})
	}
}
