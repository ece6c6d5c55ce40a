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

// connection sends scripts and commands to Redis. If Redis failed to answer a moment ago, a connection sends nothing and returns an error.
type connection struct {
	client   redis.UniversalClient
	breakers *redisconn.Breakers
	clock    serverClock
}

// runScriptForNumbers runs the script luaScript as runScriptAtMost does. It returns the reply, which must be a list of numbers that begins with
// the time of Redis.
func (c *connection) runScriptForNumbers(ctx context.Context, maxSends int, luaScript script, scopeName string, keys, args []any) (reply []int64, err error) {
	cmd, err := c.runScriptAtMost(ctx, maxSends, luaScript, scopeName, keys, args)
	if err != nil {
		return nil, err
	}
	reply, err = cmd.Int64Slice()
	if err != nil || len(reply) == 0 {
		return nil, newReplyError(scopeName, cmd.Val())
	}
	c.clock.adjustToRedisTime(reply[0])
	return reply, nil
}

// runScript sends the script luaScript. If Redis does not answer, runScript sends it again, so the script must be harmless to run twice.
func (c *connection) runScript(ctx context.Context, luaScript script, scopeName string, keys, args []any) (*redis.Cmd, error) {
	return c.runScriptAtMost(ctx, maxSends, luaScript, scopeName, keys, args)
}

// runScriptAtMost sends the script luaScript until Redis answers, but at most maxSends times. If maxSends is 1, the Redis client does not resend
// the script either.
func (c *connection) runScriptAtMost(ctx context.Context, maxSends int, luaScript script, scopeName string, keys, args []any) (*redis.Cmd, error) {
	var cmd *redis.Cmd
	err := c.breakers.Do(ctx, keyPrefix(scopeName), maxSends, func() error {
		cmd = c.sendScript(ctx, luaScript, keys, args, maxSends == 1)
		return cmd.Err()
	})
	if err != nil {
		return nil, wrapUnavailable(scopeName, err)
	}
	return cmd, nil
}

// sendScript sends the script luaScript by its digest, or by its source if Redis does not know the digest.
func (c *connection) sendScript(ctx context.Context, luaScript script, keys, args []any, onlyOnce bool) *redis.Cmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(append(append(all, "evalsha", luaScript.digest, len(keys)), keys...), args...)
	cmd := c.sendCommand(ctx, all, onlyOnce)
	if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		all[0], all[1] = "eval", luaScript.source
		cmd = c.sendCommand(ctx, all, onlyOnce)
	}
	return cmd
}

// sendCommand sends a command. If onlyOnce is true, the Redis client does not repeat it after a network error.
func (c *connection) sendCommand(ctx context.Context, words []any, onlyOnce bool) *redis.Cmd {
	cmd := redis.NewCmd(ctx, words...)
	if len(words) > 3 {
		cmd.SetFirstKeyPos(3) // index of the first key, which selects the node of a Cluster
	}
	if onlyOnce {
		_ = c.client.Process(ctx, redisconn.SentOnce{Cmder: cmd})
	} else {
		_ = c.client.Process(ctx, cmd) // cmd contains the error
	}
	return cmd
}

// sendPipeline sends the commands that addCommands adds in one round trip, and returns them with their answers. If Redis does not answer,
// sendPipeline sends them again, so they must be harmless to run twice.
func (c *connection) sendPipeline(ctx context.Context, scopeName string, addCommands func(redis.Pipeliner)) (sent []redis.Cmder, err error) {
	err = c.breakers.Do(ctx, keyPrefix(scopeName), maxSends, func() error {
		p := c.client.Pipeline()
		addCommands(p)
		sent, err = p.Exec(ctx)
		return err
	})
	if err != nil {
		return nil, wrapUnavailable(scopeName, err)
	}
	return sent, nil
}

func wrapUnavailable(scopeName string, cause error) error {
	return fmt.Errorf("limits of %s: %w: %w", scopeName, ErrUnavailable, cause)
}

func newReplyError(scopeName string, reply any) error {
	return fmt.Errorf("limits of %s: %w: reply %v", scopeName, ErrUnavailable, reply)
}

// serverClock estimates the time of Redis. The estimate selects the calendar periods that are sent to a script. The script itself decides by
// the exact time of Redis.
type serverClock struct {
	local  func() time.Time
	offset atomic.Int64 // ns from the local time to the time of Redis, as of the latest reply
}

func (c *serverClock) now() time.Time { return c.local().Add(time.Duration(c.offset.Load())) }

// adjustToRedisTime corrects the estimate. redisMS is the time of Redis in a reply.
func (c *serverClock) adjustToRedisTime(redisMS int64) {
	c.offset.Store(int64(time.UnixMilli(redisMS).Sub(c.local())))
}
