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

// errNewEpoch reports that Redis may have lost data during the call, so the answer of the call is not valid.
var errNewEpoch = errors.New("redis was restarted")

// maxChecked is the maximum number of rules for which the epoch of their last check is kept. A rule without
// such an epoch costs one more call at its next check.
const maxChecked = 10_000

// epochs detects the epochs of each Redis node. An epoch is a period in which, as far as this process can
// observe, the node lost no data. It ends when the Redis process ends. It also ends when a Redis replica
// becomes the master, because the data of the replica may be older. This process notices both by a new
// connection or a moved hash slot.
type epochs struct {
	conn    *connection
	script  script       // lua/epoch.lua
	changes atomic.Int64 // number of new connections and moved hash slots of all nodes
	nodes   sync.Map     // *redis.Client -> *node

	// checked maps the key of a rule to the epoch in which the rule was last checked. After the
	// check, all that Redis stores of the rule is from this epoch.
	checked      sync.Map
	checkedCount atomic.Int64 // upper bound of the present number of keys in checked
}

// node is one Redis node.
type node struct {
	mu    sync.Mutex // held by the caller that reads the epoch from Redis; other callers wait for the result
	epoch atomic.Pointer[epoch]
}

// epoch is an epoch of a Redis node: a period in which it lost no data, as far as this process can observe.
type epoch struct {
	name    string
	changes int64 // value of epochs.changes before the epoch was read
}

// newEpochs returns epochs that know no node yet.
func newEpochs(conn *connection, epochScript script) *epochs {
	l := &epochs{conn: conn, script: epochScript}
	switch c := conn.client.(type) {
	case *redis.Client:
		l.watchNode(c)
	case *redis.ClusterClient:
		c.OnNewNode(func(one *redis.Client) { l.watchNode(one) })
	}
	return l
}

// watchNode returns the node of client. The first call makes the client count new connections and moved hash slots.
func (l *epochs) watchNode(client *redis.Client) *node {
	one, loaded := l.nodes.Load(client)
	if !loaded {
		one, loaded = l.nodes.LoadOrStore(client, &node{})
	}
	if !loaded {
		client.AddHook(changeHook{&l.changes})
	}
	return one.(*node) //nolint:forcetypeassert,errcheck // nothing else is in it
}

// currentEpoch returns the name of the present epoch (period without a loss of data) of the Redis node that stores the scope, a pool or
// limit set.
func (l *epochs) currentEpoch(ctx context.Context, scopeName string) (string, error) {
	client, err := l.nodeClient(ctx, scopeName)
	if err != nil {
		return "", unavailable(scopeName, err)
	}
	if client == nil {
		return "", nil
	}
	n := l.watchNode(client)
	if cached := n.epoch.Load(); cached != nil && cached.changes == l.changes.Load() {
		return cached.name, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		changes := l.changes.Load() // read before the call, which may itself need a new connection
		if cached := n.epoch.Load(); cached != nil && cached.changes == changes {
			return cached.name, nil
		}
		name, err := l.readEpoch(ctx, scopeName, client)
		if err != nil {
			return "", err
		}
		n.epoch.Store(&epoch{name, changes})
	}
}

// nodeClient returns the client of the Redis node that stores the scope (a pool or limit set). If the client of the limiter is neither a
// *redis.Client nor a *redis.ClusterClient, it returns nil; then no change of the epoch can be detected.
func (l *epochs) nodeClient(ctx context.Context, scopeName string) (*redis.Client, error) {
	if cluster, ok := l.conn.client.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, keyPrefix(scopeName))
	}
	client, _ := l.conn.client.(*redis.Client)
	return client, nil
}

// readEpoch reads the name of the epoch from the Redis node of client. If the node does not return it, the name is empty; then no change
// of the epoch can be detected. scopeName is used in the error.
func (l *epochs) readEpoch(ctx context.Context, scopeName string, client *redis.Client) (name string, err error) {
	var info string
	err = l.conn.breakers.Do(ctx, keyPrefix(scopeName), 1, func() (err error) {
		info, err = client.Info(ctx).Result()
		return err
	})
	if redisconn.Unanswered(err) {
		return "", unavailable(scopeName, err)
	}
	return parseEpoch(info), nil
}

// requireEpoch returns errNewEpoch if the present epoch of the Redis node that stores the scope (a pool or limit set) is not expected.
// Call it after a reply has arrived, to be sure that the reply is from this epoch.
func (l *epochs) requireEpoch(ctx context.Context, scopeName, expected string) error {
	current, err := l.currentEpoch(ctx, scopeName)
	if err == nil && current != expected {
		err = unavailable(scopeName, errNewEpoch)
	}
	return err
}

// dropOlderRules makes those rules of checks unknown to Redis whose counts in the scope (a pool or limit set) are from another epoch than
// current.
func (l *epochs) dropOlderRules(ctx context.Context, scopeName, current string, checks []Check) error {
	var keys []any
	for _, c := range checks {
		for _, item := range c.Items {
			key := item.Rule.keysIn(scopeName).ruleArg
			if checkedEpoch, _ := l.checked.Load(key); checkedEpoch != current && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	if _, err := l.conn.run(ctx, l.script, scopeName, keys, []any{current}); err != nil {
		return err
	}
	if l.checkedCount.Add(int64(len(keys))) > maxChecked {
		l.checked.Clear()
		l.checkedCount.Store(int64(len(keys)))
	}
	for _, key := range keys {
		l.checked.Store(key, current)
	}
	return nil
}

// parseEpoch returns the name of the epoch in info, the reply to INFO: a hash of the id of the Redis process and the id of its replication
// history. If the reply contains neither id, the name is empty.
func parseEpoch(info string) string {
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

// DialHook returns a hook that counts the new connections to Redis that next opens.
func (c changeHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err == nil {
			c.count.Add(1)
		}
		return conn, err
	}
}

// ProcessHook returns a hook that runs a command through next and counts the answers which say that a hash slot has moved.
func (c changeHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		c.countMoved(err)
		return err
	}
}

// ProcessPipelineHook returns a hook that runs a pipeline through next and counts the answers which say that a hash slot has moved.
func (c changeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			c.countMoved(cmd.Err())
		}
		return err
	}
}

// countMoved counts err, the error of a command, if it says that a hash slot has moved. err may be nil.
func (c changeHook) countMoved(err error) {
	if err == nil {
		return
	}
	if _, moved := redis.IsMovedError(err); moved {
		c.count.Add(1)
	}
}
