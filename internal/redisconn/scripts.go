package redisconn

import (
	"cmp"
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Call is a script to be run for some keys, and the answer.
type Call struct {
	Script *redis.Script
	Keys   []string
	Args   []any

	*redis.Cmd // the answer to the latest sending; nil: it was not sent
}

// Run runs scripts in one round trip (of a Cluster: one to each node), and those that a
// server forgot in another one. Each call has its answer. The error is one of theirs: of one
// that got no answer, if there is any. Run again, those alone are sent again.
func Run(ctx context.Context, client redis.UniversalClient, calls []*Call) error {
	left, forgotten := make([]*Call, 0, len(calls)), []*Call(nil)
	for _, c := range calls {
		if c.Cmd == nil || Lost(c.Err()) {
			left = append(left, c)
		}
	}
	send(ctx, client, left, (*redis.Script).EvalSha)
	for _, c := range left {
		if redis.HasErrorPrefix(c.Err(), "NOSCRIPT") {
			forgotten = append(forgotten, c)
		}
	}
	send(ctx, client, forgotten, (*redis.Script).Eval)
	return worst(calls)
}

// send sends calls together; one by itself costs less without a pipeline.
func send(ctx context.Context, client redis.UniversalClient, calls []*Call, how func(*redis.Script, context.Context, redis.Scripter, []string, ...any) *redis.Cmd) {
	if len(calls) == 1 {
		calls[0].Cmd = how(calls[0].Script, ctx, client, calls[0].Keys, calls[0].Args...)
	}
	if len(calls) < 2 {
		return
	}
	pipe := client.Pipeline()
	for _, c := range calls {
		c.Cmd = how(c.Script, ctx, pipe, c.Keys, c.Args...)
	}
	_, _ = pipe.Exec(ctx) // each call has its error
}

// worst is the error of a call that got no answer, or of any.
func worst(calls []*Call) (err error) {
	for _, c := range calls {
		if Lost(c.Err()) {
			return c.Err()
		}
		err = cmp.Or(err, c.Err())
	}
	return err
}

// Run runs scripts for keys of one node, at least one, and sends them as Do does. A script
// that fails beside one that does not says nothing of the node.
func (b *Breakers) Run(ctx context.Context, sends int, calls []*Call) {
	err := b.Do(ctx, calls[0].Keys[0], sends, func() error {
		err := Run(ctx, b.client, calls)
		if !Lost(err) && slices.ContainsFunc(calls, func(c *Call) bool { return c.Err() == nil }) {
			return nil
		}
		return err
	})
	for _, c := range calls {
		if c.Cmd == nil { // it was not sent
			c.Cmd = redis.NewCmd(ctx)
			c.SetErr(err)
		}
	}
}

// Node is the node that has a key; empty: the only one there is, or it is not known.
func (b *Breakers) Node(ctx context.Context, key string) string { return nodeOf(ctx, b.client, key) }
