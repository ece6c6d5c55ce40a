package limits

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// maxSends is the maximum number of times that a script is sent if the network loses it or its reply.
const maxSends = 3

// connection sends scripts and commands to Redis. If Redis failed to answer a moment ago, connection returns
// an error without sending anything.
type connection struct {
	client   redis.UniversalClient
	breakers *redisconn.Breakers
}

// run sends the script lua with keys and args. If the network loses the script or its reply, run sends it again, so the script must be
// harmless to run twice. scopeName is the pool or limit set of the keys.
func (c *connection) run(ctx context.Context, lua script, scopeName string, keys, args []any) (*redis.Cmd, error) {
	return c.runAtMost(ctx, maxSends, lua, scopeName, keys, args)
}

// runAtMost sends the script lua until Redis answers, at most maxSends times. If maxSends is 1, the Redis client does not resend the script
// by itself, either. scopeName is the pool or limit set of the keys.
func (c *connection) runAtMost(ctx context.Context, maxSends int, lua script, scopeName string, keys, args []any) (*redis.Cmd, error) {
	var cmd *redis.Cmd
	err := c.breakers.Do(ctx, keyPrefix(scopeName), maxSends, func() error {
		cmd = c.send(ctx, lua, keys, args, maxSends == 1)
		return cmd.Err()
	})
	if err != nil {
		return nil, unavailable(scopeName, err)
	}
	return cmd, nil
}

// send sends the script lua by its digest. If Redis does not know the digest, send sends the source of the script. If onlyOnce is true,
// the Redis client does not repeat it after a network error.
func (c *connection) send(ctx context.Context, lua script, keys, args []any, onlyOnce bool) *redis.Cmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(append(append(all, "evalsha", lua.digest, len(keys)), keys...), args...)
	cmd := c.process(ctx, all, onlyOnce)
	if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		all[0], all[1] = "eval", lua.source
		cmd = c.process(ctx, all, onlyOnce)
	}
	return cmd
}

// process sends a command to Redis; words are the command and its arguments. If onlyOnce is true, the Redis client does not repeat the
// command after a network error.
func (c *connection) process(ctx context.Context, words []any, onlyOnce bool) *redis.Cmd {
	cmd := redis.NewCmd(ctx, words...)
	if len(words) > 3 {
		cmd.SetFirstKeyPos(3) // index of the first key, which selects the node of a Cluster
	}
	if onlyOnce {
		_ = c.client.Process(ctx, unrepeated{cmd})
	} else {
		_ = c.client.Process(ctx, cmd) // cmd contains the error
	}
	return cmd
}

// pipeline calls addCommands and sends the added commands in one round trip. If the network loses them, pipeline sends them again, so the
// commands must be harmless to run twice. It returns the commands with their answers. scopeName is the pool or limit set of their keys.
func (c *connection) pipeline(ctx context.Context, scopeName string, addCommands func(redis.Pipeliner)) (sent []redis.Cmder, err error) {
	err = c.breakers.Do(ctx, keyPrefix(scopeName), maxSends, func() error {
		p := c.client.Pipeline()
		addCommands(p)
		sent, err = p.Exec(ctx)
		return err
	})
	if err != nil {
		return nil, unavailable(scopeName, err)
	}
	return sent, nil
}

// unrepeated is a command that the Redis client sends only once, even if the network loses it.
type unrepeated struct{ redis.Cmder }

// NoRetry returns true: the Redis client does not resend the command.
func (unrepeated) NoRetry() bool { return true }

// unavailable returns ErrUnavailable with err and the name of the scope (a pool or limit set).
func unavailable(scopeName string, err error) error {
	return fmt.Errorf("limits of %s: %w: %w", scopeName, ErrUnavailable, err)
}

// readNumbers decodes the reply of cmd, a script that returns a list of numbers. It returns an error for an empty list. scopeName is the
// pool or limit set in the error.
func readNumbers(scopeName string, cmd *redis.Cmd) ([]int64, error) {
	reply, err := cmd.Int64Slice()
	if err != nil || len(reply) == 0 {
		return nil, wrongReply(scopeName, cmd.Val())
	}
	return reply, nil
}

// wrongReply returns the error for a reply of a script that has the wrong form.
func wrongReply(scopeName string, reply any) error {
	return fmt.Errorf("limits of %s: %w: reply %v", scopeName, ErrUnavailable, reply)
}

// serverClock estimates the time of Redis. The process uses this estimate to select the calendar periods that it sends to a script. The
// scripts themselves decide by the exact time of Redis.
type serverClock struct {
	local  func() time.Time
	offset atomic.Int64 // ns from the local time to the time of Redis, as of the latest reply
}

// now returns the estimated time of Redis.
func (c *serverClock) now() time.Time { return c.local().Add(time.Duration(c.offset.Load())) }

// adjust corrects the estimate. redisMS is the time of Redis in a reply, in ms since 1970.
func (c *serverClock) adjust(redisMS int64) {
	c.offset.Store(int64(time.UnixMilli(redisMS).Sub(c.local())))
}
