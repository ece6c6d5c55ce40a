package redisconn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
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

// Notes are what an operator should know of the servers: what they are, what
// stands in the way of the program or of its promises, and what may cost time.
type Notes struct {
	Kind    string // as "one server", "a Cluster of 3 masters"
	Version string // the first of theirs by the alphabet, as they say themselves; empty: they do not
	Trouble []Note // by the alphabet
	Hints   []Note // of what breaks nothing; by the alphabet

	clustered bool // one of them says so
}

// Note is a sentence without a full stop; it holds no secrets.
type Note struct {
	About Subject
	Says  string
}

// Subject is what a note is about.
type Subject string

// The subjects.
const (
	Node        Subject = "node"
	Version     Subject = "version"
	Eviction    Subject = "eviction"
	Memory      Subject = "memory"
	Persistence Subject = "persistence"
	Commands    Subject = "commands"
)

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
		notes.trouble(Node, "%s", failure)
	}
	for _, list := range [][]Note{notes.Trouble, notes.Hints} {
		slices.SortFunc(list, func(a, b Note) int { return strings.Compare(a.Says, b.Says) })
	}
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
	if major := says["redis_version"]; strings.HasPrefix(major, "5.") || strings.HasPrefix(major, "4.") || strings.HasPrefix(major, "6.0.") {
		notes.trouble(Version, "%s is Redis %s, and 6.2 or newer is needed", name, major)
	}
	notes.room(says, name)
	notes.kept(says, name)
	forbidden, err := forbiddenCommands(ctx, client)
	if len(forbidden) > 0 {
		notes.trouble(Commands, "%s forbids commands that are needed, or has renamed them: %s. See deploy/redis/users.acl", name, strings.Join(forbidden, ", "))
	}
	return notes, err
}

// nearlyFull is the share of its memory, in tenths, from which a server is said to be full soon.
const nearlyFull = 8

// room notes what becomes of keys when the memory is full, and whether it is soon.
func (n *Notes) room(says map[string]string, name string) {
	limited := says["maxmemory"] != "0" && says["maxmemory"] != ""
	if policy := says["maxmemory_policy"]; policy != "noeviction" && policy != "" {
		if limited {
			n.trouble(Eviction, "%s drops keys when its memory is full (maxmemory_policy is %s): pools and limits would be lost one by one. Set noeviction", name, policy)
		} else {
			n.hint(Eviction, "%s has no limit of memory; with one it would drop keys (maxmemory_policy is %s)", name, policy)
		}
	}
	used, _ := strconv.ParseInt(says["used_memory"], 10, 64)
	if most, _ := strconv.ParseInt(says["maxmemory"], 10, 64); limited && used > most/10*nearlyFull {
		n.hint(Memory, "%s uses %s of %s", name, says["used_memory_human"], says["maxmemory_human"])
	}
}

// kept notes whether the data is there after a restart. (Which snapshots are made only CONFIG
// tells, which the program has no right to.)
func (n *Notes) kept(says map[string]string, name string) {
	switch {
	case says["aof_enabled"] == "1" && says["aof_last_write_status"] == "err":
		n.hint(Persistence, "%s cannot write its log (aof_last_write_status is err): look at its disk", name)
	case says["aof_enabled"] == "1":
	case says["rdb_last_bgsave_status"] == "err":
		n.hint(Persistence, "%s cannot write its snapshot (rdb_last_bgsave_status is err): look at its disk", name)
	default:
		n.hint(Persistence, "%s keeps no log (appendonly is no): a restart forgets all since its last snapshot, if it makes any", name)
	}
}

// add adds those of another server.
func (n *Notes) add(other Notes) {
	n.Trouble, n.Hints = append(n.Trouble, other.Trouble...), append(n.Hints, other.Hints...)
	n.clustered = n.clustered || other.clustered
	if n.Version == "" || other.Version != "" && other.Version < n.Version {
		n.Version = other.Version
	}
}

func (n *Notes) trouble(about Subject, format string, args ...any) {
	n.Trouble = append(n.Trouble, Note{about, fmt.Sprintf(format, args...)})
}

func (n *Notes) hint(about Subject, format string, args ...any) {
	n.Hints = append(n.Hints, Note{about, fmt.Sprintf(format, args...)})
}
