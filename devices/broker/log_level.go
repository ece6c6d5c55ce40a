package broker

import (
	"context"
	"log/slog"
)

// quietHandler logs mochi's records at level debug, except errors. It leaves out attributes that contain
// a packet, because packets contain payloads and passwords.
type quietHandler struct{ next slog.Handler }

// Enabled reports whether the next handler is enabled for the level at which Handle would log a record of this level.
func (q quietHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return q.next.Enabled(ctx, quietLevel(level))
}

// Handle logs one record of the broker: at level debug unless the record is an error, and without the attributes that contain a packet.
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

// WithAttrs returns a quietHandler whose records also have the attributes attrs.
func (q quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quietHandler{q.next.WithAttrs(attrs)}
}

// WithGroup returns a quietHandler whose later attributes belong to the group name.
func (q quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{q.next.WithGroup(name)}
}

// quietLevel returns the level at which a record of mochi with this level is logged: debug unless it is an error.
func quietLevel(level slog.Level) slog.Level {
	if level < slog.LevelError {
		return slog.LevelDebug
	}
	return level
}
