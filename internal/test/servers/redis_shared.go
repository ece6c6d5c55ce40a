package servers

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/memoryredis"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// SharedRedis is one Redis and one Cluster node that all tests of a package share, because starting a node takes
// seconds. The zero value is ready to use. TestMain closes it, as it closes a SharedPostgres. A test that stops,
// pauses or wipes a server, or flushes its scripts, must start a server of its own (StartRedis, StartRedisCluster).
type SharedRedis struct {
	redis, cluster lastingServer
	databases      atomic.Int64
}

// RedisAt is the address of a Redis that a test uses.
type RedisAt struct {
	Addr               string
	DB                 int
	Cluster, InProcess bool
}

// RunOnEach runs a test on each kind of Redis that the program supports. The Cluster node has only one database, so
// each test must use key names of its own there.
func (s *SharedRedis) RunOnEach(t *testing.T, test func(t *testing.T, at RedisAt)) {
	t.Helper()
	for kind, find := range map[string]func(testing.TB) RedisAt{
		"redis": s.NewDatabase, "cluster": s.Cluster, "miniredis": InProcessRedis,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, find(t))
		})
	}
}

// NewDatabase returns an empty database of the shared Redis for one test.
func (s *SharedRedis) NewDatabase(tb testing.TB) RedisAt {
	tb.Helper()
	server := s.redis.start(tb, func(tb testing.TB) *RedisServer {
		tb.Helper()
		return StartRedis(tb, "--databases", "10000") // more than the tests of a package, even with -count
	})
	return RedisAt{Addr: server.Addr, DB: int(s.databases.Add(1))}
}

// Cluster returns the shared Cluster node. When the test ends, the keys whose hash tag contains the name of the
// test are deleted, so that the test can run again.
func (s *SharedRedis) Cluster(tb testing.TB) RedisAt {
	tb.Helper()
	addr := s.cluster.start(tb, StartRedisCluster).Addr
	tb.Cleanup(func() {
		err := withRedis(addr, func(client *redis.Client) error {
			keys, err := client.Keys(context.Background(), "*{"+tb.Name()+"*").Result()
			for _, key := range keys {
				err = errors.Join(err, client.Del(context.Background(), key).Err())
			}
			return err
		})
		if err != nil {
			tb.Errorf("forgetting a test: %v", err)
		}
	})
	return RedisAt{Addr: addr, Cluster: true}
}

// InProcessRedis returns an in-process Redis that only this test uses. It is the Redis of the embedded mode, but without
// a password.
func InProcessRedis(tb testing.TB) RedisAt {
	tb.Helper()
	server, err := memoryredis.Start("")
	must.Succeed(tb, err)
	tb.Cleanup(server.Close)
	return RedisAt{Addr: server.Addr(), InProcess: true}
}

// Close ends the servers that were started.
func (s *SharedRedis) Close() {
	s.redis.end()
	s.cluster.end()
}

// Options returns the options of a client. All its connections go to this address, whatever addresses a Cluster announces. The timeouts are
// longer than any stall of the machine.
func (at RedisAt) Options() *redis.UniversalOptions {
	const patience = 20 * time.Second
	return &redis.UniversalOptions{
		Addrs: []string{at.Addr}, DB: at.DB, IsClusterMode: at.Cluster, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience, PoolTimeout: patience,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: patience}).DialContext(ctx, network, at.Addr)
		},
	}
}

// Client returns a client of this Redis. The client is closed when the test ends.
func (at RedisAt) Client(tb testing.TB) redis.UniversalClient {
	tb.Helper()
	client := redis.NewUniversalClient(at.Options())
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// lastingServer is a server that lives longer than the test that started it.
type lastingServer struct {
	mu       sync.Mutex
	server   *RedisServer
	cleanups []func()
}

func (l *lastingServer) start(tb testing.TB, start func(testing.TB) *RedisServer) *RedisServer {
	tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.server == nil {
		l.server = start(&serverTB{tb, l})
	}
	return l.server
}

func (l *lastingServer) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range slices.Backward(l.cleanups) {
		end()
	}
	l.server, l.cleanups = nil, nil
}

// serverTB is the testing.TB with which a shared server is started. Its cleanups run, and its folders are removed,
// when the server ends, and not when the test ends.
type serverTB struct {
	testing.TB

	lasting *lastingServer
}

// Cleanup registers a function that runs at the end of the server.
func (s *serverTB) Cleanup(end func()) { s.lasting.cleanups = append(s.lasting.cleanups, end) }

// TempDir returns a folder that is removed at the end of the server.
func (s *serverTB) TempDir() string {
	s.Helper()
	dir, err := os.MkdirTemp("", "redis-")
	must.Succeed(s, err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
