package dispatcher

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/store"
)

// reported are the labels of a report.
type reported struct{ transport, reason string }

// reports are those of some labels.
type reports struct {
	total    prometheus.Counter
	duration prometheus.Observer
}

// metrics counts decisions.
type metrics struct {
	set       *meters.Set
	grants    *prometheus.CounterVec
	denials   *prometheus.CounterVec
	conflicts *prometheus.CounterVec
	forced    *prometheus.CounterVec
	hold      *prometheus.HistogramVec
	wait      *prometheus.HistogramVec
	results   *prometheus.CounterVec
	reports   *meters.Ready[reported, reports]
	panics    prometheus.Counter
	marks     struct{ needless, missing prometheus.Counter }
}

func newMetrics(set *meters.Set) *metrics {
	m := &metrics{
		set:       set,
		grants:    set.Counter("slot_grants_total", "Slots granted to devices.", "pool"),
		denials:   set.Counter("slot_denials_total", "Reports with open work that were granted nothing, by reason.", "pool", "reason"),
		conflicts: set.Counter("slot_conflicts_total", "Slots that Redis gave and the ledger refused.", "pool"),
		forced:    set.Counter("slots_forced_total", "Slots that operators freed at once, while their device may have gone on.", "pool"),
		hold:      set.Histogram(meters.PoolSeconds(), "slot_hold_duration_seconds", "Time a slot was held until its result.", "pool", "outcome"),
		wait:      set.Histogram(meters.PoolSeconds(), "task_wait_duration_seconds", "Time from the creation of a task's batch to a grant.", "pool"),
		results:   set.Counter("results_total", "Results of devices, by outcome.", "outcome"),
		reports:   newReports(set),
		panics:    set.Counter("panics_total", "Panics that ended a request or a pass, and not the process. Each is a fault of the program, and logged.").WithLabelValues(),
	}
	m.marks.needless = set.Counter("marks_needless_total", "Marks of devices that were found to have no work, and taken away.").WithLabelValues()
	m.marks.missing = set.Counter("marks_missing_total", "Devices with work that had no mark, of each 256th that was told that it has none. Each is a fault of the program.").WithLabelValues()
	set.First(func(pool string) {
		for _, c := range []*prometheus.CounterVec{m.grants, m.conflicts, m.forced} {
			c.WithLabelValues(pool)
		}
	})
	return m
}

func newReports(set *meters.Set) *meters.Ready[reported, reports] {
	total := set.Counter("reports_total", "Reports of devices, by the reason of the reply or the code of the refusal.", "transport", "reason")
	duration := set.Histogram(meters.Seconds(), "report_duration_seconds", "Time to answer a report.", "transport")
	return meters.NewReady(func(r reported) reports {
		return reports{total.WithLabelValues(r.transport, r.reason), duration.WithLabelValues(r.transport)}
	})
}

func (m *metrics) granted(c store.Candidate, view store.View) {
	m.grants.WithLabelValues(c.Pool).Inc()
	m.wait.WithLabelValues(c.Pool).Observe(view.Now.Sub(c.CreatedAt).Seconds())
}

// denied counts a report that had open work and left without a task, once for
// the pool of its oldest batch.
func (m *metrics) denied(h *handling) {
	pool := h.oldestPool()
	if pool == "" || h.reply.Reason == devices.ReasonGranted {
		return
	}
	m.denials.WithLabelValues(pool, string(h.reply.Reason)).Inc()
	m.set.Count(pool, meters.Tally{Denied: 1})
}

func (m *metrics) conflicted(pool string) {
	m.conflicts.WithLabelValues(pool).Inc()
	m.set.Count(pool, meters.Tally{Conflicts: 1})
}

// CountReport counts one report of a transport ("http", "mqtt"): the reason of
// its reply, or the code of what refused it.
func (d *Dispatcher) CountReport(transport, reason string, took time.Duration) {
	of := d.metrics.reports.Of(reported{transport, reason})
	of.total.Inc()
	of.duration.Observe(took.Seconds())
}
