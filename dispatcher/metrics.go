package dispatcher

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/store"
)

type metrics struct {
	set       *meters.Set
	grants    *prometheus.CounterVec
	denials   *prometheus.CounterVec
	conflicts *prometheus.CounterVec
	forced    *prometheus.CounterVec
	hold      *prometheus.HistogramVec
	wait      *prometheus.HistogramVec
	results   *prometheus.CounterVec
	reports   *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	leases    *prometheus.CounterVec
	panics    prometheus.Counter
	marks     struct{ needless, missing prometheus.Counter }
	waits     struct{ refreshed, wrong prometheus.Counter }
}

func newMetrics(set *meters.Set) *metrics {
	m := &metrics{
		set:       set,
		grants:    set.Counter("slot_grants_total", "Slots granted to devices and callers.", "pool"),
		denials:   set.Counter("slot_denials_total", "Reports with open work that were granted nothing, by reason.", "pool", "reason"),
		conflicts: set.Counter("slot_conflicts_total", "Slots that Redis gave and the ledger refused.", "pool"),
		forced:    set.Counter("slots_forced_total", "Slots that operators freed at once, while the holder may have continued its work.", "pool"),
		hold:      set.Histogram(meters.PoolBuckets(), "slot_hold_duration_seconds", "Time a slot was held until its result.", "pool", "outcome"),
		wait:      set.Histogram(meters.PoolBuckets(), "task_wait_duration_seconds", "Time from the creation of a task's batch to a grant.", "pool"),
		results:   set.Counter("results_total", "Results of devices, by outcome.", "outcome"),
		reports:   set.Counter("reports_total", "Reports of devices, by the reason of the reply or the code of the refusal.", "transport", "reason"),
		duration:  set.Histogram(meters.DurationBuckets(), "report_duration_seconds", "Time to answer a report.", "transport"),
		leases:    set.Counter("leases_total", "Lease requests of callers, by outcome.", "pool", "outcome"),
		panics:    set.Counter("panics_total", "Panics that ended a request or a pass, but not the process. Each is a bug and is logged.").WithLabelValues(),
	}
	m.marks.needless = set.Counter("marks_needless_total", "Marks deleted because their device had no work.").WithLabelValues()
	m.marks.missing = set.Counter("marks_missing_total", "Devices with work but without a mark, found by an audit of one in 256 reports without a mark. Each is a bug.").WithLabelValues()
	m.waits.refreshed = set.Counter("waits_refreshed_total", "Reports of waiting devices that were answered from their marks and the queue, without the ledger.").WithLabelValues()
	m.waits.wrong = set.Counter("waits_wrong_total", "Waits in marks that the ledger contradicted, found by an audit of one in 256 of these reports. Each is a bug.").WithLabelValues()
	set.OnNewPool(func(pool string) {
		for _, c := range []*prometheus.CounterVec{m.grants, m.conflicts, m.forced} {
			c.WithLabelValues(pool)
		}
	})
	return m
}

func (m *metrics) countGrant(task store.Candidate, view store.DeviceView) {
	m.grants.WithLabelValues(task.Pool).Inc()
	m.wait.WithLabelValues(task.Pool).Observe(view.Now.Sub(task.CreatedAt).Seconds())
}

// countDenial counts a report whose device had open work and got no task. It counts for the pool of the oldest batch of the device.
func (m *metrics) countDenial(handling *reportHandling) {
	pool := handling.reporter.poolOfOldestBatch()
	if pool == "" || handling.reply.Reason == devices.ReasonGranted {
		return
	}
	m.denials.WithLabelValues(pool, string(handling.reply.Reason)).Inc()
	m.set.AddTally(pool, meters.Tally{Denied: 1})
}

func (m *metrics) countClaimConflict(pool string) {
	m.conflicts.WithLabelValues(pool).Inc()
	m.set.AddTally(pool, meters.Tally{Conflicts: 1})
}

// CountReport counts one report. transport is "http", "mqtt" or another protocol. reason is the reason of the reply, or the error code if the
// report was refused. took is the time from the report to its answer.
func (d *Dispatcher) CountReport(transport, reason string, took time.Duration) {
	d.metrics.reports.WithLabelValues(transport, reason).Inc()
	d.metrics.duration.WithLabelValues(transport).Observe(took.Seconds())
}
