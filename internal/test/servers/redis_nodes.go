package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/test/await"
)

// nodeTimeout is the time after which a Cluster of the tests considers a node that does not answer as failed.
const nodeTimeout = time.Second

// RedisNodes is a Redis Cluster of several nodes. The masters are first, and a replica of each master follows in
// the same order. A node that was killed can be started again.
type RedisNodes struct {
	tb    testing.TB
	Nodes []*RedisServer
}

// StartRedisNodes starts a Cluster of three masters, each with a third of the hash slots. If replicas is true, it also starts a replica of
// each master. args are additional arguments of every node.
func StartRedisNodes(tb testing.TB, replicas bool, args ...string) *RedisNodes {
	tb.Helper()
	const masters = 3
	c := &RedisNodes{tb: tb}
	count := masters
	if replicas {
		count = 2 * masters
	}
	for range count {
		bus := strconv.Itoa(portNumber(tb, FreeAddr(tb)))
		c.Nodes = append(c.Nodes, startRedisAt(tb, FreeAddr(tb), ping, append([]string{
			"--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", strconv.Itoa(int(nodeTimeout.Milliseconds())),
			"--cluster-replica-validity-factor", "0",
		}, args...)))
	}
	c.joinCluster(masters)
	c.waitUntil("Cluster of all nodes", func() error { return c.checkAgreed(count) })
	return c
}

// joinCluster distributes the hash slots among the masters (the first masterCount nodes), and joins all nodes to one Cluster.
func (c *RedisNodes) joinCluster(masterCount int) {
	c.tb.Helper()
	ctx, share := c.tb.Context(), 16384/masterCount
	for i, node := range c.Nodes {
		c.withNode(node, func(client *redis.Client) error {
			err := client.Do(ctx, "cluster", "set-config-epoch", i+1).Err()
			if i < masterCount && err == nil {
				last := (i+1)*share - 1
				if i == masterCount-1 {
					last = 16383
				}
				err = client.ClusterAddSlotsRange(ctx, i*share, last).Err()
			}
			host, portText, _ := net.SplitHostPort(c.Nodes[0].Addr)
			if err == nil && i > 0 {
				err = client.Do(ctx, "cluster", "meet", host, portText, c.Nodes[0].argument("--cluster-port")).Err()
			}
			return err
		})
	}
	for i, node := range c.Nodes[masterCount:] {
		var master string
		c.withNode(c.Nodes[i], func(client *redis.Client) (err error) {
			master, err = client.Do(ctx, "cluster", "myid").Text()
			return err
		})
		c.waitUntil("replica", func() error {
			return withRedis(node.Addr, func(client *redis.Client) error { return client.ClusterReplicate(ctx, master).Err() })
		})
	}
}

// checkAgreed returns nil if each node knows all other nodes and reports that the Cluster works, and if the
// replicas have the data of their masters. count is the number of nodes.
func (c *RedisNodes) checkAgreed(count int) error {
	for _, node := range c.Nodes {
		err := withRedis(node.Addr, func(client *redis.Client) error {
			state := client.ClusterInfo(context.Background()).Val()
			role := client.Info(context.Background(), "replication").Val()
			if !strings.Contains(state, "cluster_state:ok") || !strings.Contains(state, fmt.Sprintf("cluster_known_nodes:%d\r", count)) ||
				strings.Contains(role, "role:slave") && !strings.Contains(role, "master_link_status:up") {
				return errors.New(state + role)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// MasterIndex returns the index of the master that owns this key.
func (c *RedisNodes) MasterIndex(key string) int {
	c.tb.Helper()
	for i, node := range c.Nodes {
		err := withRedis(node.Addr, func(client *redis.Client) error { return client.Type(context.Background(), key).Err() })
		if err == nil && c.IsMaster(i) {
			return i
		}
	}
	c.tb.Fatalf("no node has %s", key)
	return 0
}

// IsMaster reports whether node i states that it is a master.
func (c *RedisNodes) IsMaster(i int) bool {
	role := ""
	_ = withRedis(c.Nodes[i].Addr, func(client *redis.Client) error {
		role = client.Info(context.Background(), "replication").Val()
		return nil
	})
	return strings.Contains(role, "role:master")
}

// WaitFailedOver waits until a node other than the node with the index failedNode serves this key. It returns the index of that node.
func (c *RedisNodes) WaitFailedOver(key string, failedNode int) (newNode int) {
	c.tb.Helper()
	c.waitUntil("failover", func() error {
		for i, node := range c.Nodes {
			if i == failedNode || !c.IsMaster(i) {
				continue
			}
			if withRedis(node.Addr, func(client *redis.Client) error { return client.Type(context.Background(), key).Err() }) == nil {
				newNode = i
				return nil
			}
		}
		return errors.New("nobody has the key")
	})
	return newNode
}

// WaitAllNodesUp waits until all nodes run and the replicas have the data of their masters.
func (c *RedisNodes) WaitAllNodesUp() {
	c.tb.Helper()
	c.waitUntil("whole Cluster", func() error { return c.checkAgreed(len(c.Nodes)) })
}

// MoveSlot moves the hash slot of this key, with all keys in the slot, from one master to another, as a resharding
// does.
func (c *RedisNodes) MoveSlot(key string, from, to int) {
	c.tb.Helper()
	ctx := context.Background()
	ids := make([]string, len(c.Nodes))
	var slot int
	for i, node := range c.Nodes {
		_ = withRedis(node.Addr, func(client *redis.Client) error {
			ids[i] = client.Do(ctx, "cluster", "myid").Val().(string) //nolint:forcetypeassert,errcheck // a text, if it answers
			slot = int(client.ClusterKeySlot(ctx, key).Val())
			return nil
		})
	}
	setSlot := func(i int, args ...any) {
		c.withNode(c.Nodes[i], func(client *redis.Client) error {
			return client.Do(ctx, append([]any{"cluster", "setslot", slot}, args...)...).Err()
		})
	}
	setSlot(to, "importing", ids[from])
	setSlot(from, "migrating", ids[to])
	host, portText, _ := net.SplitHostPort(c.Nodes[to].Addr)
	c.waitUntil("empty hash slot", func() error {
		return withRedis(c.Nodes[from].Addr, func(client *redis.Client) error {
			keys, err := client.ClusterGetKeysInSlot(ctx, slot, 100).Result()
			for _, k := range keys {
				err = errors.Join(err, client.Migrate(ctx, host, portText, k, 0, time.Second).Err())
			}
			if err == nil && len(keys) > 0 {
				err = errors.New("keys are left")
			}
			return err
		})
	})
	for _, i := range []int{to, from} {
		setSlot(i, "node", ids[to])
	}
}

func (c *RedisNodes) withNode(node *RedisServer, call func(*redis.Client) error) {
	c.tb.Helper()
	if err := withRedis(node.Addr, call); err != nil {
		c.tb.Fatalf("redis node %s: %v", node.Addr, err)
	}
}

func (c *RedisNodes) waitUntil(what string, check func() error) {
	c.tb.Helper()
	waitUntil(c.tb, what, check)
}

func waitUntil(tb testing.TB, what string, check func() error) {
	tb.Helper()
	var err error
	await.True(tb, what, func() bool { err = check(); return err == nil }, &err)
}

// argument returns the value of an argument with which the server was started.
func (r *RedisServer) argument(name string) string {
	if i := slices.Index(r.args, name); i >= 0 {
		return r.args[i+1]
	}
	return ""
}
