package testservers

import (
	"context"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// SharedRedis is one Redis and one Cluster node for all the tests of a package: a
// node takes seconds to start. The zero value is ready; TestMain closes it, as with
// SharedPostgres. Tests that stop, pause or wipe a server, or have it forget its
// scripts, start one of their own (Redis, RedisCluster).
type SharedRedis struct {
	mu        sync.Mutex
	redis     *RedisServer
	cluster   *RedisServer
	databases int
	ends      []func()
}

// RedisAt is where a test finds its Redis.
type RedisAt struct {
	Addr               string
	DB                 int
	Cluster, InProcess bool
}

// Each runs a test on each kind of Redis that the program works on. On the Cluster
// node, which has one database only, tests keep to names of their own.
func (s *SharedRedis) Each(t *testing.T, test func(t *testing.T, at RedisAt)) {
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

// NewDatabase is an empty database of the Redis, for one test.
func (s *SharedRedis) NewDatabase(tb testing.TB) RedisAt {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.redis == nil {
		s.redis = Redis(&lasting{tb, s}, "--databases", "1000") // more than a package has tests
	}
	s.databases++
	return RedisAt{Addr: s.redis.Addr, DB: s.databases}
}

// Cluster is the Cluster node.
func (s *SharedRedis) Cluster(tb testing.TB) RedisAt {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == nil {
		s.cluster = RedisCluster(&lasting{tb, s})
	}
	return RedisAt{Addr: s.cluster.Addr, Cluster: true}
}

// InProcessRedis is one that only this test has.
func InProcessRedis(tb testing.TB) RedisAt {
	tb.Helper()
	return RedisAt{Addr: miniredis.RunT(tb).Addr(), InProcess: true}
}

// Close ends the servers that were started.
func (s *SharedRedis) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, end := range slices.Backward(s.ends) {
		end()
	}
	s.redis, s.cluster, s.ends = nil, nil, nil
}

// Options of a client whose connections all go to this address, whatever a Cluster
// announces, and which forgives a machine that stands still for a while.
func (at RedisAt) Options() *redis.UniversalOptions {
	const patience = 20 * time.Second
	return &redis.UniversalOptions{
		Addrs: []string{at.Addr}, DB: at.DB, IsClusterMode: at.Cluster, Protocol: 2, DisableIdentity: true, MaxRetries: -1,
		DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience, PoolTimeout: patience,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: patience}).DialContext(ctx, network, at.Addr)
		},
	}
}

// Client is closed when the test ends.
func (at RedisAt) Client(tb testing.TB) redis.UniversalClient {
	tb.Helper()
	client := redis.NewUniversalClient(at.Options())
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// lasting is the test that happens to start a shared server, which outlives it.
type lasting struct {
	testing.TB

	server *SharedRedis
}

// Cleanup waits for Close.
func (l *lasting) Cleanup(end func()) { l.server.ends = append(l.server.ends, end) }

// TempDir stays until Close.
func (l *lasting) TempDir() string {
	l.Helper()
	dir, err := os.MkdirTemp("", "redis-")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
