package limits

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// errNewEpoch means that Redis may have lost data during a call, so the answer to the call is not valid.
var errNewEpoch = errors.New("redis was restarted")

// maxChecked is the maximum number of rules whose last epoch is kept. If the last epoch of a rule is not kept, the next check of the rule costs
// one more call.
const maxChecked = 10_000

// epochs detects the epochs of each Redis node. An epoch is a period in which the node lost no data. It ends when the Redis process ends,
// or when a replica whose data may be older becomes the master. A new connection or a moved hash slot is a sign that an epoch may have ended.
type epochs struct {
	conn    *connection
	script  script       // lua/epoch.lua
	changes atomic.Int64 // number of new connections and moved hash slots of all nodes
	nodes   sync.Map     // *redis.Client -> *node

	// checked maps the key of a rule to the epoch of its last check. All data that Redis stores of the rule is from this epoch.
	checked      sync.Map
	checkedCount atomic.Int64 // upper bound of the present number of keys in checked
}

type node struct {
	mu    sync.Mutex // locked while one caller reads the epoch from Redis; other callers wait for the result
	epoch atomic.Pointer[epoch]
}

type epoch struct {
	name    string
	changes int64 // value of epochs.changes before the epoch was read
}

func newEpochs(conn *connection, epochScript script) *epochs {
	e := &epochs{conn: conn, script: epochScript}
	switch c := conn.client.(type) {
	case *redis.Client:
		e.watchNode(c)
	case *redis.ClusterClient:
		c.OnNewNode(func(one *redis.Client) { e.watchNode(one) })
	}
	return e
}

// watchNode returns the node of client. At its first call for client, it makes the client count new connections and moved hash slots.
func (e *epochs) watchNode(client *redis.Client) *node {
	one, loaded := e.nodes.Load(client)
	if !loaded {
		one, loaded = e.nodes.LoadOrStore(client, &node{})
	}
	if !loaded {
		client.AddHook(changeHook{&e.changes})
	}
	return one.(*node) //nolint:errcheck // e.nodes has no other values
}

// currentEpoch returns the name of the present epoch of the Redis node that stores the scope.
func (e *epochs) currentEpoch(ctx context.Context, scopeName string) (name string, err error) {
	client, err := e.nodeClient(ctx, scopeName)
	if err != nil {
		return "", wrapUnavailable(scopeName, err)
	}
	if client == nil {
		return "", nil
	}
	n := e.watchNode(client)
	if cached := n.epoch.Load(); cached != nil && cached.changes == e.changes.Load() {
		return cached.name, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		changes := e.changes.Load() // read before the call, which may itself need a new connection
		if cached := n.epoch.Load(); cached != nil && cached.changes == changes {
			return cached.name, nil
		}
		name, err := e.readEpoch(ctx, scopeName, client)
		if err != nil {
			return "", err
		}
		n.epoch.Store(&epoch{name, changes})
	}
}

// nodeClient returns the client of the Redis node that stores the scope. It returns nil for a client of another kind, for which no change
// of the epoch can be detected.
func (e *epochs) nodeClient(ctx context.Context, scopeName string) (*redis.Client, error) {
	if cluster, ok := e.conn.client.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, keyPrefix(scopeName))
	}
	client, _ := e.conn.client.(*redis.Client)
	return client, nil
}

// readEpoch reads the name of the epoch from the Redis node of client. If the name is empty, no change of the epoch can be detected.
func (e *epochs) readEpoch(ctx context.Context, scopeName string, client *redis.Client) (name string, err error) {
	var info string
	err = e.conn.breakers.Do(ctx, keyPrefix(scopeName), 1, func() (err error) {
		info, err = client.Info(ctx).Result()
		return err
	})
	if redisconn.IsUnanswered(err) {
		return "", wrapUnavailable(scopeName, err)
	}
	return parseEpochName(info), nil
}

// requireEpoch returns errNewEpoch if expected is not the present epoch. If it returns nil after a reply was received, the reply is from the
// expected epoch.
func (e *epochs) requireEpoch(ctx context.Context, scopeName, expected string) error {
	current, err := e.currentEpoch(ctx, scopeName)
	if err == nil && current != expected {
		err = wrapUnavailable(scopeName, errNewEpoch)
	}
	return err
}

// forgetOutdatedRules removes from Redis each rule of checks whose counts are not from the current epoch.
func (e *epochs) forgetOutdatedRules(ctx context.Context, scopeName, current string, checks []Check) error {
	var keys []any
	for _, c := range checks {
		for _, item := range c.Items {
			key := item.Rule.keysInScope(scopeName).ruleArg
			if checkedEpoch, _ := e.checked.Load(key); checkedEpoch != current && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	if _, err := e.conn.runScript(ctx, e.script, scopeName, keys, []any{current}); err != nil {
		return err
	}
	if e.checkedCount.Add(int64(len(keys))) > maxChecked {
		e.checked.Clear()
		e.checkedCount.Store(int64(len(keys)))
	}
	for _, key := range keys {
		e.checked.Store(key, current)
	}
	return nil
}

// parseEpochName returns the name of the epoch from info, a reply to INFO. The name is a hash of the ids of the Redis process and of its
// replication history. The name is "" if both ids are missing in the reply.
func parseEpochName(info string) string {
	var ids []string
	for line := range strings.Lines(info) {
		if strings.HasPrefix(line, "run_id:") || strings.HasPrefix(line, "master_replid:") {
			ids = append(ids, strings.TrimSpace(line))
		}
	}
	if len(ids) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(ids, " ")))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

// changeHook counts the events that can begin a new epoch.
type changeHook struct{ count *atomic.Int64 }

// DialHook returns a hook that counts the connections that next opens.
func (c changeHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err == nil {
			c.count.Add(1)
		}
		return conn, err
	}
}

// ProcessHook returns a hook that runs a command through next, and counts answers which say that a hash slot has moved.
func (c changeHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		c.countIfSlotMoved(err)
		return err
	}
}

// ProcessPipelineHook returns a hook that runs a pipeline through next, and counts answers which say that a hash slot has moved.
func (c changeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			c.countIfSlotMoved(cmd.Err())
		}
		return err
	}
}

func (c changeHook) countIfSlotMoved(cmdErr error) {
	if cmdErr == nil {
		return
	}
	if _, moved := redis.IsMovedError(cmdErr); moved {
		c.count.Add(1)
	}
}
