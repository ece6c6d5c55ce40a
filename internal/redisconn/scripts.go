package redisconn

import (
	"cmp"
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Call is a call of a script with its keys and arguments. After it was sent, it also has the answer.
type Call struct {
	Script *redis.Script
	Keys   []string
	Args   []any

	*redis.Cmd // the answer to the latest sending; nil if the call was not sent
}

// Run sends the calls that have no answer yet, in one round trip to each node. If a server does not have a script, Run sends the call again with
// the text of the script. Each call then holds its answer. The returned error is the error of a call without an answer, or else of any call.
// Run ignores circuit breakers.
func Run(ctx context.Context, client redis.UniversalClient, calls []*Call) error {
	pending, notLoaded := make([]*Call, 0, len(calls)), []*Call(nil)
	for _, c := range calls {
		if c.Cmd == nil || IsUnanswered(c.Err()) {
			pending = append(pending, c)
		}
	}
	sendCalls(ctx, client, pending, (*redis.Script).EvalSha)
	for _, c := range pending {
		if redis.HasErrorPrefix(c.Err(), "NOSCRIPT") {
			notLoaded = append(notLoaded, c)
		}
	}
	sendCalls(ctx, client, notLoaded, (*redis.Script).Eval)
	return firstError(calls)
}

// sendCalls sends calls in one pipeline. It sends a single call without a pipeline, which costs less. run sends one script, by its hash or with
// its text.
func sendCalls(ctx context.Context, client redis.UniversalClient, calls []*Call, run func(*redis.Script, context.Context, redis.Scripter, []string, ...any) *redis.Cmd) {
	if len(calls) == 1 {
		calls[0].Cmd = run(calls[0].Script, ctx, client, calls[0].Keys, calls[0].Args...)
	}
	if len(calls) < 2 {
		return
	}
	pipe := client.Pipeline()
	for _, c := range calls {
		c.Cmd = run(c.Script, ctx, pipe, c.Keys, c.Args...)
	}
	_, _ = pipe.Exec(ctx) // each call holds its own error
}

// firstError returns the error of a call without an answer. If there is none, it returns the error of any call, or nil.
func firstError(calls []*Call) (err error) {
	for _, c := range calls {
		if IsUnanswered(c.Err()) {
			return c.Err()
		}
		err = cmp.Or(err, c.Err())
	}
	return err
}

// Run sends calls through the circuit breaker of their node, each call at most maxSends times. There must be at least one call, and all keys
// must be on one node. Each call then holds its answer or its error. The node counts as working if all calls were answered and at least one
// succeeded.
func (b *Breakers) Run(ctx context.Context, maxSends int, calls []*Call) {
	err := b.Do(ctx, calls[0].Keys[0], maxSends, func() error {
		err := Run(ctx, b.client, calls)
		if !IsUnanswered(err) && slices.ContainsFunc(calls, func(c *Call) bool { return c.Err() == nil }) {
			return nil
		}
		return err
	})
	for _, c := range calls {
		if c.Cmd == nil { // the call was not sent
			c.Cmd = redis.NewCmd(ctx)
			c.SetErr(err)
		}
	}
}

// Node returns the address of the node that owns key. It returns "" behind Sentinel, or if the node is not known.
func (b *Breakers) Node(ctx context.Context, key string) string {
	return findNodeAddr(ctx, b.client, key)
}
