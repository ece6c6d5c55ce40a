package dispatcher

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// metrics counts decisions, each replica its own. What is state (slots held,
// tasks by state) is read at scrape time elsewhere, never kept by increments. No
// label carries a device id.
type metrics struct {
	grants        *prometheus.CounterVec
	denials       *prometheus.CounterVec
	reaped        *prometheus.CounterVec
	conflicts     *prometheus.CounterVec
	forced        *prometheus.CounterVec
	idle          *prometheus.CounterVec
	checks        *prometheus.CounterVec
	drift         *prometheus.GaugeVec
	hold          *prometheus.HistogramVec
	wait          *prometheus.HistogramVec
	handoff       *prometheus.HistogramVec
	results       *prometheus.CounterVec
	reports       *prometheus.CounterVec
	duration      *prometheus.HistogramVec
	reaperSuccess prometheus.Gauge
	panics        prometheus.Counter

	byPool  []pooled
	tallies tallies
	mu      sync.Mutex
	pools   map[string]bool // those that are shown

	policies map[string]bool // names that are told apart
}

// pooled is a metric with the label pool.
type pooled interface {
	DeletePartialMatch(labels prometheus.Labels) int
}

// secondsBuckets suit waits and holds from instants to a day.
func secondsBuckets() []float64 {
	return []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400}
}

// handoffBuckets are fine where handoffs are when all is well: within a few
// milliseconds, of which a quantile is to be told.
func handoffBuckets() []float64 {
	return []float64{0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60}
}

func newMetrics(r prometheus.Registerer) *metrics {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dispatcher_" + name, Help: help}, labels)
		r.MustRegister(c)
		return c
	}
	histogramOf := func(buckets []float64, name, help string, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "dispatcher_" + name, Help: help, Buckets: buckets}, labels)
		r.MustRegister(h)
		return h
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return histogramOf(secondsBuckets(), name, help, labels...)
	}
	m := &metrics{
		pools:     map[string]bool{},
		tallies:   tallies{of: map[string]Tally{}},
		policies:  map[string]bool{},
		grants:    counter("slot_grants_total", "Slots granted to devices.", "pool"),
		denials:   counter("slot_denials_total", "Reports with open work that were granted nothing, by reason.", "pool", "reason"),
		reaped:    counter("slots_reaped_total", "Slots taken back from devices whose lease ran out, by what became of the task.", "pool", "outcome"),
		conflicts: counter("slot_conflicts_total", "Slots that Redis gave and the ledger refused.", "pool"),
		forced:    counter("slots_forced_total", "Slots that operators freed at once, while their device may have gone on.", "pool"),
		idle:      counter("slot_idle_seconds_total", "Slot-seconds free while the task of a device that is there could have used them.", "pool"),
		checks:    counter("limit_checks_total", "Starts that a policy was asked about, by what it said: passed, limited or unchecked.", "pool", "policy", "outcome"),
		hold:      histogram("slot_hold_duration_seconds", "Time a slot was held until its result.", "pool", "outcome"),
		wait:      histogram("task_wait_duration_seconds", "Time from the creation of a task's batch to a grant.", "pool"),
		handoff:   histogramOf(handoffBuckets(), "handoff_duration_seconds", "Time from a slot falling free until the device it is kept for was told: by a push, or by the grant that its held request is answered with.", "pool"),
		results:   counter("results_total", "Results of devices, by outcome.", "outcome"),
		reports:   counter("reports_total", "Reports of devices, by the reason of the reply or the code of the refusal.", "transport", "reason"),
		duration:  histogram("report_duration_seconds", "Time to answer a report.", "transport"),
		drift: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "dispatcher_slot_drift", Help: "Slots on which Redis and the ledger disagreed at the last reconciliation.",
		}, []string{"pool"}),
		reaperSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dispatcher_reaper_last_success_timestamp_seconds", Help: "When this replica's reaper last finished a pass.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dispatcher_panics_total", Help: "Panics that ended a request or a pass, and not the process. Each is a fault of the program, and logged.",
		}),
	}
	r.MustRegister(m.drift, m.reaperSuccess, m.panics)
	m.byPool = []pooled{m.grants, m.denials, m.reaped, m.conflicts, m.forced, m.idle, m.checks, m.drift, m.hold, m.wait, m.handoff}
	return m
}

// show makes the counters of a pool visible from 0 on: Prometheus sees no
// increase in a first value.
func (m *metrics) show(pool string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pools[pool] {
		return
	}
	m.pools[pool] = true
	for _, c := range []*prometheus.CounterVec{m.grants, m.conflicts, m.forced, m.idle} {
		c.WithLabelValues(pool)
	}
	m.reaped.WithLabelValues(pool, reapedRetried)
	m.reaped.WithLabelValues(pool, reapedEnded)
}

// shown are the pools that are visible; the caller may change the set.
func (m *metrics) shown() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.pools)
}

// forget takes away pools that some replica deleted.
func (m *metrics) forget(pools map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for pool := range pools {
		delete(m.pools, pool)
		m.tallies.forget(pool)
		for _, metric := range m.byPool {
			metric.DeletePartialMatch(prometheus.Labels{"pool": pool})
		}
	}
}

// limited counts what each policy of a task said.
// policyNames bounds how many names of policies the metrics tell apart: batches
// come and go, and each could bring names of its own.
const policyNames = 200

func (m *metrics) policyLabel(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.policies[name] {
		if len(m.policies) == policyNames {
			return "(other)"
		}
		m.policies[name] = true
	}
	return name
}

func (m *metrics) limited(pool string, j judged) {
	for i, item := range j.check.Items {
		outcome := "passed"
		switch {
		case slices.Contains(j.refused, i):
			outcome = "limited"
		case j.unchecked:
			outcome = "unchecked"
		case j.obstacle != nil:
			continue // another one refused
		}
		m.checks.WithLabelValues(pool, m.policyLabel(item.Rule.Name), outcome).Inc()
	}
}

// handedOn notes how long after a slot fell free the next device was told.
func (m *metrics) handedOn(pool string, took time.Duration) {
	m.handoff.WithLabelValues(pool).Observe(took.Seconds())
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
	m.tallies.count(pool, Tally{Denied: 1})
}

func (m *metrics) conflicted(pool string) {
	m.conflicts.WithLabelValues(pool).Inc()
	m.tallies.count(pool, Tally{Conflicts: 1})
}

// drifted notes on how many slots a reconciliation found a disagreement.
func (m *metrics) drifted(pool string, slots int) {
	m.drift.WithLabelValues(pool).Set(float64(slots))
	if slots > 0 {
		m.tallies.count(pool, Tally{Drift: int64(slots)})
	}
}

// CountReport counts one report of a transport ("http", "mqtt"): the reason of
// its reply, or the code of what refused it.
func (d *Dispatcher) CountReport(transport, reason string, took time.Duration) {
	d.metrics.reports.WithLabelValues(transport, reason).Inc()
	d.metrics.duration.WithLabelValues(transport).Observe(took.Seconds())
}
