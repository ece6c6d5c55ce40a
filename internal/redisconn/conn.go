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

// rereadEvery is the maximum age of the topology of a Cluster. It is read earlier if a node fails.
const rereadEvery = time.Minute

// Conn is a client of one server, of a Cluster, or of a master behind Sentinel.
type Conn struct {
	Client   redis.UniversalClient // a *redis.ClusterClient, or a *redis.Client behind Sentinel
	Database int

	topology *topology // nil behind Sentinel
}

// Open returns a client that connects when it is first used.
func Open(options *redis.UniversalOptions) *Conn {
	if options.MasterName != "" {
		client := redis.NewFailoverClient(options.Failover())
		client.AddHook(nodeHook{func(context.Context) {}}) // there is no topology to reread: the library learns of a new master from Sentinel
		return &Conn{Client: client, Database: options.DB}
	}
	t := newTopology(options)
	cluster := t.options.Cluster()
	cluster.ClusterSlots, cluster.ClusterStateReloadInterval = t.readTopology, rereadEvery
	cluster.DisableRoutingPolicies = true // no command goes to several nodes, and the command COMMAND need not be permitted
	if db := options.DB; db != 0 {
		cluster.OnConnect = func(ctx context.Context, c *redis.Conn) error { return c.Select(ctx, db).Err() }
	}
	client := redis.NewClusterClient(cluster)
	client.OnNewNode(func(node *redis.Client) { node.AddHook(nodeHook{client.ReloadState}) })
	return &Conn{Client: client, Database: options.DB, topology: t}
}

// Close closes all connections.
func (c *Conn) Close() error {
	err := c.Client.Close()
	if c.topology != nil {
		err = errors.Join(err, c.topology.close())
	}
	return err
}

// nodeHook rereads the topology when a node does not work. It also prevents the library from resending a command without an answer. The callers
// resend such a command, because they know when that is safe.
type nodeHook struct{ rereadTopology func(context.Context) }

// DialHook returns next unchanged, because ProcessHook sees a failed dial as the error of the command that needed the connection.
func (nodeHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook returns a hook that runs one command through next and then examines its answer.
func (w nodeHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if !ownerMayHaveChanged(err) {
			return err
		}
		w.rereadTopology(ctx)
		err = toUnansweredError(err)
		cmd.SetErr(err)
		return err
	}
}

// ProcessPipelineHook returns a hook that runs a pipeline through next and then examines the answers to its commands.
func (w nodeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		all := make([]redis.Cmder, len(cmds))
		for i, cmd := range cmds {
			all[i] = SentOnce{cmd}
		}
		err := next(ctx, all)
		if !slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return ownerMayHaveChanged(cmd.Err()) }) {
			return err
		}
		w.rereadTopology(ctx)
		for _, cmd := range cmds {
			cmd.SetErr(toUnansweredError(cmd.Err()))
		}
		return toUnansweredError(err)
	}
}

// SentOnce is a command that the library does not resend, even if the network loses it. For a pipeline, the library decides about a resend
// before it calls the hooks.
type SentOnce struct{ redis.Cmder }

// NoRetry returns true: the library must not resend the command.
func (SentOnce) NoRetry() bool { return true }

// toUnansweredError converts the error of an unanswered command to an error for which the library does not resend the command. It removes the
// local port, so that equal failures have equal texts.
func toUnansweredError(callErr error) error {
	if !IsUnanswered(callErr) {
		return callErr
	}
	if op, ok := errors.AsType[*net.OpError](callErr); ok {
		withoutSource := *op
		withoutSource.Source = nil
		callErr = &withoutSource
	}
	return errors.New(callErr.Error())
}

// IsUnanswered reports whether cmdErr, the error of a command, means that Redis gave no answer. In this case, sending the command again can
// help.
func IsUnanswered(cmdErr error) bool {
	var answer redis.Error
	return cmdErr != nil && !errors.As(cmdErr, &answer) && !errors.Is(cmdErr, redis.ErrPoolTimeout) && !errors.Is(cmdErr, redis.ErrClosed)
}

// ownerMayHaveChanged reports whether another node of the Cluster may now own the keys of a command. callErr is the error of the command.
func ownerMayHaveChanged(callErr error) bool {
	if callErr == nil || IsUnanswered(callErr) {
		return callErr != nil
	}
	for _, prefix := range []string{"CLUSTERDOWN", "MASTERDOWN", "LOADING", "READONLY"} {
		if strings.HasPrefix(callErr.Error(), prefix) {
			return true
		}
	}
	return false
}

// findNodeAddr returns the address of the node that owns key, or "" behind Sentinel or if the node is not known.
func findNodeAddr(ctx context.Context, client redis.UniversalClient, key string) string {
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
