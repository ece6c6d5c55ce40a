package redisconn

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// rereadEvery is how old a topology may be that nobody complained about.
const rereadEvery = time.Minute

// Conn is a client of whatever Redis its options name.
type Conn struct {
	Client   redis.UniversalClient // a *redis.ClusterClient; a *redis.Client behind Sentinel
	Database int

	topology *topology // nil behind Sentinel
}

// Open returns a client that connects when it is used.
func Open(options *redis.UniversalOptions) *Conn {
	if options.MasterName != "" {
		client := redis.NewFailoverClient(options.Failover())
		client.AddHook(watch{func(context.Context) {}}) // Sentinel tells of another master
		return &Conn{Client: client, Database: options.DB}
	}
	t := newTopology(options)
	cluster := t.options.Cluster()
	cluster.ClusterSlots, cluster.ClusterStateReloadInterval = t.read, rereadEvery
	cluster.DisableRoutingPolicies = true // nothing is sent to several nodes, and COMMAND need not be permitted
	if db := options.DB; db != 0 {
		cluster.OnConnect = func(ctx context.Context, c *redis.Conn) error { return c.Select(ctx, db).Err() }
	}
	client := redis.NewClusterClient(cluster)
	client.OnNewNode(func(node *redis.Client) { node.AddHook(watch{client.ReloadState}) })
	return &Conn{Client: client, Database: options.DB, topology: t}
}

// Close ends all connections.
func (c *Conn) Close() error {
	err := c.Client.Close()
	if c.topology != nil {
		err = errors.Join(err, c.topology.close())
	}
	return err
}

// watch has the topology read again when a node is of no use, and keeps the
// library from sending again what was lost: its callers do that, who know when
// they may.
type watch struct{ reread func(context.Context) }

// DialHook changes nothing: a failed dial is the error of a command.
func (watch) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook looks at the answer to one command.
func (w watch) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if !useless(err) {
			return err
		}
		w.reread(ctx)
		err = final(err)
		cmd.SetErr(err)
		return err
	}
}

// ProcessPipelineHook looks at the answers to several.
func (w watch) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		all := make([]redis.Cmder, len(cmds))
		for i, cmd := range cmds {
			all[i] = once{cmd}
		}
		err := next(ctx, all)
		if !slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return useless(cmd.Err()) }) {
			return err
		}
		w.reread(ctx)
		for _, cmd := range cmds {
			cmd.SetErr(final(cmd.Err()))
		}
		return final(err)
	}
}

// once is a command of a pipeline, for which the library decides before it asks
// the hooks whether to send again what was lost.
type once struct{ redis.Cmder }

// NoRetry says that it does not.
func (once) NoRetry() bool { return true }

// lostError is no error that the library would send a command again for.
type lostError struct{ text string }

// Error is that of the library, as text.
func (e lostError) Error() string { return e.text }

// final makes a lostError of what was lost. It does not name the port of this end,
// which would make another text of each loss.
func final(err error) error {
	if !Lost(err) {
		return err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		told := *op
		told.Source = nil
		err = &told
	}
	return lostError{err.Error()}
}

// Lost is whether no answer came, so that sending again can help: not when all
// connections are busy already, nor when the client was closed.
func Lost(err error) bool {
	var answer redis.Error
	return err != nil && !errors.As(err, &answer) && !errors.Is(err, redis.ErrPoolTimeout) && !errors.Is(err, redis.ErrClosed)
}

// useless is whether another node may have become the one to ask.
func useless(err error) bool {
	if err == nil || Lost(err) {
		return err != nil
	}
	for _, said := range []string{"CLUSTERDOWN", "MASTERDOWN", "LOADING", "READONLY"} {
		if strings.HasPrefix(err.Error(), said) {
			return true
		}
	}
	return false
}

// nodeOf is the address of the node that has a key; empty: the only one there
// is, or it is not known.
func nodeOf(ctx context.Context, client redis.UniversalClient, key string) string {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return ""
	}
	node, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return ""
	}
	return node.Options().Addr
}

func splitAddr(addr string) (host, port string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, ""
	}
	return host, port
}
