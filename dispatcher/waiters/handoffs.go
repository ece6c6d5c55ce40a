package waiters

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
)

// Handoffs records the time from the release of a slot until its next device is notified: until a push is sent, or until the grant for a
// parked report is committed. It does not record a handoff to a device that polls, nor a slot that became free at an unknown time.
type Handoffs struct {
	seconds *prometheus.HistogramVec
	debug   *slog.Logger // for the steps of each handoff
}

// newHandoffs makes the histogram of handoffs in set. debug is the logger for their steps. The buckets are narrow up to a few milliseconds,
// the normal duration.
func newHandoffs(set *meters.Set, debug *slog.Logger) *Handoffs {
	return &Handoffs{debug: debug, seconds: set.Histogram(
		[]float64{0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 60}, "handoff_duration_seconds",
		"Time from the release of a slot until its next device was notified: by a push, or by a grant in the answer to its parked report.", "pool",
	)}
}

// Record records one handoff: took is the time from the release of a slot of the pool until its next device was notified.
func (h *Handoffs) Record(pool string, took time.Duration) {
	h.seconds.WithLabelValues(pool).Observe(took.Seconds())
}

// Steps returns a Steps for a slot that became free at freedAt. It is nil if freedAt is zero or the debug log is off.
func (h *Handoffs) Steps(ctx context.Context, freedAt time.Time) *Steps {
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

// Done records that step ended at the time now. A step begins when the previous one ends.
func (s *Steps) Done(step string, now time.Time) {
	if s != nil {
		s.took = append(s.took, step, now.Sub(s.last))
		s.last = now
	}
}

// Log writes the steps to the debug log. via is the way in which the next device was notified.
func (s *Steps) Log(pool, via string) {
	if s != nil {
		s.debug.Debug("handed on", append([]any{"pool", pool, "via", via}, s.took...)...)
	}
}
