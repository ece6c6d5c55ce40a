package servers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// masterName is the name under which the Sentinels of the tests know the master.
const masterName = "fleet"

// RedisSentinel is a Redis with Sentinels: a master, a replica and three Sentinels that watch them.
type RedisSentinel struct {
	tb        testing.TB
	Servers   []*RedisServer // the first server is the master at the start
	Sentinels []*RedisServer
}

// StartSentinels starts a master, a replica and three Sentinels. If password is not "", clients of the Sentinels need it (user default).
// args are additional arguments of the master and the replica.
func StartSentinels(tb testing.TB, password string, args ...string) *RedisSentinel {
	tb.Helper()
	s := &RedisSentinel{tb: tb, Servers: []*RedisServer{StartRedis(tb, args...)}}
	host, port, _ := net.SplitHostPort(s.Servers[0].Addr)
	s.Servers = append(s.Servers, StartRedis(tb, append([]string{"--replicaof", host + " " + port}, args...)...))
	for range 3 {
		s.Sentinels = append(s.Sentinels, startSentinel(tb, host, port, password))
	}
	waitUntil(tb, "replica and Sentinels", func() error {
		return s.withSentinel(s.Sentinels[0], password, func(client *redis.SentinelClient) error {
			master, err := client.Master(context.Background(), masterName).Result()
			if err == nil && (master["num-slaves"] != "1" || master["num-other-sentinels"] != "2") {
				err = fmt.Errorf("known: %v", master)
			}
			return err
		})
	})
	return s
}

// URL returns a URL that contains the addresses of all Sentinels.
func (s *RedisSentinel) URL() string {
	var addrs []string
	for _, one := range s.Sentinels {
		addrs = append(addrs, one.Addr)
	}
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/" + masterName
}

// WaitMaster waits until server i is the master.
func (s *RedisSentinel) WaitMaster(i int) {
	s.tb.Helper()
	waitUntil(s.tb, "new master", func() error {
		return withRedis(s.Servers[i].Addr, func(client *redis.Client) error {
			role := client.Info(context.Background(), "replication").Val()
			if !strings.Contains(role, "role:master") {
				return fmt.Errorf("%s", role)
			}
			return nil
		})
	})
}

// WaitReplica waits until server i is a replica and has the data of its master.
func (s *RedisSentinel) WaitReplica(i int) {
	s.tb.Helper()
	waitUntil(s.tb, "replica", func() error {
		return withRedis(s.Servers[i].Addr, func(client *redis.Client) error {
			role := client.Info(context.Background(), "replication").Val()
			if !strings.Contains(role, "role:slave") || !strings.Contains(role, "master_link_status:up") {
				return fmt.Errorf("%s", role)
			}
			return nil
		})
	})
}

// FailOver makes the Sentinels promote the other server to the master, although the present master works.
func (s *RedisSentinel) FailOver() {
	s.tb.Helper()
	waitUntil(s.tb, "agreement to switch", func() error {
		return s.withSentinel(s.Sentinels[0], "", func(client *redis.SentinelClient) error {
			return client.Failover(context.Background(), masterName).Err()
		})
	})
}

func (s *RedisSentinel) withSentinel(sentinel *RedisServer, password string, call func(*redis.SentinelClient) error) error {
	client := redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr, Password: password, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	return call(client)
}

func startSentinel(tb testing.TB, host, masterPort, password string) *RedisServer {
	tb.Helper()
	path, addr := RequireProgram(tb, "redis-server"), FreeAddr(tb)
	settings := fmt.Sprintf("bind 127.0.0.1\nport %d\nsentinel monitor %s %s %s 2\nsentinel down-after-milliseconds %s 1000\nsentinel failover-timeout %s 3000\n",
		portNumber(tb, addr), masterName, host, masterPort, masterName, masterName)
	if password != "" {
		settings += "requirepass " + password + "\n"
	}
	file := filepath.Join(tb.TempDir(), "sentinel-"+strconv.Itoa(portNumber(tb, addr))+".conf") // Sentinel writes into this file
	must.Succeed(tb, os.WriteFile(file, []byte(settings), 0o600))
	process := StartProcess(tb,
		func() *exec.Cmd { return exec.Command(path, file, "--sentinel") },
		func() error { return withRedis(addr, ping) })
	return &RedisServer{Process: process, Addr: addr}
}
