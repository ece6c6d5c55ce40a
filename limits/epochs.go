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

// errNewEpoch says that Redis may have lost data while it was asked, so the answer is void.
var errNewEpoch = errors.New("redis was started anew")

// maxChecked limits for how many rules the epoch of the last check is kept. To check a rule again costs a call.
const maxChecked = 10_000

// epochs tells the epochs of Redis apart, of each node of a Cluster. An epoch is the time
// since data was last lost, as far as can be told: it ends with the process, and when a
// replica becomes the master, since the next one may have older data. Neither happens
// without a new connection, or a hash slot that is found elsewhere.
type epochs struct {
	conn    *connection
	script  script       // epoch.lua
	changes atomic.Int64 // new connections and moved slots, of all nodes
	nodes   sync.Map     // *redis.Client -> *node

	// checked maps the key of a rule to the epoch in which it was checked last. From then on, what Redis knows
	// of the rule is of that epoch.
	checked sync.Map
	many    atomic.Int64 // keys in checked, at most
}

// node is one Redis.
type node struct {
	mu    sync.Mutex // held by the caller that asks; the others wait for its answer
	epoch atomic.Pointer[epoch]
}

type epoch struct {
	name    string
	changes int64 // as of so many
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

// of names the epoch of the Redis that a scope is in.
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
		changes := l.changes.Load() // before asking, which may need a connection, too
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

// ask asks a Redis for its epoch. If it does not say, the epoch is taken not to change.
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

// requireEpoch returns errNewEpoch if the Redis of a scope is in another epoch than epoch. Call it after
// the reply that it is about has arrived.
func (l *epochs) requireEpoch(ctx context.Context, scope, epoch string) error {
	now, err := l.of(ctx, scope)
	if err == nil && now != epoch {
		err = unavailable(scope, errNewEpoch)
	}
	return err
}

// dropOlderRules makes the rules of checks unknown that were filled in another epoch of Redis than epoch.
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

// epochIn names the epoch in what INFO says: the process, and the history of its data.
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

// changes counts what may begin an epoch.
type changes struct{ n *atomic.Int64 }

// DialHook counts connections.
func (c changes) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err == nil {
			c.n.Add(1)
		}
		return conn, err
	}
}

// ProcessHook counts slots that are elsewhere.
func (c changes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		c.moved(err)
		return err
	}
}

// ProcessPipelineHook counts slots that are elsewhere.
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
