package dispatcher

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// sparingPeriod is how often one warning is logged at most.
const sparingPeriod = time.Second

// Sparing returns a logger that lets each warning and error, told apart by its
// message, through once a second, with the number of those left out since: ten
// thousand reports a second that meet the same outage are one line. Messages
// must be constants. now is for elapsed time only.
func Sparing(log *slog.Logger, now func() time.Time) *slog.Logger {
	return slog.New(&sparing{Handler: log.Handler(), now: now, last: &lastLines{lines: make(map[string]line)}})
}

type sparing struct {
	slog.Handler
	now  func() time.Time
	last *lastLines // shared with the handlers made from this one
}

type lastLines struct {
	mu    sync.Mutex
	lines map[string]line // by message
}

type line struct {
	at      time.Time
	leftOut int
}

// Handle logs the record or leaves it out.
func (s *sparing) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return s.Handler.Handle(ctx, r)
	}
	leftOut, ok := s.last.pass(r.Message, s.now())
	if !ok {
		return nil
	}
	if leftOut > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", leftOut))
	}
	return s.Handler.Handle(ctx, r)
}

// WithAttrs adds attributes.
func (s *sparing) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &sparing{s.Handler.WithAttrs(attrs), s.now, s.last}
}

// WithGroup begins a group.
func (s *sparing) WithGroup(name string) slog.Handler {
	return &sparing{s.Handler.WithGroup(name), s.now, s.last}
}

func (l *lastLines) pass(message string, now time.Time) (leftOut int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, known := l.lines[message]
	if known && now.Sub(last.at) < sparingPeriod {
		last.leftOut++
		l.lines[message] = last
		return 0, false
	}
	l.lines[message] = line{at: now}
	return last.leftOut, true
}
