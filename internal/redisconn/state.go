package redisconn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	answers, err := eachMaster(ctx, cluster, works)
	if err != nil {
		return 0, fmt.Errorf("redis: %w", err)
	}
	served := 0
	for _, key := range keys {
		if answers[nodeOf(ctx, cluster, key)] == nil {
			served++
		}
	}
	return served, errors.Join(failuresOf(answers)...)
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

// eachMaster asks all masters at once. The answers are by address; nil: it did not fail.
func eachMaster(ctx context.Context, cluster *redis.ClusterClient, ask func(context.Context, *redis.Client) error) (map[string]error, error) {
	var mu sync.Mutex
	answers := make(map[string]error)
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		err := rescue.Call(func() error { return ask(ctx, node) }) // in a goroutine of the library
		mu.Lock()
		defer mu.Unlock()
		answers[node.Options().Addr] = err
		return nil
	})
	return answers, err
}

// Notes are what an operator should know of the servers: what they are, and what
// stands in the way of the program or of its promises.
type Notes struct {
	Kind    string   // as "one server", "a Cluster of 3 masters"
	Version string   // the first of theirs by the alphabet, as they say themselves; empty: they do not
	Trouble []string // sentences without a full stop, by the alphabet; no secrets

	clustered bool // one of them says so
}

// Examine asks each master. An error: none of them is of use.
func (c *Conn) Examine(ctx context.Context) (Notes, error) {
	cluster, ok := c.Client.(*redis.ClusterClient)
	if !ok {
		notes, err := examine(ctx, c.Client, "it")
		notes.Kind = "a master behind Sentinel"
		return notes, err
	}
	var mu sync.Mutex
	var notes Notes
	answers, err := eachMaster(ctx, cluster, func(ctx context.Context, node *redis.Client) error {
		one, err := examine(ctx, node, dialed(node.Options().Addr))
		if err == nil {
			err = works(ctx, node)
		}
		mu.Lock()
		defer mu.Unlock()
		notes.add(one)
		return err
	})
	notes.Kind = "one server"
	if notes.clustered {
		notes.Kind = fmt.Sprintf("a Cluster of %d masters", len(answers))
	}
	failures := failuresOf(answers)
	for _, failure := range failures {
		notes.note("%s", failure)
	}
	slices.Sort(notes.Trouble)
	if len(failures) < len(answers) {
		return notes, nil
	}
	return notes, errors.Join(append(failures, err)...)
}

// failuresOf are the errors among the answers, by address.
func failuresOf(answers map[string]error) []error {
	var failures []error
	for _, addr := range slices.Sorted(maps.Keys(answers)) {
		if err := answers[addr]; err != nil {
			failures = append(failures, fmt.Errorf("redis node %s is of no use: %w", dialed(addr), err))
		}
	}
	return failures
}

// examine notes what one server says of itself.
func examine(ctx context.Context, client redis.UniversalClient, name string) (notes Notes, err error) {
	info, err := client.Info(ctx).Result()
	if err != nil {
		return notes, fmt.Errorf("INFO: %w", err)
	}
	says := fields(info)
	notes.clustered = says["cluster_enabled"] == "1"
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
	return notes, err
}

// add adds those of another server.
func (n *Notes) add(other Notes) {
	n.Trouble = append(n.Trouble, other.Trouble...)
	n.clustered = n.clustered || other.clustered
	if n.Version == "" || other.Version != "" && other.Version < n.Version {
		n.Version = other.Version
	}
}

func (n *Notes) note(format string, args ...any) {
	n.Trouble = append(n.Trouble, fmt.Sprintf(format, args...))
}
