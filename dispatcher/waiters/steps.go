package waiters

import (
	"context"
	"log/slog"
	"time"
)

// Steps are where the time of one handoff went, for the debug log. A nil one
// notes nothing: nobody reads it, or it is no handoff.
type Steps struct {
	last time.Time
	took []any // name, duration
}

// StepsOf begins those of a slot that fell free at since.
func (n *Notifier) StepsOf(ctx context.Context, since time.Time) *Steps {
	if since.IsZero() || !n.config.Logger.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	return &Steps{last: since}
}

// Done notes a step that ended now.
func (s *Steps) Done(name string, now time.Time) {
	if s != nil {
		s.took = append(s.took, name, now.Sub(s.last))
		s.last = now
	}
}

// Say writes them down.
func (s *Steps) Say(log *slog.Logger, pool, via string) {
	if s != nil {
		log.Debug("handed on", append([]any{"pool", pool, "via", via}, s.took...)...)
	}
}
