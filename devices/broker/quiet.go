package broker

import (
	"context"
	"log/slog"
)

// quiet turns mochi's log down to debug, but for errors, and leaves out whole
// packets: they carry payloads and passwords.
type quiet struct{ next slog.Handler }

// Enabled goes by the level that Handle would log at.
func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return q.next.Enabled(ctx, quietLevel(level))
}

// Handle logs one record of the broker.
func (q quiet) Handle(ctx context.Context, record slog.Record) error {
	quieter := slog.NewRecord(record.Time, quietLevel(record.Level), "mqtt broker: "+record.Message, record.PC)
	record.Attrs(func(a slog.Attr) bool {
		if a.Key != "pk" && a.Key != "packet" {
			quieter.AddAttrs(a)
		}
		return true
	})
	return q.next.Handle(ctx, quieter)
}

// WithAttrs stays quiet.
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.next.WithAttrs(attrs)} }

// WithGroup stays quiet.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.next.WithGroup(name)} }

func quietLevel(level slog.Level) slog.Level {
	if level < slog.LevelError {
		return slog.LevelDebug
	}
	return level
}
