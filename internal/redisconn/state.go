package redisconn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Served says of how many of these keys the node works that has them, and what is
// wrong with the nodes that do not.
func (c *Conn) Served(ctx context.Context, keys []string) (int, error) {
	cluster, ok := c.Client.(*redis.ClusterClient)
	if !ok {
		if err := c.Client.Ping(ctx).Err(); err != nil {
			return 0, fmt.Errorf("redis: %w", err)
		}
		return len(keys), nil
	}
	failed, err := eachMaster(ctx, cluster, works)
	if err != nil {
		return 0, fmt.Errorf("redis: %w", err)
	}
	served := 0
	for _, key := range keys {
		if _, fails := failed[nodeOf(ctx, cluster, key)]; !fails {
			served++
		}
	}
	var errs []error
	for addr, err := range failed {
		errs = append(errs, fmt.Errorf("redis node %s: %w", dialed(addr), err))
	}
	return served, errors.Join(errs...)
}

// works is nil for a node that takes commands for its keys. One that is cut off
// from the others, or of a Cluster that lacks nodes, answers and refuses them.
func works(ctx context.Context, node *redis.Client) error {
	if err := node.Ping(ctx).Err(); err != nil {
		return err
	}
	info, err := node.ClusterInfo(ctx).Result()
	if Lost(err) {
		return err
	}
	if state := fields(info)["cluster_state"]; state != "" && state != "ok" {
		return fmt.Errorf("cluster_state is %s: hash slots are not served, or other nodes not reached", state)
	}
	return nil
}

// eachMaster asks all masters at once, and returns those that failed by address.
func eachMaster(ctx context.Context, cluster *redis.ClusterClient, ask func(context.Context, *redis.Client) error) (map[string]error, error) {
	var mu sync.Mutex
	failed := make(map[string]error)
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		if err := rescue.Call(func() error { return ask(ctx, node) }); err != nil { // in a goroutine of the library
			mu.Lock()
			defer mu.Unlock()
			failed[node.Options().Addr] = err
		}
		return nil
	})
	return failed, err
}

// Notes are what an operator should know of the servers: what they are, and what
// stands in the way of the program or of its promises.
type Notes struct {
	Kind    string   // as "one server", "a Cluster of 3 masters"
	Version string   // of one of them, as it says itself; empty: it does not
	Trouble []string // sentences without a full stop; no secrets
}

// Examine asks each master. An error: nothing could be found out.
func (c *Conn) Examine(ctx context.Context) (Notes, error) {
	notes := Notes{Kind: "a master behind Sentinel"}
	cluster, ok := c.Client.(*redis.ClusterClient)
	if !ok {
		return notes, examine(ctx, c.Client, "it", &notes)
	}
	var mu sync.Mutex
	masters, clustered := 0, false
	failed, err := eachMaster(ctx, cluster, func(ctx context.Context, node *redis.Client) error {
		info, err := node.Info(ctx).Result()
		mu.Lock()
		defer mu.Unlock()
		masters++
		clustered = clustered || fields(info)["cluster_enabled"] == "1"
		if Lost(err) {
			return err
		}
		return examine(ctx, node, dialed(node.Options().Addr), &notes)
	})
	notes.Kind = "one server"
	if clustered {
		notes.Kind = fmt.Sprintf("a Cluster of %d masters", masters)
	}
	if err == nil && len(failed) == masters {
		for _, err = range failed {
			break
		}
	}
	if err != nil {
		return notes, fmt.Errorf("redis: %w", err)
	}
	return notes, nil
}

// examine notes what one server says of itself.
func examine(ctx context.Context, client redis.UniversalClient, name string, notes *Notes) error {
	info, err := client.Info(ctx).Result()
	if Lost(err) {
		return err
	}
	if err != nil {
		return fmt.Errorf("INFO: %w", err)
	}
	says := fields(info)
	notes.Version = says["redis_version"]
	if version := says["valkey_version"]; version != "" {
		notes.Version = "Valkey " + version
	}
	if policy := says["maxmemory_policy"]; policy != "noeviction" && policy != "" && says["maxmemory"] != "0" {
		notes.note("%s drops keys when its memory is full (maxmemory_policy is %s): pools and limits would be lost one by one. Set noeviction", name, policy)
	}
	if major := says["redis_version"]; strings.HasPrefix(major, "5.") || strings.HasPrefix(major, "4.") || strings.HasPrefix(major, "6.0.") {
		notes.note("%s is Redis %s, and 6.2 or newer is needed", name, major)
	}
	forbidden, err := forbiddenCommands(ctx, client)
	if len(forbidden) > 0 {
		notes.note("%s forbids commands that are needed, or has renamed them: %s. See deploy/redis/users.acl", name, strings.Join(forbidden, ", "))
	}
	return err
}

func (n *Notes) note(format string, args ...any) {
	said := fmt.Sprintf(format, args...)
	n.Trouble = append(n.Trouble, said)
}
