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

// CountServedKeys returns how many of keys are on a node that works. Its error joins the errors of the nodes that do not work.
func (c *Conn) CountServedKeys(ctx context.Context, keys []string) (served int, err error) {
	cluster, ok := c.Client.(*redis.ClusterClient)
	if !ok {
		if err := c.Client.Ping(ctx).Err(); err != nil {
			return 0, fmt.Errorf("redis: %w", err)
		}
		return len(keys), nil
	}
	answers, err := askEachMaster(ctx, cluster, checkNode)
	if err != nil {
		return 0, fmt.Errorf("redis: %w", err)
	}
	for _, key := range keys {
		if answers[findNodeAddr(ctx, cluster, key)] == nil {
			served++
		}
	}
	return served, errors.Join(collectFailures(answers)...)
}

// checkNode returns nil if node executes commands for its keys. A PING is not enough to know this, because a node that is cut off from its
// Cluster answers, but refuses commands.
func checkNode(ctx context.Context, node *redis.Client) error {
	if err := node.Ping(ctx).Err(); err != nil {
		return err
	}
	info, err := node.ClusterInfo(ctx).Result()
	if IsUnanswered(err) {
		return err
	}
	if state := parseInfo(info)["cluster_state"]; state != "" && state != "ok" {
		return fmt.Errorf("cluster_state is %s: hash slots are not served, or other nodes not reached", state)
	}
	return nil
}

// askEachMaster calls ask for all masters concurrently. The map holds the results by address. A nil result means success.
func askEachMaster(ctx context.Context, cluster *redis.ClusterClient, ask func(context.Context, *redis.Client) error) (resultByAddr map[string]error, err error) {
	var mu sync.Mutex
	resultByAddr = make(map[string]error)
	err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		err := rescue.Call(func() error { return ask(ctx, node) }) // the library runs this in its own goroutine
		mu.Lock()
		defer mu.Unlock()
		resultByAddr[node.Options().Addr] = err
		return nil
	})
	return resultByAddr, err
}

// Notes contains facts that an operator should know about the servers: their type, what keeps the program from working or from keeping its
// promises, and what may cost time.
type Notes struct {
	Kind    string // for example "one server", "a Cluster of 3 masters"
	Version string // the alphabetically first version that the servers report; empty if they report none
	Trouble []Note // what keeps the program from working or from keeping its promises, sorted by text
	Hints   []Note // harmless findings, sorted by text

	clustered bool // at least one server reports cluster mode
}

// Note is a sentence without a full stop. It contains no secrets.
type Note struct {
	About Subject
	Text  string
}

// Subject is the topic of a note.
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

// Examine asks each master node of Redis for its state and returns what an operator should know. It returns an error if no master works.
func (c *Conn) Examine(ctx context.Context) (Notes, error) {
	cluster, ok := c.Client.(*redis.ClusterClient)
	if !ok {
		notes, err := examineServer(ctx, c.Client, "it")
		notes.Kind = "a master behind Sentinel"
		return notes, err
	}
	var mu sync.Mutex
	var notes Notes
	answers, err := askEachMaster(ctx, cluster, func(ctx context.Context, node *redis.Client) error {
		one, err := examineServer(ctx, node, withoutLoopbackSuffix(node.Options().Addr))
		if err == nil {
			err = checkNode(ctx, node)
		}
		mu.Lock()
		defer mu.Unlock()
		notes.merge(one)
		return err
	})
	notes.Kind = "one server"
	if notes.clustered {
		notes.Kind = fmt.Sprintf("a Cluster of %d masters", len(answers))
	}
	failures := collectFailures(answers)
	for _, failure := range failures {
		notes.addTrouble(Node, "%s", failure)
	}
	for _, list := range [][]Note{notes.Trouble, notes.Hints} {
		slices.SortFunc(list, func(a, b Note) int { return strings.Compare(a.Text, b.Text) })
	}
	if len(failures) < len(answers) {
		return notes, nil
	}
	return notes, errors.Join(append(failures, err)...)
}

func collectFailures(resultByAddr map[string]error) (failures []error) {
	for _, addr := range slices.Sorted(maps.Keys(resultByAddr)) {
		if err := resultByAddr[addr]; err != nil {
			failures = append(failures, fmt.Errorf("redis node %s is not usable: %w", withoutLoopbackSuffix(addr), err))
		}
	}
	return failures
}

