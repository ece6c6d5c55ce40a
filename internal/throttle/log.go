// Package throttle limits repeated log lines and records of events. A logger of NewLogger logs each message at most once a second. Samples
// selects the first event of each kind in a minute. The package limits no requests.
package throttle

import (
	"context"
	"log/slog"
	"math"
	"time"
)

const minInterval = time.Second

// NewLogger returns a logger that logs warnings and errors with the same message at most once a second. A logged line contains the number of
// lines that were left out before it. Messages must be constants. now is used only for elapsed time.
func NewLogger(log *slog.Logger, now func() time.Time) *slog.Logger {
	return slog.New(&handler{log.Handler(), newSamples[string](minInterval, math.MaxInt, now)})
}

// handler passes records to the inner handler, except warnings and errors with a message that its field lines does not allow.
type handler struct {
	slog.Handler
	lines *Samples[string] // by message; shared with the handlers derived from this one
}

// Handle logs record, or counts it as left out.
func (s *handler) Handle(ctx context.Context, record slog.Record) error {
	if record.Level < slog.LevelWarn {
		return s.Handler.Handle(ctx, record)
	}
	leftOut, ok := s.lines.Allow(record.Message)
	if !ok {
		return nil
	}
	if leftOut > 0 {
		record = record.Clone()
		record.AddAttrs(slog.Int("left_out", leftOut))
	}
	return s.Handler.Handle(ctx, record)
}

// WithAttrs returns a handler whose records also have the attributes attrs.
func (s *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{s.Handler.WithAttrs(attrs), s.lines}
}

// WithGroup returns a handler whose later attributes belong to the group name.
func (s *handler) WithGroup(name string) slog.Handler {
	return &handler{s.Handler.WithGroup(name), s.lines}
}
