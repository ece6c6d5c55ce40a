// Package throttle limits repeated log lines and records of events. A logger of NewLogger logs each message at most once a second. Samples
// selects the first event of each kind in a minute. The package limits no requests.
package throttle

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const minInterval = time.Second

// NewLogger returns a logger that logs warnings and errors with the same message at most once a second. A logged line contains the number of
// lines that were left out before it. Messages must be constants. now is used only for elapsed time.
func NewLogger(log *slog.Logger, now func() time.Time) *slog.Logger {
	return slog.New(&handler{Handler: log.Handler(), now: now, last: &lastLines{lines: make(map[string]line)}})
}

// handler passes records to the inner handler, except warnings and errors that lastLines does not allow.
type handler struct {
	slog.Handler
	now  func() time.Time
	last *lastLines // shared with the handlers derived from this one
}

// lastLines remembers when a line with each message was last logged.
type lastLines struct {
	mu    sync.Mutex
	lines map[string]line // key: the message
}

// line contains the time of the last logged line with a message, and the number of lines left out since then.
type line struct {
	at      time.Time
	leftOut int
}

// Handle logs record, or counts it as left out.
func (s *handler) Handle(ctx context.Context, record slog.Record) error {
	if record.Level < slog.LevelWarn {
		return s.Handler.Handle(ctx, record)
	}
	leftOut, ok := s.last.allow(record.Message, s.now())
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
	return &handler{s.Handler.WithAttrs(attrs), s.now, s.last}
}

// WithGroup returns a handler whose later attributes belong to the group name.
func (s *handler) WithGroup(name string) slog.Handler {
	return &handler{s.Handler.WithGroup(name), s.now, s.last}
}

// allow reports whether a line with this message may be logged now. leftOut is the number of lines left out since the
// previous logged line with this message.
func (l *lastLines) allow(message string, now time.Time) (leftOut int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, found := l.lines[message]
	if found && now.Sub(last.at) < minInterval {
		last.leftOut++
		l.lines[message] = last
		return 0, false
	}
	l.lines[message] = line{at: now}
	return last.leftOut, true
}
