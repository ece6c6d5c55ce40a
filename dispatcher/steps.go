package dispatcher

import (
	"context"
	"log/slog"
	"time"
)

// steps are where the time of one handoff went, for the debug log. A nil one
// notes nothing: nobody reads it, or it is no handoff.
type steps struct {
	last time.Time
	took []any // name, duration
}

// stepsOf begins those of a place that fell free at since.
func (d *Dispatcher) stepsOf(ctx context.Context, since time.Time) *steps {
	if since.IsZero() || !d.config.Logger.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	return &steps{last: since}
}

// done notes a step that ended now.
func (s *steps) done(name string, now time.Time) {
	if s != nil {
		s.took = append(s.took, name, now.Sub(s.last))
		s.last = now
	}
}

// say writes them down.
func (s *steps) say(log *slog.Logger, pool, via string) {
	if s != nil {
		log.Debug("handed on", append([]any{"pool", pool, "via", via}, s.took...)...)
	}
}
