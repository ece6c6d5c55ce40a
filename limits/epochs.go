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

// errNewEpoch reports that Redis may have lost data during the call, so its answer is void.
var errNewEpoch = errors.New("redis was started anew")

// maxChecked is the maximum number of rules whose last checked epoch is kept. Another check of a rule costs a call.
const maxChecked = 10_000

// epochs distinguishes the epochs of each Redis node. An epoch is a period in which, as far as this process can
// observe, no data was lost. It ends when the Redis process ends, and when a Redis replica becomes the master,
// because its data may be older. Both cause a new connection or a moved hash slot.
type epochs struct {
	conn    *connection
	script  script       // lua/epoch.lua
	changes atomic.Int64 // number of new connections and moved hash slots of all nodes
	nodes   sync.Map     // *redis.Client -> *node

	// checked maps the key of a rule to the epoch in which the rule was last checked. After the
	// check, all that Redis stores of the rule is from this epoch.
	checked sync.Map
	many    atomic.Int64 // maximum number of keys in checked
}

// node is one Redis node.
type node struct {
	mu    sync.Mutex // held by the caller that asks for the epoch; other callers wait for its result
	epoch atomic.Pointer[epoch]
}

type epoch struct {
	name    string
	changes int64 // value of epochs.changes before the epoch was read
}

func newEpochs(conn *connection, s script) *epochs {
	l := &epochs{conn: conn, script: s}
	switch c := conn.client.(type) {
	case *redis.Client:
		l.watch(c)
	case *redis.ClusterClient:
		c.OnNewNode(func(one *redis.Client) { l.watch(one) })
	}
	return l
}

func (l *epochs) watch(client *redis.Client) *node {
	one, known := l.nodes.Load(client)
	if !known {
		one, known = l.nodes.LoadOrStore(client, &node{})
	}
	if !known {
		client.AddHook(changes{&l.changes})
	}
	return one.(*node) //nolint:forcetypeassert,errcheck // nothing else is in it
}

// of returns the name of the epoch of the Redis node that has the scope.
func (l *epochs) of(ctx context.Context, scope string) (string, error) {
	client, err := l.clientOf(ctx, scope)
	if err != nil {
		return "", unavailable(scope, err)
	}
	if client == nil {
		return "", nil
	}
	one := l.watch(client)
	if known := one.epoch.Load(); known != nil && known.changes == l.changes.Load() {
		return known.name, nil
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	for {
		changes := l.changes.Load() // read before the call, which may itself need a new connection
		if known := one.epoch.Load(); known != nil && known.changes == changes {
			return known.name, nil
		}
		name, err := l.ask(ctx, scope, client)
		if err != nil {
			return "", err
		}
		one.epoch.Store(&epoch{name, changes})
	}
}

func (l *epochs) clientOf(ctx context.Context, scope string) (*redis.Client, error) {
	if cluster, ok := l.conn.client.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, prefix(scope))
	}
	client, _ := l.conn.client.(*redis.Client)
	return client, nil
}

// ask reads the epoch of a Redis node. If the node does not return it, the name is empty: the epoch
// is assumed not to change.
func (l *epochs) ask(ctx context.Context, scope string, client *redis.Client) (name string, err error) {
	var info string
	err = l.conn.breakers.Do(ctx, prefix(scope), 1, func() (err error) {
		info, err = client.Info(ctx).Result()
		return err
	})
	if redisconn.Lost(err) {
		return "", unavailable(scope, err)
	}
	return epochIn(info), nil
}

// requireEpoch returns errNewEpoch if the current epoch of the scope's node is not epoch. Call it
// after a reply has arrived, to check that the reply belongs to epoch.
func (l *epochs) requireEpoch(ctx context.Context, scope, epoch string) error {
	now, err := l.of(ctx, scope)
	if err == nil && now != epoch {
		err = unavailable(scope, errNewEpoch)
	}
	return err
}

// dropOlderRules makes those rules of checks unknown that were filled in an epoch other than epoch.
func (l *epochs) dropOlderRules(ctx context.Context, scope, epoch string, checks []Check) error {
	var keys []any
	for _, c := range checks {
		for _, item := range c.Items {
			key := item.Rule.in(scope).rule
			if known, _ := l.checked.Load(key); known != epoch && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	if _, err := l.conn.run(ctx, l.script, scope, keys, []any{epoch}); err != nil {
		return err
	}
	if l.many.Add(int64(len(keys))) > maxChecked {
		l.checked.Clear()
		l.many.Store(int64(len(keys)))
	}
	for _, key := range keys {
		l.checked.Store(key, epoch)
	}
	return nil
}

// epochIn returns the name of the epoch in the reply to INFO: a hash of the id of the Redis process
// and the id of its replication history. If the reply contains neither id, the name is empty.
func epochIn(info string) string {
	var said []string
	for line := range strings.Lines(info) {
		if strings.HasPrefix(line, "run_id:") || strings.HasPrefix(line, "master_replid:") {
			said = append(said, strings.TrimSpace(line))
		}
	}
	if len(said) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(said, " ")))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

// changes counts the events that can begin a new epoch.
type changes struct{ n *atomic.Int64 }

// DialHook counts new connections.
func (c changes) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err == nil {
			c.n.Add(1)
		}
		return conn, err
	}
}

// ProcessHook counts moved hash slots.
func (c changes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		c.moved(err)
		return err
	}
}

// ProcessPipelineHook counts moved hash slots.
func (c changes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			c.moved(cmd.Err())
		}
		return err
	}
}

func (c changes) moved(err error) {
	if err == nil {
		return
	}
	if _, moved := redis.IsMovedError(err); moved {
		c.n.Add(1)
	}
}
