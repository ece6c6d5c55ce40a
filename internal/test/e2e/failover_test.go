package e2e

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
)

// useRedis makes the replicas use the Redis at this URL instead of the single server.
func (x *experiment) useRedis(url string) {
	x.t.Helper()
	options, err := redisconn.ParseURL(url)
	must.Succeed(x.t, err)
	conn := redisconn.Open(options)
	x.t.Cleanup(func() { _ = conn.Close() })
	// The client must learn the other nodes of the Cluster before the node in the URL fails.
	must.Succeed(x.t, conn.Client.Ping(x.t.Context()).Err())
	x.redisURL, x.slots = url, slots.New(conn.Client)
}

// clusterFaults returns the faults of a Redis Cluster of three masters and three replicas. The dispatcher knows
// only one address of it.
func (x *experiment) clusterFaults() []fault {
	c, key := x.cluster, slots.NodeKey(pool)
	move := fault{"the hash slot of the pool moves to another master", func(context.Context) error {
		from := c.MasterIndex(key)
		to := (from + 1) % len(c.Nodes)
		for !c.IsMaster(to) {
			to = (to + 1) % len(c.Nodes)
		}
		c.MoveSlot(key, from, to)
		return nil
	}}
	return []fault{
		{"the master of the pool is killed", func(context.Context) error {
			gone := c.MasterIndex(key)
			c.Nodes[gone].Kill()
			began := time.Now()
			c.WaitFailedOver(key, gone)
			x.t.Logf("the Cluster failed over after %.1f s", time.Since(began).Seconds())
			return nil
		}},
		move,
		{"all nodes are back", func(context.Context) error {
			for _, node := range c.Nodes {
				select {
				case <-node.Exited():
					node.Start()
				default:
				}
			}
			c.WaitAllNodesUp()
			return nil
		}},
		{"the master of the pool stands still", func(context.Context) error {
			gone := c.MasterIndex(key)
			c.Nodes[gone].Pause()
			x.t.Cleanup(c.Nodes[gone].Resume)
			c.WaitFailedOver(key, gone)
			return nil
		}},
	}
}

// sentinelFaults returns the faults of a Redis with a master, a replica and three Sentinels.
func (x *experiment) sentinelFaults() []fault {
	s := x.sentinel
	return []fault{
		{"the master is killed", func(context.Context) error {
			s.Servers[0].Kill()
			s.WaitMaster(1)
			return nil
		}},
		{"the old master is back", func(context.Context) error {
			s.Servers[0].Start()
			s.WaitReplica(0)
			return nil
		}},
		{"the Sentinels switch by command", func(context.Context) error {
			s.FailOver()
			s.WaitMaster(0)
			return nil
		}},
	}
}

func prepareCluster(x *experiment) {
	x.cluster = servers.StartRedisNodes(x.t, true)
	x.useRedis(x.cluster.Nodes[0].URL())
}

func prepareSentinel(x *experiment) {
	x.sentinel = servers.StartSentinels(x.t, "")
	x.useRedis(x.sentinel.URL())
}
