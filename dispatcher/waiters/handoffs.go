package waiters

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
)

// Handoffs records how long handoffs take: from the release of a slot until a push is sent to the next device, or until the grant for its
// parked report is committed. It records neither handoffs to devices that poll, nor slots that became free at an unknown time.
type Handoffs struct {
	seconds *prometheus.HistogramVec
	debug   *slog.Logger // for the steps of each handoff
}

// newHandoffs creates the histogram of handoffs in set. The buckets are narrow around a few milliseconds, the normal duration.
func newHandoffs(set *meters.Set, debug *slog.Logger) *Handoffs {
	return &Handoffs{debug: debug, seconds: set.Histogram(
		[]float64{0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 60}, "handoff_duration_seconds",
		"Time from the release of a slot until its next device was notified: by a push, or by a grant in the answer to its parked report.", "pool",
	)}
}

// RecordDuration records one handoff in the pool. took is the time from the release of the slot until the next device was notified.
func (h *Handoffs) RecordDuration(pool string, took time.Duration) {
	h.seconds.WithLabelValues(pool).Observe(took.Seconds())
}

// NewSteps returns a record for the steps of the handoff of a slot that became free at freedAt. It returns nil if freedAt is zero or the debug
// log is off.
func (h *Handoffs) NewSteps(ctx context.Context, freedAt time.Time) *Steps {
	if freedAt.IsZero() || !h.debug.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	return &Steps{debug: h.debug, last: freedAt}
}

// Steps records how long each step of one handoff took, for the debug log. A nil *Steps records nothing.
type Steps struct {
	debug *slog.Logger
	last  time.Time
	took  []any // pairs of name and duration
}

// RecordStep records that the step with this name ended at the time now. A step begins when the previous step ends.
func (s *Steps) RecordStep(stepName string, now time.Time) {
	if s != nil {
		s.took = append(s.took, stepName, now.Sub(s.last))
		s.last = now
	}
}

// WriteToLog writes the steps to the debug log. notifiedBy says how the next device was notified: "push" or "park".
func (s *Steps) WriteToLog(pool, notifiedBy string) {
	if s != nil {
		s.debug.Debug("handed on", append([]any{"pool", pool, "via", notifiedBy}, s.took...)...)
	}
}
