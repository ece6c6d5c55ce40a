package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/slots"
)

// redisEvery is the interval at which the state of Redis is read. An outage of Redis is noticed earlier, by calls and
// readiness checks.
const redisEvery = 10 * time.Second

// newRedisCheck returns the readiness check of Redis. If a Redis node fails, the error of the check says how many pools of this replica
// Redis still serves. poolNames returns the names of all pools.
func newRedisCheck(conn *redisconn.Conn, address string, poolNames func() []string) api.Check {
	return api.Check{Name: "redis", Address: address, Probe: func(ctx context.Context) error {
		known := poolNames()
		keys := make([]string, len(known))
		for i, pool := range known {
			keys[i] = slots.NodeKey(pool)
		}
		served, err := conn.CountServedKeys(ctx, keys)
		if err != nil {
			return &api.UnservedError{ServedPools: served, KnownPools: len(known), Err: err}
		}
		return nil
	}}
}

// redisWatch logs the kind, the version and the faults of Redis at the start, and again when they change.
type redisWatch struct {
	conn       *redisconn.Conn
	log        *slog.Logger
	lastLogged []string // the state at the last call, whether or not it was logged
}

// logRedisState is a pass that reads the state of Redis and logs it if it has changed.
func (w *redisWatch) logRedisState(ctx context.Context) error {
	notes, err := w.conn.Examine(ctx)
	if errors.Is(ctx.Err(), context.Canceled) { // the process stops
		return err
	}
	if err != nil {
		w.logIfChanged([]string{err.Error()}, func() {
			w.log.ErrorContext(ctx, "Redis cannot be used: results are recorded, but NOTHING IS GRANTED", "err", err)
		})
		return err
	}
	all := []string{notes.Kind, notes.Version}
	for _, trouble := range notes.Trouble {
		all = append(all, trouble.Text)
	}
	w.logIfChanged(all, func() {
		w.log.InfoContext(ctx, "Redis answers", "redis", notes.Kind, "version", notes.Version)
		for _, trouble := range notes.Trouble {
			w.log.WarnContext(ctx, "trouble with Redis", "trouble", trouble.Text)
		}
	})
	return nil
}

// logIfChanged calls logCurrent if currentState differs from the state at the previous call.
func (w *redisWatch) logIfChanged(currentState []string, logCurrent func()) {
	if !slices.Equal(currentState, w.lastLogged) {
		logCurrent()
	}
	w.lastLogged = currentState
}

// SetRedisLog makes the Redis client write its log to log, at level debug. By default, the client writes each failed
// connection to standard error. All Redis clients of the process share one logger, so only main may call SetRedisLog, before
// anything starts.
func SetRedisLog(log *slog.Logger) { redis.SetLogger(redisLog{log}) }

// redisLog is a logger for the Redis client, which writes to log.
type redisLog struct{ log *slog.Logger }

// Printf logs one line of the Redis client at level debug.
func (r redisLog) Printf(ctx context.Context, format string, v ...any) {
	r.log.DebugContext(ctx, "redis client", "says", fmt.Sprintf(format, v...))
}