// examineServer returns notes about the server of client. The texts of the notes call the server serverName.
func examineServer(ctx context.Context, client redis.UniversalClient, serverName string) (notes Notes, err error) {
	info, err := client.Info(ctx).Result()
	if err != nil {
		return notes, fmt.Errorf("reading INFO: %w", err)
	}
	infoFields := parseInfo(info)
	notes.clustered = infoFields["cluster_enabled"] == "1"
	notes.Version = infoFields["redis_version"]
	if version := infoFields["valkey_version"]; version != "" {
		notes.Version = "Valkey " + version
	}
	if major := infoFields["redis_version"]; strings.HasPrefix(major, "5.") || strings.HasPrefix(major, "4.") || strings.HasPrefix(major, "6.0.") {
		notes.addTrouble(Version, "%s is Redis %s; 6.2 or newer is needed", serverName, major)
	}
	notes.addMemoryNotes(infoFields, serverName)
	notes.addPersistenceNotes(infoFields, serverName)
	forbidden, err := findForbiddenCommands(ctx, client)
	if len(forbidden) > 0 {
		notes.addTrouble(Commands, "%s forbids or has renamed required commands: %s. See deploy/redis/users.acl", serverName, strings.Join(forbidden, ", "))
	}
	return notes, err
}

// nearlyFull is the used part of the memory limit, in tenths, above which a server is reported.
const nearlyFull = 8

// addMemoryNotes adds a note if the server drops keys when its memory is full, and a note if its memory is nearly full.
func (n *Notes) addMemoryNotes(infoFields map[string]string, serverName string) {
	limited := infoFields["maxmemory"] != "0" && infoFields["maxmemory"] != ""
	if policy := infoFields["maxmemory_policy"]; policy != "noeviction" && policy != "" {
		if limited {
			n.addTrouble(Eviction, "%s drops keys when its memory is full (maxmemory_policy is %s): pools and limits would be lost one by one. Set noeviction", serverName, policy)
		} else {
			n.addHint(Eviction, "%s has no memory limit; with a limit it would drop keys (maxmemory_policy is %s)", serverName, policy)
		}
	}
	used, _ := strconv.ParseInt(infoFields["used_memory"], 10, 64)
	if maxBytes, _ := strconv.ParseInt(infoFields["maxmemory"], 10, 64); limited && used > maxBytes/10*nearlyFull {
		n.addHint(Memory, "%s uses %s of %s", serverName, infoFields["used_memory_human"], infoFields["maxmemory_human"])
	}
}

// addPersistenceNotes adds a note if the data may not survive a restart. It does not know the schedule of snapshots, because only the command
// CONFIG reports it, and the program needs no right to use CONFIG.
func (n *Notes) addPersistenceNotes(infoFields map[string]string, serverName string) {
	switch {
	case infoFields["aof_enabled"] == "1" && infoFields["aof_last_write_status"] == "err":
		n.addHint(Persistence, "%s cannot write its log (aof_last_write_status is err): check its disk", serverName)
	case infoFields["aof_enabled"] == "1":
	case infoFields["rdb_last_bgsave_status"] == "err":
		n.addHint(Persistence, "%s cannot write its snapshot (rdb_last_bgsave_status is err): check its disk", serverName)
	default:
		n.addHint(Persistence, "%s keeps no log (appendonly is no): a restart loses all changes since its last snapshot, if it writes any", serverName)
	}
}

func (n *Notes) merge(other Notes) {
	n.Trouble, n.Hints = append(n.Trouble, other.Trouble...), append(n.Hints, other.Hints...)
	n.clustered = n.clustered || other.clustered
	if n.Version == "" || other.Version != "" && other.Version < n.Version {
		n.Version = other.Version
	}
}

// addTrouble adds a note about a subject to Trouble. The text is formatted as by fmt.Sprintf.
func (n *Notes) addTrouble(about Subject, format string, args ...any) {
	n.Trouble = append(n.Trouble, Note{about, fmt.Sprintf(format, args...)})
}

// addHint adds a note to Hints, like addTrouble.
func (n *Notes) addHint(about Subject, format string, args ...any) {
	n.Hints = append(n.Hints, Note{about, fmt.Sprintf(format, args...)})
}
