package servers

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// RedisServer is a redis-server that belongs to one test. It keeps its port and its folder over Kill, Stop and
// Start. If it has no persistence, it is empty after a restart.
type RedisServer struct {
	*Process

	Addr string // host:port
	dir  string // the folder that it keeps over restarts
	args []string
}

// StartRedis starts a redis-server without persistence. args are appended to its
// command line, for instance "--appendonly", "yes".
func StartRedis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	return startRedisAt(tb, FreeAddr(tb), ping, args)
}

// StartRedisCluster starts a redis-server in cluster mode that owns all hash slots. A restart keeps the slots, but not the data.
func StartRedisCluster(tb testing.TB) *RedisServer {
	tb.Helper()
	bus := strconv.Itoa(portNumber(tb, FreeAddr(tb))) // the default port may be taken by an outgoing connection
	return startRedisAt(tb, FreeAddr(tb), ownAllSlots, []string{"--cluster-enabled", "yes", "--cluster-port", bus})
}

// URL returns the URL of the server, as in DISPATCHER_REDIS_URL, without a password. If the server was started with
// "--requirepass", the test builds the URL itself: "redis://:" + password + "@" + Addr.
func (r *RedisServer) URL() string { return "redis://" + r.Addr }

// Snapshot makes the server save its data (SAVE) and returns the snapshot.
func (r *RedisServer) Snapshot(tb testing.TB) []byte {
	tb.Helper()
	var snapshot []byte
	err := withRedis(r.Addr, func(client *redis.Client) (err error) {
		if err = client.Save(context.Background()).Err(); err == nil {
			snapshot, err = os.ReadFile(r.snapshotFile())
		}
		return err
	})
	if err != nil {
		tb.Fatalf("saving the data of Redis: %v", err)
	}
	return snapshot
}

// Restore replaces the data of the server with a snapshot that Snapshot returned. The server must be down. If
// snapshot is nil, the server starts empty. A Cluster keeps its slots.
func (r *RedisServer) Restore(tb testing.TB, snapshot []byte) {
	tb.Helper()
	entries, err := os.ReadDir(r.dir)
	for _, file := range entries {
		if err == nil && file.Name() != "nodes.conf" {
			err = os.RemoveAll(filepath.Join(r.dir, file.Name()))
		}
	}
	if err == nil && snapshot != nil {
		err = os.WriteFile(r.snapshotFile(), snapshot, 0o600)
	}
	if err != nil {
		tb.Fatalf("restoring the data of Redis: %v", err)
	}
}

// LogSize returns the size in bytes of the append-only log of a server that was started with "--appendonly", "yes".
func (r *RedisServer) LogSize(tb testing.TB) int64 {
	tb.Helper()
	info, err := os.Stat(r.logFile(tb))
	if err != nil {
		tb.Fatalf("the log of Redis: %v", err)
	}
	return info.Size()
}

// CutLog cuts the end of the append-only log of a server, which must be down. The log then ends with the last whole
// transaction within size bytes, but has at least minSize bytes. Redis cannot repair a log that ends inside a
// transaction.
func (r *RedisServer) CutLog(tb testing.TB, size, minSize int64) {
	tb.Helper()
	const end = "*1\r\n$4\r\nEXEC\r\n"
	file := r.logFile(tb)
	log, err := os.ReadFile(file)
	if err == nil {
		cutAt := bytes.LastIndex(log[:max(size, minSize)], []byte(end)) + len(end)
		err = os.Truncate(file, max(int64(cutAt), minSize))
	}
	if err != nil {
		tb.Fatalf("cutting the log of Redis: %v", err)
	}
}

func (r *RedisServer) logFile(tb testing.TB) string {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(r.dir, "appendonlydir", "*.incr.aof"))
	if err != nil || len(files) != 1 {
		tb.Fatalf("the log of Redis: %v, %v", files, err)
	}
	return files[0]
}

func (r *RedisServer) snapshotFile() string { return filepath.Join(r.dir, "dump.rdb") }

func startRedisAt(tb testing.TB, addr string, checkReady func(*redis.Client) error, args []string) *RedisServer {
	tb.Helper()
	path, dir := RequireProgram(tb, "redis-server"), filepath.Join(tb.TempDir(), "redis")
	must.Succeed(tb, os.Mkdir(dir, 0o700))
	args = append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(portNumber(tb, addr)), "--dir", dir,
		"--save", "", "--appendonly", "no",
	}, args...)
	process := StartProcess(tb,
		func() *exec.Cmd { return exec.Command(path, args...) },
		func() error { return withRedis(addr, checkReady) })
	return &RedisServer{Process: process, Addr: addr, dir: dir, args: args}
}

// withRedis calls the function call with a client that makes each attempt only once, and then closes the client. The client sends no
// password. It logs failed dials, so a port that is not open yet is detected first.
func withRedis(addr string, call func(*redis.Client) error) error {
	probe, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	_ = probe.Close()
	client := redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: time.Second,
	})
	defer func() { _ = client.Close() }()
	return call(client)
}

// ping returns nil if the server answers, even if it demands a password.
func ping(client *redis.Client) error {
	err := client.Ping(context.Background()).Err()
	if redis.HasErrorPrefix(err, "NOAUTH") {
		return nil
	}
	return err
}

// ownAllSlots assigns all hash slots to the server. It can be called again, because it assigns slots only if no slot is assigned.
func ownAllSlots(client *redis.Client) error {
	ctx := context.Background()
	info, err := client.ClusterInfo(ctx).Result()
	switch {
	case err != nil:
		return err
	case strings.Contains(info, "cluster_state:ok"):
		return nil
	case strings.Contains(info, "cluster_slots_assigned:0\r"):
		err = client.ClusterAddSlotsRange(ctx, 0, 16383).Err()
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("cluster is not ready: %s", info)
}

func portNumber(tb testing.TB, addr string) int {
	tb.Helper()
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		tb.Fatalf("address %q: %v", addr, err)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		tb.Fatalf("port of %q: %v", addr, err)
	}
	return n
}
