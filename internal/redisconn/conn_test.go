package redisconn_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func openConn(t *testing.T, url string) *redisconn.Conn {
	t.Helper()
	options, err := redisconn.ParseURL(url)
	must.Succeed(t, err)
	c := redisconn.Open(options)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// waitUntilWritable tries to set a key until this succeeds. It returns how long this took.
func waitUntilWritable(t *testing.T, c *redisconn.Conn, key string) time.Duration {
	t.Helper()
	began := time.Now()
	var err error
	await.True(t, "a write of "+key, func() bool {
		err = c.Client.Set(t.Context(), key, "1", 0).Err()
		return err == nil
	}, &err)
	return time.Since(began)
}

func setManyKeys(t *testing.T, c *redisconn.Conn) {
	t.Helper()
	for i := range 30 { // keys of all nodes
		if err := c.Client.Set(t.Context(), fmt.Sprint("key", i), "1", 0).Err(); err != nil {
			t.Errorf("key %d: %v", i, err)
		}
	}
}

// TestAClusterBehindOneAddressFailsOver checks a client that knows one address of a Cluster: this is enough, even
// if the node at this address fails later.
func TestAClusterBehindOneAddressFailsOver(t *testing.T) {
	t.Parallel()
	cluster := servers.StartRedisNodes(t, true)
	gone := cluster.MasterIndex("key0")
	c := openConn(t, cluster.Nodes[gone].URL())
	setManyKeys(t, c)
	cluster.Nodes[gone].Kill()
	killed := time.Now()
	cluster.WaitFailedOver("key0", gone)
	elected := time.Since(killed)
	took := waitUntilWritable(t, c, "key0")
	t.Logf("elected %.1f s after the kill, used %.1f s later", elected.Seconds(), took.Seconds())
	if took > 20*time.Second { // without the hook, the library rereads the topology once a minute
		t.Errorf("a key of a killed master works after %s", took)
	}
	setManyKeys(t, c)
}

// TestAServerBecomesACluster checks an address at which a single server is replaced with a Cluster: the client
// recognizes the Cluster.
func TestAServerBecomesACluster(t *testing.T) {
	t.Parallel()
	cluster := servers.StartRedisNodes(t, false)
	single := servers.StartRedis(t)
	way := servers.NewProxy(t, single.Addr)
	c := openConn(t, "redis://"+way.Addr+"/0")
	setManyKeys(t, c)
	way.PointTo(cluster.Nodes[0].Addr)
	for i := range 30 {
		waitUntilWritable(t, c, fmt.Sprint("key", i))
	}
}

// TestRedisMayComeLater checks a Redis server that is down when the program starts: its type (single or Cluster) is
// recognized later.
func TestRedisMayComeLater(t *testing.T) {
	t.Parallel()
	server := servers.StartRedisCluster(t)
	server.Stop()
	c := openConn(t, server.URL())
	if err := c.Client.Set(t.Context(), "key", "1", 0).Err(); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a server that is down: %v", err)
	}
	server.Start()
	waitUntilWritable(t, c, "key")
}

func TestDatabaseIsSelected(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t)
	second, first := openConn(t, server.URL()+"/2"), openConn(t, server.URL())
	must.Succeed(t, second.Client.Set(t.Context(), "key", "1", 0).Err())
	if n := first.Client.Exists(t.Context(), "key").Val(); n != 0 {
		t.Error("the key is in the first database")
	}
	cluster := openConn(t, servers.StartRedisCluster(t).URL()+"/2")
	if err := cluster.Client.Set(t.Context(), "key", "1", 0).Err(); err == nil || !strings.Contains(err.Error(), "cluster mode") {
		t.Errorf("database 2 of a Cluster: %v", err)
	}
}

// TestSentinelFailsOver checks a failover by Sentinels that have a password of their own.
func TestSentinelFailsOver(t *testing.T) {
	t.Parallel()
	s := servers.StartSentinels(t, "sent&inel")
	c := openConn(t, s.URL()+"?sentinel_password=sent%26inel")
	waitUntilWritable(t, c, "key")
	s.Servers[0].Kill()
	s.WaitMaster(1)
	t.Logf("used %.1f s after the switch", waitUntilWritable(t, c, "key").Seconds())
}

// TestABreakerIsOfANode checks that each node of a Cluster has its own breaker: a node that does not answer does
// not block the keys of the other nodes.
func TestABreakerIsOfANode(t *testing.T) {
	t.Parallel()
	cluster := servers.StartRedisNodes(t, false)
	c := openConn(t, cluster.Nodes[0].URL())
	all := redisconn.NewBreakers(c.Client, time.Now)
	of := make(map[redisconn.Breaker]bool)
	for i := range 30 {
		of[all.BreakerOf(t.Context(), fmt.Sprint("key", i))] = true
	}
	if len(of) != len(cluster.Nodes) {
		t.Errorf("%d breakers for %d nodes", len(of), len(cluster.Nodes))
	}
}

// TestNothingIsAskedAfterClose checks a client whose library reads the topology just after Close: no connection is
// opened.
func TestNothingIsAskedAfterClose(t *testing.T) {
	t.Parallel()
	c := openConn(t, servers.StartRedis(t).URL())
	waitUntilWritable(t, c, "key")
	must.Succeed(t, c.Close())
	if err := c.ReadTopology(t.Context()); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("%v, want ErrClosed", err)
	}
}

// TestNobodyIsAskedTwice checks a server that is known under several names: it is asked only once.
func TestNobodyIsAskedTwice(t *testing.T) {
	t.Parallel()
	cluster := servers.StartRedisNodes(t, false)
	for url, nodes := range map[string]int{servers.StartRedis(t).URL(): 1, cluster.Nodes[0].URL(): 3} {
		c := openConn(t, url)
		waitUntilWritable(t, c, "key")
		if asked := c.DialedNodes(); len(asked) != nodes {
			t.Errorf("%v are asked of %d nodes", asked, nodes)
		}
	}
}

// TestWhatIsLostIsSentOnce checks a command or a pipeline that is not answered: the library never sends it again,
// because only the caller knows whether it may be executed twice.
func TestWhatIsLostIsSentOnce(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t)
	way := servers.NewProxy(t, server.Addr)
	lossy, sure := openConn(t, "redis://"+way.Addr), openConn(t, server.URL())
	for name, send := range map[string]func(key string) error{
		"alone": func(key string) error { return lossy.Client.Incr(t.Context(), key).Err() },
		"in a pipeline": func(key string) error {
			_, err := lossy.Client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				p.Incr(t.Context(), key)
				return p.Incr(t.Context(), key+" too").Err()
			})
			return err
		},
	} {
		must.Succeed(t, send("warm"))
		way.DropReplies(1)
		if err := send(name); !redisconn.IsUnanswered(err) {
			t.Errorf("%s: %v, and the answer was lost", name, err)
		}
		if n, err := sure.Client.Get(t.Context(), name).Int(); n != 1 || err != nil {
			t.Errorf("%s: it happened %d times, %v", name, n, err)
		}
	}
}
