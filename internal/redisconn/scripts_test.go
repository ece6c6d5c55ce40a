package redisconn_test

import (
	"bytes"
	"context"
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

// incrementCalls returns one call of a script for each key. The script increments the key.
func incrementCalls(keys ...string) []*redisconn.Call {
	script, calls := redis.NewScript("return redis.call('INCR', KEYS[1])"), make([]*redisconn.Call, len(keys))
	for i, key := range keys {
		calls[i] = &redisconn.Call{Script: script, Keys: []string{key}}
	}
	return calls
}

func numberedKeys(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint("key", i))
	}
	return keys
}

func expectAnswers(t *testing.T, calls []*redisconn.Call, want int) {
	t.Helper()
	for i, c := range calls {
		if n, err := c.Int(); err != nil || n != want {
			t.Errorf("call %d: %d, %v; want %d", i, n, err, want)
		}
	}
}

// TestScriptsGoTogether checks one call of Run with scripts for all nodes of a Cluster. It works whether or not the
// nodes have the scripts, and after a key has moved to another node. A script that fails does not affect the other
// scripts.
func TestScriptsGoTogether(t *testing.T) {
	t.Parallel()
	cluster := servers.StartRedisNodes(t, false)
	c := openConn(t, cluster.Nodes[0].URL())
	waitUntilWritable(t, c, "list")
	c.Client.Del(t.Context(), "list")
	c.Client.LPush(t.Context(), "list", "1")
	for round := range 3 {
		if from := cluster.MasterIndex("key0"); round == 2 {
			cluster.MoveSlot("key0", from, (from+1)%3)
		}
		calls := incrementCalls(append(numberedKeys(30), "list")...)
		if err := redisconn.Run(t.Context(), c.Client, calls); err == nil || redisconn.IsUnanswered(err) {
			t.Errorf("round %d: %v, want what the list says", round, err)
		}
		expectAnswers(t, calls[:30], round+1)
		if err := calls[30].Err(); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Errorf("round %d: %v", round, err)
		}
	}
}

// TestOnlyWhatIsLostIsSentAgain checks calls to several nodes of which only some answer: the calls that were
// answered are not sent again.
func TestOnlyWhatIsLostIsSentAgain(t *testing.T) {
	t.Parallel()
	cluster := servers.StartRedisNodes(t, false)
	silent := cluster.MasterIndex("key0")
	c := openConn(t, cluster.Nodes[(silent+1)%3].URL())
	setManyKeys(t, c)
	all, _ := c.Client.(*redis.ClusterClient)
	must.Succeed(t, all.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error { // the others must not refuse calls if the pause gets long
		return node.ConfigSet(ctx, "cluster-node-timeout", "60000").Err()
	}))
	calls := incrementCalls(numberedKeys(30)...)
	cluster.Nodes[silent].Pause()
	err := redisconn.Run(t.Context(), c.Client, calls)
	cluster.Nodes[silent].Resume()
	if !redisconn.IsUnanswered(err) || calls[0].Err() == nil {
		t.Errorf("%v, and a node was silent", err)
	}
	answered := 0
	for _, call := range calls {
		if call.Err() == nil {
			answered++
		}
	}
	await.True(t, "answer of all", func() bool { return redisconn.Run(t.Context(), c.Client, calls) == nil })
	once := 0
	for _, call := range calls {
		if n, _ := call.Int(); n == 2 {
			once++
		}
	}
	if answered == 0 || once < answered {
		t.Errorf("%d were answered at first, and %d were sent once", answered, once)
	}
}

// TestLostScriptsAreSentAgain checks Breakers.Run: it sends scripts again whose replies were lost, and sends none
// while the breaker of the node is open.
func TestLostScriptsAreSentAgain(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t)
	way := servers.NewProxy(t, server.Addr)
	c := openConn(t, "redis://"+way.Addr)
	breakers := redisconn.NewBreakers(c.Client, time.Now)
	breakers.Run(t.Context(), 2, incrementCalls("warm", "too"))
	calls := incrementCalls("a", "b")
	way.DropReplies(1)
	breakers.Run(t.Context(), 2, calls)
	expectAnswers(t, calls, 2)

	way.HoldReplies()
	breakers.Run(t.Context(), 1, incrementCalls("a", "b"))
	calls = incrementCalls("a", "b")
	breakers.Run(t.Context(), 1, calls)
	for _, call := range calls {
		if err := call.Err(); err == nil || !strings.Contains(err.Error(), "did not answer the last request") {
			t.Errorf("%v, want that it is not asked", err)
		}
	}
}

// openSingleConn returns a client with at most one connection. So a reply that the proxy drops belongs to the test's own request, not to a
// connection that the client opens in the background after an earlier loss.
func openSingleConn(t *testing.T, url string) *redisconn.Conn {
	t.Helper()
	options, err := redisconn.ParseURL(url)
	must.Succeed(t, err)
	options.PoolSize = 1
	c := redisconn.Open(options)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestAScriptThatFailsHidesNoOutage checks a script that fails in each call, also before and after calls whose
// replies are lost: outages are counted nevertheless.
func TestAScriptThatFailsHidesNoOutage(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t)
	way := servers.NewProxy(t, server.Addr)
	c := openSingleConn(t, "redis://"+way.Addr)
	waitUntilWritable(t, c, "key")
	c.Client.LPush(t.Context(), "list", "1")
	breakers := redisconn.NewBreakers(c.Client, time.Now)
	for want := range int64(3) {
		await.True(t, "a counted outage", func() bool { // the dropped reply may be that to the greeting of a new connection
			way.DropReplies(int(min(want, 1)))
			calls := incrementCalls("a", "list")
			breakers.Run(t.Context(), 2, calls)
			if calls[0].Err() != nil || calls[1].Err() == nil {
				t.Fatalf("%v, %v; want an answer and an error", calls[0].Err(), calls[1].Err())
			}
			return breakers.Outages() >= want
		})
	}
}

// TestAPipelineToAServerThatDoesNotServe checks a pipeline that a node answers with READONLY: the topology of the
// Cluster is read again.
func TestAPipelineToAServerThatDoesNotServe(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t)
	way := servers.NewProxy(t, server.Addr)
	c := openConn(t, "redis://"+way.Addr)
	waitUntilWritable(t, c, "key")
	must.Succeed(t, openConn(t, server.URL()).Client.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
	asked := make(chan struct{}, 100)
	way.OnRequest(func(b []byte) {
		if bytes.Contains(bytes.ToLower(b), []byte("cluster")) {
			asked <- struct{}{}
		}
	})
	_, err := c.Client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Get(t.Context(), "key")
		return p.Set(t.Context(), "key", "2", 0).Err()
	})
	if err == nil || !strings.HasPrefix(err.Error(), "READONLY") {
		t.Errorf("%v, want READONLY", err)
	}
	select {
	case <-asked:
	case <-time.After(9 * time.Second): // soon after that, the library rereads the topology anyway
		t.Error("the topology is not read again")
	}
}
