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

// errNewEpoch reports that Redis may have lost data during the call. Then the answer to the call is not valid.
var errNewEpoch = errors.New("redis was restarted")

// maxChecked is the maximum number of rules for which epochs keeps the epoch of the last check. A rule without a kept epoch costs one more
// call at its next check.
const maxChecked = 10_000

// epochs detects the epochs of each Redis node. An epoch is a period in which the node lost no data, according to what this process can
// observe. An epoch ends when the Redis process ends. It also ends when a Redis replica becomes the master, because the data of the replica
// may be older. A new connection or a moved hash slot shows this process that one of these may have happened.
type epochs struct {
	conn    *connection
	script  script       // lua/epoch.lua
	changes atomic.Int64 // number of new connections and moved hash slots of all nodes
	nodes   sync.Map     // *redis.Client -> *node

	// checked maps the key of a rule to the epoch of the last check of this rule. After this check, all data that Redis stores of the rule
	// is from this epoch.
	checked      sync.Map
	checkedCount atomic.Int64 // upper bound of the present number of keys in checked
}

// node is one Redis node.
type node struct {
	mu    sync.Mutex // locked while one caller reads the epoch from Redis; other callers wait for the result
	epoch atomic.Pointer[epoch]
}

// epoch is an epoch of a Redis node: a period in which the node lost no data, according to what this process can observe.
type epoch struct {
	name    string
	changes int64 // value of epochs.changes before the epoch was read
}

// newEpochs returns an epochs without nodes.
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

// nodeClient returns the client of the Redis node that stores the scope (a pool or limit set). It returns nil if the client of the limiter
// is neither a *redis.Client nor a *redis.ClusterClient. Then no change of the epoch can be detected.
func (l *epochs) nodeClient(ctx context.Context, scopeName string) (*redis.Client, error) {
	if cluster, ok := l.conn.client.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, keyPrefix(scopeName))
	}
	client, _ := l.conn.client.(*redis.Client)
	return client, nil
}

// readEpoch reads the name of the epoch from the Redis node of client. If the node does not return the name, the result is empty; then no
// change of the epoch can be detected. scopeName is used in the error.
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

// requireEpoch returns errNewEpoch if expected is not the present epoch of the Redis node that stores the scope (a pool or limit set). Call
// it after a reply has arrived. If it returns nil, the reply is from the expected epoch.
func (l *epochs) requireEpoch(ctx context.Context, scopeName, expected string) error {
	current, err := l.currentEpoch(ctx, scopeName)
	if err == nil && current != expected {
		err = unavailable(scopeName, errNewEpoch)
	}
	return err
}

// dropOlderRules makes rules of checks unknown to Redis if their counts are from another epoch than current. scopeName is the pool or limit
// set of the counts.
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

// parseEpoch returns the name of the epoch in info, the reply to the command INFO. The name is a hash of two ids in the reply: the id of
// the Redis process and the id of its replication history. If the reply contains neither id, the name is empty.
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

// DialHook returns a hook that opens connections with next and counts them.
func (c changeHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err == nil {
			c.count.Add(1)
		}
		return conn, err
	}
}

// ProcessHook returns a hook that runs a command with next. It counts the answer if the answer says that a hash slot has moved.
func (c changeHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		c.countMoved(err)
		return err
	}
}

// ProcessPipelineHook returns a hook that runs a pipeline with next. It counts each answer that says that a hash slot has moved.
func (c changeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			c.countMoved(cmd.Err())
		}
		return err
	}
}

// countMoved counts err if it says that a hash slot has moved. err is the error of a command and may be nil.
func (c changeHook) countMoved(err error) {
	if err == nil {
		return
	}
	if _, moved := redis.IsMovedError(err); moved {
		c.count.Add(1)
	}
}
