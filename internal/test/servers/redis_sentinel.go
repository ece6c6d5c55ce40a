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
)

// masterName is the name of the master at the Sentinels of the tests.
const masterName = "fleet"

// RedisSentinel is a master, a replica and three Sentinels that watch them.
type RedisSentinel struct {
	tb        testing.TB
	Servers   []*RedisServer // the first server is the master at the start
	Sentinels []*RedisServer
}

// Sentinel starts a master, a replica and three Sentinels. If password is not "", the Sentinels require it from the user default.
func Sentinel(tb testing.TB, password string, args ...string) *RedisSentinel {
	tb.Helper()
	s := &RedisSentinel{tb: tb, Servers: []*RedisServer{Redis(tb, args...)}}
	host, port, _ := net.SplitHostPort(s.Servers[0].Addr)
	s.Servers = append(s.Servers, Redis(tb, append([]string{"--replicaof", host + " " + port}, args...)...))
	for range 3 {
		s.Sentinels = append(s.Sentinels, sentinel(tb, host, port, password))
	}
	until(tb, "replica and Sentinels", func() error {
		return s.ask(s.Sentinels[0], password, func(client *redis.SentinelClient) error {
			master, err := client.Master(context.Background(), masterName).Result()
			if err == nil && (master["num-slaves"] != "1" || master["num-other-sentinels"] != "2") {
				err = fmt.Errorf("known: %v", master)
			}
			return err
		})
	})
	return s
}

// URL returns a URL with all Sentinels.
func (s *RedisSentinel) URL() string {
	var addrs []string
	for _, one := range s.Sentinels {
		addrs = append(addrs, one.Addr)
	}
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/" + masterName
}

// UntilMaster waits until server i is the master.
func (s *RedisSentinel) UntilMaster(i int) {
	s.tb.Helper()
	until(s.tb, "new master", func() error {
		return withRedis(s.Servers[i].Addr, func(client *redis.Client) error {
			role := client.Info(context.Background(), "replication").Val()
			if !strings.Contains(role, "role:master") {
				return fmt.Errorf("%s", role)
			}
			return nil
		})
	})
}

// UntilReplica waits until server i is a replica with its master's data.
func (s *RedisSentinel) UntilReplica(i int) {
	s.tb.Helper()
	until(s.tb, "replica", func() error {
		return withRedis(s.Servers[i].Addr, func(client *redis.Client) error {
			role := client.Info(context.Background(), "replication").Val()
			if !strings.Contains(role, "role:slave") || !strings.Contains(role, "master_link_status:up") {
				return fmt.Errorf("%s", role)
			}
			return nil
		})
	})
}

// Switch makes the Sentinels promote the other server, although the current master works.
func (s *RedisSentinel) Switch() {
	s.tb.Helper()
	until(s.tb, "agreement to switch", func() error {
		return s.ask(s.Sentinels[0], "", func(client *redis.SentinelClient) error {
			return client.Failover(context.Background(), masterName).Err()
		})
	})
}

func (s *RedisSentinel) ask(one *RedisServer, password string, f func(*redis.SentinelClient) error) error {
	client := redis.NewSentinelClient(&redis.Options{Addr: one.Addr, Password: password, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	return f(client)
}

func sentinel(tb testing.TB, host, masterPort, password string) *RedisServer {
	tb.Helper()
	path, addr := Need(tb, "redis-server"), FreeAddr(tb)
	settings := fmt.Sprintf("bind 127.0.0.1\nport %d\nsentinel monitor %s %s %s 2\nsentinel down-after-milliseconds %s 1000\nsentinel failover-timeout %s 3000\n",
		port(tb, addr), masterName, host, masterPort, masterName, masterName)
	if password != "" {
		settings += "requirepass " + password + "\n"
	}
	file := filepath.Join(tb.TempDir(), "sentinel-"+strconv.Itoa(port(tb, addr))+".conf") // Sentinel writes into this file
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		tb.Fatal(err)
	}
	process := StartProcess(tb,
		func() *exec.Cmd { return exec.Command(path, file, "--sentinel") },
		func() error { return withRedis(addr, ping) })
	return &RedisServer{Process: process, Addr: addr}
}
