package waiters

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
)

// Handoffs records how long handoffs take: from the time at which a slot becomes free until the
// next device is notified of it. Offers records a handoff by push, when it sends the push. The
// dispatcher records a handoff to a parked report, when the grant is committed. A handoff to a
// device that polls, or of a slot that became free at an unknown time, is not recorded.
type Handoffs struct {
	seconds *prometheus.HistogramVec
	debug   *slog.Logger // for the steps of each handoff
}

// newHandoffs makes the histogram of handoffs (from the release of a slot to the notification of the next device) in set. debug is the
// logger for the steps of handoffs. The buckets are narrow up to a few milliseconds, the normal duration of a handoff, so that quantiles
// are precise there.
func newHandoffs(set *meters.Set, debug *slog.Logger) *Handoffs {
	return &Handoffs{debug: debug, seconds: set.Histogram(
		[]float64{0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 60}, "handoff_duration_seconds",
		"Time from the release of a slot until its next device was notified: by a push, or by a grant in the answer to its parked report.", "pool",
	)}
}

// Record records a handoff: the next device was notified at the time `took` after a slot of the
// pool became free.
func (h *Handoffs) Record(pool string, took time.Duration) {
	h.seconds.WithLabelValues(pool).Observe(took.Seconds())
}

// Steps returns a Steps that records the handoff of a slot that became free at freedAt. It returns nil if freedAt is zero or the debug log
// is off.
func (h *Handoffs) Steps(ctx context.Context, freedAt time.Time) *Steps {
	if freedAt.IsZero() || !h.debug.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	return &Steps{debug: h.debug, last: freedAt}
}

// Steps records how long each step of one handoff took, for the debug log. A nil *Steps records
// nothing.
type Steps struct {
	debug *slog.Logger
	last  time.Time
	took  []any // pairs of name and duration
}

// Done records that step ended at the time now. The step began when the previous one ended.
func (s *Steps) Done(step string, now time.Time) {
	if s != nil {
		s.took = append(s.took, step, now.Sub(s.last))
		s.last = now
	}
}

// Log writes the durations of the steps to the debug log, with the pool and the way (via) in which the next device was notified.
func (s *Steps) Log(pool, via string) {
	if s != nil {
		s.debug.Debug("handed on", append([]any{"pool", pool, "via", via}, s.took...)...)
	}
}
