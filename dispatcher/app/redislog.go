package app

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// LogRedis sends the log of the Redis client to log, at level debug: by itself
// it writes a line to standard error for each connection that fails, and what
// matters of them is in the errors already. The client has one logger for the
// whole process, so only main may call it, before anything starts.
func LogRedis(log *slog.Logger) { redis.SetLogger(redisLog{log}) }

type redisLog struct{ log *slog.Logger }

// Printf logs a line of the client.
func (r redisLog) Printf(ctx context.Context, format string, v ...any) {
	r.log.DebugContext(ctx, "redis client", "says", fmt.Sprintf(format, v...))
}
