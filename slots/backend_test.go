package slots_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
)

// sharedRedis holds one Redis server of each kind. All tests of this package use these servers, except tests that
// stop or break a server.
var sharedRedis servers.SharedRedis //nolint:gochecknoglobals // one of each kind per test binary: TestMain ends them

func TestMain(m *testing.M) {
	m.Run()
	sharedRedis.Close()
}

type redisSemaphore struct {
	servers.RedisAt
	*slots.Semaphore

	client redis.UniversalClient
}

// runOnEachRedis runs a test once on each kind of Redis: a single server, a Cluster and the in-process Redis
// (miniredis).
func runOnEachRedis(t *testing.T, test func(t *testing.T, s *redisSemaphore)) {
	t.Helper()
	sharedRedis.RunOnEach(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		test(t, connect(t, at))
	})
}

// newRedisSemaphore returns a semaphore in a new database of a real Redis.
func newRedisSemaphore(t *testing.T) *redisSemaphore {
	t.Helper()
	return connect(t, sharedRedis.NewDatabase(t))
}

// skipIfSlowInLua skips the test in the short suite if the Redis is the in-process one. That Redis runs Lua in Go, which is slow.
func (s *redisSemaphore) skipIfSlowInLua(t *testing.T) {
	t.Helper()
	if testing.Short() && s.InProcess {
		t.Skip("long: it takes Lua in Go seconds, and is run on the real Redis; make test-long runs it")
	}
}

func connect(t *testing.T, at servers.RedisAt) *redisSemaphore {
	t.Helper()
	s := &redisSemaphore{RedisAt: at}
	s.client = s.dial(t, at.Addr)
	s.Semaphore = slots.New(s.client)
	return s
}

// newStoppableRedis returns a semaphore in a Redis of its own, which the test may stop.
func newStoppableRedis(t *testing.T) (*redisSemaphore, *servers.RedisServer) {
	t.Helper()
	r := servers.StartRedis(t)
	return connect(t, servers.RedisAt{Addr: r.Addr}), r
}

// dial returns a Redis client with the settings of the program, but with long timeouts. addr is the address of the Redis server, or of a
// proxy in front of it.
func (s *redisSemaphore) dial(t *testing.T, addr string) redis.UniversalClient {
	t.Helper()
	at := s.RedisAt
	at.Addr = addr
	opts, longer := redisconn.Options(addr), at.Options()
	opts.IsClusterMode, opts.DB, opts.Dialer = longer.IsClusterMode, longer.DB, longer.Dialer
	opts.DialTimeout, opts.PoolTimeout = longer.DialTimeout, longer.PoolTimeout
	opts.ReadTimeout, opts.WriteTimeout = longer.ReadTimeout, longer.WriteTimeout
	client := redis.NewUniversalClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// restorePool restores a pool with this capacity and these holders, so that Redis knows the pool. It returns the
// name of the pool, which is the name of the test.
func (s *redisSemaphore) restorePool(t *testing.T, capacity int, holders ...slots.LedgerGrant) string {
	t.Helper()
	pool := t.Name()
	s.restore(t, pool, slots.Config{Capacity: capacity, Version: 1}, holders...)
	return pool
}

func (s *redisSemaphore) restore(t *testing.T, pool string, c slots.Config, holders ...slots.LedgerGrant) {
	t.Helper()
	if restored, err := s.Restore(t.Context(), pool, c, holders); err != nil || !restored {
		t.Fatalf("restore %s: %v, %v", pool, restored, err)
	}
}

// acquire asks for one slot of the pool for 300 s, for the lease with this id.
func (s *redisSemaphore) acquire(t *testing.T, pool, lease string) slots.Acquisition {
	t.Helper()
	return s.acquireAll(t, pool, lease)[0]
}

func (s *redisSemaphore) acquireAll(t *testing.T, pool string, leases ...string) []slots.Acquisition {
	t.Helper()
	out, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, newRequests(300*time.Second, leases...))
	if err != nil {
		t.Fatalf("acquire %v: %v", leases, err)
	}
	if len(out) != len(leases) {
		t.Fatalf("%d outcomes for %d requests", len(out), len(leases))
	}
	return out
}

func (s *redisSemaphore) release(t *testing.T, pool string, leases ...string) []bool {
	t.Helper()
	out, _, err := s.Release(t.Context(), pool, slots.Pace{}, leases)
	if err != nil {
		t.Fatalf("release %v: %v", leases, err)
	}
	return out
}

func (s *redisSemaphore) configure(t *testing.T, pool string, capacity int, version int64) bool {
	t.Helper()
	changed, err := s.Configure(t.Context(), pool, slots.Config{Capacity: capacity, Version: version})
	if err != nil {
		t.Fatalf("configure: %v", err)
	}
	return changed
}

func (s *redisSemaphore) readSnapshot(t *testing.T, pool string) slots.Snapshot {
	t.Helper()
	out, err := s.Snapshot(t.Context(), pool)
	if err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	return out
}

// slotHolders returns the lease that holds each held slot of the pool (slot number -> lease).
func (s *redisSemaphore) slotHolders(t *testing.T, pool string) map[int]string {
	t.Helper()
	out := map[int]string{}
	for _, l := range s.readSnapshot(t, pool).Leases {
		out[l.Slot] = l.ID
	}
	return out
}

// freeSlots returns the numbers of the slots that Redis stores as free.
func (s *redisSemaphore) freeSlots(t *testing.T, pool string) []string {
	t.Helper()
	out, err := s.client.ZRangeByScore(t.Context(), "slots:{"+pool+"}:free", &redis.ZRangeBy{Min: "0", Max: "0"}).Result()
	must.Succeed(t, err)
	return out
}

func newRequests(ttl time.Duration, leases ...string) []slots.Request {
	out := make([]slots.Request, len(leases))
	for i, lease := range leases {
		out[i] = slots.Request{Device: "dev:" + lease, Wants: []slots.Want{{Lease: lease, TTL: ttl}}}
	}
	return out
}

// newRequest returns the request of one device that asks for a slot for one of its tasks (wants).
func newRequest(device string, wants ...slots.Want) slots.Request {
	return slots.Request{Device: device, Wants: wants}
}

// numberedNames returns the names "prefix.from" to "prefix.to-1".
func numberedNames(prefix string, from, to int) []string {
	out := make([]string, 0, to-from)
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("%s.%d", prefix, i))
	}
	return out
}

// newHoldings returns n grants as the ledger has them. They hold the slots 0 to n-1.
func newHoldings(prefix string, n int) []slots.LedgerGrant {
	out := make([]slots.LedgerGrant, n)
	for i, lease := range numberedNames(prefix, 0, n) {
		out[i] = slots.LedgerGrant{Lease: lease, Device: "dev:" + lease, Slot: i, Remaining: time.Minute, Age: time.Second}
	}
	return out
}

func acquiredSlot(slot int) slots.Acquisition {
	return slots.Acquisition{Status: slots.StatusAcquired, Slot: slot}
}

// expectEqual checks that got equals want. It does not compare their times.
func expectEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	times := cmpopts.IgnoreFields(slots.Lease{}, "Acquired", "Remaining", "Age")
	wait := cmpopts.IgnoreFields(slots.Acquisition{}, "Position", "AskAfter")
	if d := cmp.Diff(want, got, times, wait, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}
