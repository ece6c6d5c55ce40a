package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
)

// TestServeWithTheLeastRights checks the program on a Redis with TLS, with the Redis users of deploy/: these users have
// the right to all commands that the program sends.
func TestServeWithTheLeastRights(t *testing.T) {
	t.Parallel()
	users, err := filepath.Abs(filepath.Join("..", "..", "deploy", "redis", "users.acl"))
	must.Succeed(t, err)
	certificate, key, _ := selfSigned(t)
	_, port, _ := strings.Cut(servers.FreeAddr(t), ":")
	plain := servers.StartRedis(t, "--aclfile", users, "--tls-port", port, "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-auth-clients", "no")
	config := serveConfig(t, sharedPostgres.NewLedger(t), "rediss://dispatcher:change-me@127.0.0.1:"+port+"/1?ca_file="+certificate)
	i, a := startServing(t, config)
	exchangeTask(t, i, i)
	i.callOperator(t, http.MethodPut, "/v1/pools/q", `{"capacity":1,"limits":[{"name":"daily","per":"device","algorithm":"calendar","period":"day","timezone":"UTC","max":1},
		{"name":"often","per":"device","algorithm":"sliding","windows":[{"max":9,"per_ms":60000}]},{"name":"same","per":"device","algorithm":"duplicate","max":9,"per_ms":60000}]}`)
	waits := i.startLongPoll(t, "b")
	await.True(t, "parked", func() bool {
		return a.dispatcher.Waiters.ParkedReports != nil && bytes.Contains(i.callOperator(t, "GET", "/metrics", ""), []byte("dispatcher_reports_parked 1\n"))
	})
	i.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"q","kind":"k","devices":["b","c"]}`)
	if reply := <-waits; reply.Task == nil {
		t.Errorf("%+v, want a grant", reply)
	}
	if reply := i.sendReport(t, "c", `{"id":"1"}`); reply.Reason != devices.ReasonFull {
		t.Errorf("%+v, want full", reply)
	}
	await.True(t, "device seen", func() bool {
		return bytes.Contains(i.callOperator(t, "GET", "/v1/devices?recent=5", ""), []byte(`"b"`))
	})
	if _, err := a.dispatcher.Policies.SettleAllReservations(t.Context()); err != nil {
		t.Error(err)
	}
	admin := redis.NewClient(&redis.Options{Addr: plain.Addr, Username: "admin", Password: "change-me-too"})
	defer admin.Close()
	if denied, err := admin.ACLLog(t.Context(), 10).Result(); err != nil || len(denied) != 0 {
		for _, d := range denied {
			t.Errorf("denied: %s of %s in %s", d.Object, d.Username, d.Context)
		}
		t.Error(err)
	}
}

// TestRedisThatCannotBeUsedIsSaid checks a Redis that cannot be used: the program logs this at once with the
// reason, even if there is no pool.
func TestRedisThatCannotBeUsedIsSaid(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t, "--requirepass", "another")
	log := newMessageWatch("Redis cannot be used: results are recorded, but NOTHING IS GRANTED")
	config := serveConfig(t, sharedPostgres.NewLedger(t), "redis://:"+canary+"@"+server.Addr)
	a, err := newServerApp(t.Context(), config, slog.New(log), "test")
	must.Succeed(t, err)
	startApp(t, a)
	<-log.logged
}

// TestAStopSaysNothingAboutRedis ends the pass that reads the state of Redis, as the stop of the process does. Nothing is logged.
func TestAStopSaysNothingAboutRedis(t *testing.T) {
	t.Parallel()
	conn := redisconn.Open(&redis.UniversalOptions{Addrs: []string{servers.FreeAddr(t)}})
	t.Cleanup(func() { _ = conn.Close() })
	var logged bytes.Buffer
	ctx, stop := context.WithCancel(t.Context())
	stop()
	watch := &redisWatch{conn: conn, log: slog.New(slog.NewTextHandler(&logged, nil))}
	if err := watch.logRedisState(ctx); err == nil || logged.Len() > 0 {
		t.Errorf("%v; logged %s", err, logged.String())
	}
}

// TestHealthSaysWhichPoolsAreServed checks a dispatcher that knows one address of a Cluster: all pools are served.
// If a master without a replica dies, the health check reports for how many pools nothing is granted.
func TestHealthSaysWhichPoolsAreServed(t *testing.T) {
	t.Parallel()
	cluster := servers.StartRedisNodes(t, false, "--cluster-require-full-coverage", "no")
	i, _ := startServing(t, serveConfig(t, sharedPostgres.NewLedger(t), cluster.Nodes[0].URL()))
	const pools = 12
	for n := range pools {
		i.callOperator(t, http.MethodPut, fmt.Sprint("/v1/pools/p", n), `{"capacity":1}`)
		i.callOperator(t, http.MethodPost, "/v1/batches", fmt.Sprintf(`{"pool":"p%d","kind":"k","devices":["d%d"]}`, n, n))
		if reply := i.sendReport(t, fmt.Sprint("d", n), `{"id":"1"}`); reply.Task == nil {
			t.Errorf("pool %d: %+v, want a grant", n, reply)
		}
	}
	if said := i.callOperator(t, http.MethodGet, "/readyz", ""); !bytes.Contains(said, []byte(`"redis":"ok"`)) {
		t.Errorf("%s", said)
	}
	cluster.Nodes[2].Kill()
	var ready struct {
		Checks map[string]string
		Pools  struct{ Served, Known int }
	}
	await.True(t, "health that says it", func() bool {
		must.Succeed(t, json.Unmarshal(i.callOperator(t, http.MethodGet, "/readyz", ""), &ready))
		return ready.Checks["redis"] == "degraded"
	})
	if p := ready.Pools; p.Known != pools || p.Served == 0 || p.Served >= pools {
		t.Errorf("%+v", ready)
	}
	await.True(t, "metrics that say it", func() bool {
		said := i.callOperator(t, http.MethodGet, "/metrics", "")
		return bytes.Contains(said, []byte(`dispatcher_dependency_up{dependency="redis"} 0`)) &&
			bytes.Contains(said, fmt.Appendf(nil, "dispatcher_pools_served_ratio %g", float64(ready.Pools.Served)/pools))
	})
}

// TestGrantsGoOnAfterAFailover checks a failover of a Cluster that is known by one address, and of a Redis with
// Sentinels: grants continue. Releases that the Redis replica did not receive are taken from the ledger.
func TestGrantsGoOnAfterAFailover(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(*testing.T) (url string, kill func()){
		"cluster": func(t *testing.T) (string, func()) {
			t.Helper()
			cluster := servers.StartRedisNodes(t, true)
			master := cluster.MasterIndex(slots.NodeKey("p"))
			return cluster.Nodes[master].URL(), func() {
				cluster.Nodes[master].Kill()
				cluster.WaitFailedOver(slots.NodeKey("p"), master)
			}
		},
		"sentinel": func(t *testing.T) (string, func()) {
			t.Helper()
			s := servers.StartSentinels(t, "")
			return s.URL(), func() {
				s.Servers[0].Kill()
				s.WaitMaster(1)
			}
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url, kill := start(t)
			i, _ := startServing(t, serveConfig(t, sharedPostgres.NewLedger(t), url))
			i.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":2}`)
			i.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":["a","b","c"]}`)
			if reply := i.sendReport(t, "a", `{"id":"1"}`); reply.Task == nil {
				t.Fatalf("%+v, want a grant", reply)
			}
			kill()
			began := time.Now()
			await.True(t, "grant", func() bool { return i.sendReport(t, "b", `{"id":"1"}`).Task != nil })
			t.Logf("granted %.1f s after the failover", time.Since(began).Seconds())
			if reply := i.sendReport(t, "c", `{"id":"1"}`); reply.Reason != devices.ReasonFull {
				t.Errorf("%+v, want full: two of two are held", reply)
			}
		})
	}
}

// TestABusyMachineIsNoOutageOfTheInProcessRedis checks the time limits of calls to the in-process Redis. It answers as soon as the process gets
// the processor, so a call on a busy machine must not fail.
func TestABusyMachineIsNoOutageOfTheInProcessRedis(t *testing.T) {
	t.Parallel()
	var opened cleanup
	conn, _, err := new(DevServer).openRedis(t.Context(), DevOptions{}, &opened)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = opened.closeAll(context.WithoutCancel(t.Context())) }()
	cluster, _ := conn.Client.(*redis.ClusterClient)
	if o := cluster.Options(); min(o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout) < time.Minute {
		t.Errorf("limits %s, %s, %s, %s", o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout)
	}
}
