package limits

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// maxSends is the maximum number of times that a script is sent if the network loses it.
const maxSends = 3

// connection sends scripts and commands to Redis. If Redis failed to answer a moment ago, connection returns
// an error without sending anything.
type connection struct {
	client   redis.UniversalClient
	breakers *redisconn.Breakers
}

// run sends a script, repeatedly if the network loses it. So the script must be harmless to run twice.
func (c *connection) run(ctx context.Context, s script, scope string, keys, args []any) (*redis.Cmd, error) {
	return c.runAtMost(ctx, maxSends, s, scope, keys, args)
}

// runAtMost sends a script until Redis answers, at most sends times. If sends is 1, the Redis client does not
// send the script a second time either.
func (c *connection) runAtMost(ctx context.Context, sends int, s script, scope string, keys, args []any) (*redis.Cmd, error) {
	var cmd *redis.Cmd
	err := c.breakers.Do(ctx, keyPrefix(scope), sends, func() error {
		cmd = c.send(ctx, s, keys, args, sends == 1)
		return cmd.Err()
	})
	if err != nil {
		return nil, unavailable(scope, err)
	}
	return cmd, nil
}

// send sends a script by its digest. If Redis does not know the digest, send sends the source of the script.
func (c *connection) send(ctx context.Context, s script, keys, args []any, once bool) *redis.Cmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(append(append(all, "evalsha", s.digest, len(keys)), keys...), args...)
	cmd := c.process(ctx, all, once)
	if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		all[0], all[1] = "eval", s.source
		cmd = c.process(ctx, all, once)
	}
	return cmd
}

func (c *connection) process(ctx context.Context, all []any, once bool) *redis.Cmd {
	cmd := redis.NewCmd(ctx, all...)
	if len(all) > 3 {
		cmd.SetFirstKeyPos(3) // index of the first key, which selects the node of a Cluster
	}
	if once {
		_ = c.client.Process(ctx, unrepeated{cmd})
	} else {
		_ = c.client.Process(ctx, cmd) // cmd contains the error
	}
	return cmd
}

// pipeline sends the commands of add in one round trip, repeatedly if the network loses them. So the commands
// must be harmless to run twice.
func (c *connection) pipeline(ctx context.Context, scope string, add func(redis.Pipeliner)) (sent []redis.Cmder, err error) {
	err = c.breakers.Do(ctx, keyPrefix(scope), maxSends, func() error {
		p := c.client.Pipeline()
		add(p)
		sent, err = p.Exec(ctx)
		return err
	})
	if err != nil {
		return nil, unavailable(scope, err)
	}
	return sent, nil
}

// unrepeated is a command that the Redis client sends only once, also after a network error.
type unrepeated struct{ redis.Cmder }

// NoRetry returns true: the Redis client does not resend the command.
func (unrepeated) NoRetry() bool { return true }

func unavailable(scope string, err error) error {
	return fmt.Errorf("limits of %s: %w: %w", scope, ErrUnavailable, err)
}

// readNumbers decodes the reply of a script that returns a list of numbers. It refuses an empty list.
func readNumbers(scope string, cmd *redis.Cmd) ([]int64, error) {
	reply, err := cmd.Int64Slice()
	if err != nil || len(reply) == 0 {
		return nil, wrongReply(scope, cmd.Val())
	}
	return reply, nil
}

func wrongReply(scope string, reply any) error {
	return fmt.Errorf("limits of %s: %w: reply %v", scope, ErrUnavailable, reply)
}

// serverClock estimates the time of Redis. By this estimate the process selects the calendar periods that a
// script receives; the scripts themselves decide by the exact time of Redis.
type serverClock struct {
	local  func() time.Time
	offset atomic.Int64 // ns from the local time to the time of Redis, as of the latest reply
}

func (c *serverClock) now() time.Time { return c.local().Add(time.Duration(c.offset.Load())) }

// adjust sets the clock to the time of Redis in a reply, in ms since 1970.
func (c *serverClock) adjust(redisMS int64) {
	c.offset.Store(int64(time.UnixMilli(redisMS).Sub(c.local())))
}
