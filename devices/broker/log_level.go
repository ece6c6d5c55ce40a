package broker

import (
	"context"
	"log/slog"
)

// quietHandler logs mochi's records at level debug, except errors. It leaves out packets, which contain payloads and passwords.
type quietHandler struct{ next slog.Handler }

// Enabled reports whether the next handler is enabled for a record of this level. Handle logs most records at level debug, so their level counts
// as debug.
func (q quietHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return q.next.Enabled(ctx, quietLevel(level))
}

// Handle logs one record of the broker without its packets.
func (q quietHandler) Handle(ctx context.Context, record slog.Record) error {
	quieter := slog.NewRecord(record.Time, quietLevel(record.Level), "mqtt broker: "+record.Message, record.PC)
	record.Attrs(func(a slog.Attr) bool {
		if a.Key != "pk" && a.Key != "packet" {
			quieter.AddAttrs(a)
		}
		return true
	})
	return q.next.Handle(ctx, quieter)
}

// WithAttrs returns a quietHandler with these attributes.
func (q quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quietHandler{q.next.WithAttrs(attrs)}
}

// WithGroup returns a quietHandler with this group.
func (q quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{q.next.WithGroup(name)}
}

func quietLevel(level slog.Level) (loggedAs slog.Level) {
	if level < slog.LevelError {
		return slog.LevelDebug
	}
	return level
}
