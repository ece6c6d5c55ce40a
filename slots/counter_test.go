package slots_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// counterLimit is the limit of the plain counter, and also the capacity of the pool that is compared with the
// counter.
const counterLimit = 60

// counterAcquire and counterRelease are Lua scripts that are often copied: they limit the holders with one counter.
const (
	counterAcquire = `
local current = redis.call('GET', KEYS[1])
if not current or tonumber(current) < tonumber(ARGV[1]) then
  current = redis.call('INCR', KEYS[1])
  redis.call('EXPIRE', KEYS[1], 300)
end
return tonumber(current)`
	counterRelease = `
local current = redis.call('GET', KEYS[1])
if current and tonumber(current) > 0 then
  return redis.call('INCRBY', KEYS[1], -1)
end
return 0`
)

// counter is a plain counter in Redis with its usual scripts. The tests of this file show its faults, and what the semaphore does in the
// same situation.
type counter struct {
	client                       redis.UniversalClient
	acquireScript, releaseScript *redis.Script
	key                          string
}

func newCounter(client redis.UniversalClient, key string) *counter {
	return &counter{
		client: client, key: key,
		acquireScript: redis.NewScript(counterAcquire), releaseScript: redis.NewScript(counterRelease),
	}
}

// acquire calls the script and returns the count. The caller must treat a count of counterLimit or more as full.
func (c *counter) acquire(ctx context.Context) (int, error) {
	return c.acquireScript.Run(ctx, c.client, []string{c.key}, counterLimit).Int()
}

func (c *counter) release(ctx context.Context) error {
	return c.releaseScript.Run(ctx, c.client, []string{c.key}).Err()
}

// tryEnter calls acquire and then makes the comparison that a caller of the counter makes. It reports whether the device may start.
func (c *counter) tryEnter(t *testing.T) bool {
	t.Helper()
	count, err := c.acquire(t.Context())
	must.Succeed(t, err)
	return count < counterLimit
}

func (c *counter) leave(t *testing.T) {
	t.Helper()
	must.Succeed(t, c.release(t.Context()))
}

// enterIsCounted calls tryEnter for one more device. It reports whether the script incremented the counter.
func (c *counter) enterIsCounted(t *testing.T) bool {
	t.Helper()
	before := c.readCount(t)
	c.tryEnter(t)
	return c.readCount(t) > before
}

func (c *counter) readCount(t *testing.T) int {
	t.Helper()
	n, err := c.client.Get(t.Context(), c.key).Int()
	if err != nil && err != redis.Nil { //nolint:errorlint // returned as it is
		t.Fatal(err)
	}
	return n
}

// enterRepeatedly calls tryEnter n times and returns how many of the calls were allowed.
func enterRepeatedly(n int, tryEnter func(i int) bool) (entered int) {
	for i := range n {
		if tryEnter(i) {
			entered++
		}
	}
	return entered
}

func (s *redisSemaphore) tryEnter(t *testing.T, pool, lease string) bool {
	t.Helper()
	return s.acquire(t, pool, lease).Status == slots.StatusAcquired
}

// newCounterAndPool returns an empty counter and an empty pool of the semaphore in one Redis.
func newCounterAndPool(t *testing.T) (*counter, *redisSemaphore, string) {
	t.Helper()
	s := newRedisSemaphore(t)
	return newCounter(s.client, "semaphore"), s, s.restorePool(t, counterLimit)
}

// TestCounterRefusesTheLastSlotAndLeaksIt shows fault 1 of the counter: it counts the 60th device and then refuses it. So only 59 slots can
// be used, and each time the counter is full it loses one slot permanently.
func TestCounterRefusesTheLastSlotAndLeaksIt(t *testing.T) {
	t.Parallel()
	c, s, pool := newCounterAndPool(t)
	for round, want := range []int{59, 58, 57} {
		inside := enterRepeatedly(counterLimit, func(int) bool { return c.tryEnter(t) })
		if inside != want {
			t.Errorf("counter, round %d: %d of %d let in, want %d", round, inside, counterLimit, want)
		}
		for range inside {
			c.leave(t)
		}
		if got := c.readCount(t); got != round+1 {
			t.Errorf("counter, round %d: %d leaked with nobody inside, want %d", round, got, round+1)
		}
	}
	for round := range 3 {
		leases := numberedNames("l", 0, counterLimit)
		if inside := enterRepeatedly(counterLimit, func(i int) bool { return s.tryEnter(t, pool, leases[i]) }); inside != counterLimit {
			t.Errorf("slots, round %d: %d let in, want %d", round, inside, counterLimit)
		}
		if s.tryEnter(t, pool, "one too many") {
			t.Errorf("slots, round %d: %d let in", round, counterLimit+1)
		}
		s.release(t, pool, leases...)
		if got := len(s.slotHolders(t, pool)); got != 0 {
			t.Errorf("slots, round %d: %d held with nobody inside", round, got)
		}
	}
}

// TestCounterLeakOutlivesItsTTLUnderTraffic shows fault 2 of the counter: the slot of a holder that vanished becomes free only when the key
// expires. But calls of other holders renew the key, so it never expires under traffic.
func TestCounterLeakOutlivesItsTTLUnderTraffic(t *testing.T) {
	t.Parallel()
	c, s, pool := newCounterAndPool(t)
	c.tryEnter(t) // this holder vanishes
	for range 5 {
		// The test does not wait for 299 s. Instead, this statement reduces the TTL of the key to 1 s.
		must.Succeed(t, c.client.PExpire(t.Context(), c.key, time.Second).Err())
		c.tryEnter(t)
		c.leave(t)
		if left := c.client.PTTL(t.Context(), c.key).Val(); left < 250*time.Second {
			t.Fatalf("counter: %s left, want it refreshed to 300 s", left)
		}
		if got := c.readCount(t); got != 1 {
			t.Fatalf("counter: %d, want the leaked 1 to stay for ever", got)
		}
	}

	_, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, newRequests(20*time.Millisecond, "vanished"))
	must.Succeed(t, err)
	await.True(t, "the lease to end under traffic", func() bool {
		s.tryEnter(t, pool, "other")
		s.release(t, pool, "other")
		return s.readSnapshot(t, pool).Leases[0].Remaining < 0
	})
	// The snapshot shows that the lease has ended. The test frees the slot by the id of this lease, which a reaper would also do.
	lease := s.readSnapshot(t, pool).Leases[0]
	expectEqual(t, "slots: the leaked lease", lease, slots.Lease{ID: "vanished", Device: "dev:vanished"})
	expectEqual(t, "slots: reaped", s.release(t, pool, lease.ID), []bool{true})
	if inside := enterRepeatedly(counterLimit, func(i int) bool { return s.tryEnter(t, pool, numberedNames("l", 0, counterLimit)[i]) }); inside != counterLimit {
		t.Errorf("slots: %d held after the leak, want %d", inside, counterLimit)
	}
}

// TestCounterExpiryLetsTwiceTheLimitIn shows fault 3 of the counter: when its key expires, it forgets all holders that still run. So twice
// the limit can run at the same time.
func TestCounterExpiryLetsTwiceTheLimitIn(t *testing.T) {
	t.Parallel()
	c, s, pool := newCounterAndPool(t)
	expire := func(keys ...string) { // simulates the expiry
		t.Helper()
		must.Succeed(t, s.client.Del(t.Context(), keys...).Err())
	}
	counted := func(int) bool { return c.enterIsCounted(t) }
	running := enterRepeatedly(counterLimit+5, counted)
	expire(c.key)
	if more := enterRepeatedly(counterLimit+5, counted); running != counterLimit || more != counterLimit {
		t.Errorf("counter: %d running and %d more, want %d and %d", running, more, counterLimit, counterLimit)
	}

	for _, lease := range numberedNames("old", 0, counterLimit) {
		_, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, newRequests(time.Millisecond, lease))
		must.Succeed(t, err)
	}
	await.True(t, "all leases to end", func() bool {
		for _, l := range s.readSnapshot(t, pool).Leases {
			if l.Remaining >= 0 {
				return false
			}
		}
		return true
	})
	enter := func(i int) bool { return s.tryEnter(t, pool, numberedNames("new", 0, counterLimit)[i]) }
	if more := enterRepeatedly(counterLimit, enter); more != 0 {
		t.Errorf("slots: %d let in beside %d whose lease ended", more, counterLimit)
	}
	for _, key := range slots.Keys(pool) {
		expire(key)
		if more := enterRepeatedly(3, enter); more != 0 {
			t.Errorf("slots: %d let in after %s was lost", more, key)
		}
	}
}

// TestCounterDuplicateReleaseFreesAStrangersSlot shows fault 4 of the counter: if a release of one device arrives twice, it also frees the
// slot of another device.
func TestCounterDuplicateReleaseFreesAStrangersSlot(t *testing.T) {
	t.Parallel()
	c, s, pool := newCounterAndPool(t)
	inside := enterRepeatedly(counterLimit, func(int) bool { return c.enterIsCounted(t) })
	c.leave(t)
	inside--
	c.leave(t) // the release of the same device arrives again
	inside += enterRepeatedly(5, func(int) bool { return c.enterIsCounted(t) })
	if inside != counterLimit+1 {
		t.Errorf("counter: %d inside, want %d: one too many", inside, counterLimit+1)
	}

	leases := numberedNames("l", 0, counterLimit)
	inside = enterRepeatedly(counterLimit, func(i int) bool { return s.tryEnter(t, pool, leases[i]) })
	expectEqual(t, "slots: release", s.release(t, pool, leases[7]), []bool{true})
	inside--
	expectEqual(t, "slots: the same again", s.release(t, pool, leases[7]), []bool{false})
	inside += enterRepeatedly(5, func(i int) bool { return s.tryEnter(t, pool, numberedNames("m", 0, 5)[i]) })
	expectEqual(t, "slots: and late", s.release(t, pool, leases[7]), []bool{false})
	inside += enterRepeatedly(5, func(i int) bool { return s.tryEnter(t, pool, numberedNames("n", 0, 5)[i]) })
	if inside != counterLimit {
		t.Errorf("slots: %d inside, want %d", inside, counterLimit)
	}
}

// TestCounterWithoutAScriptOverGrants shows fault 5, of an older form of the counter: it reads the count, decides in the client, and then
// increments. If two clients read before either of them increments, both may enter.
func TestCounterWithoutAScriptOverGrants(t *testing.T) {
	t.Parallel()
	c, s, pool := newCounterAndPool(t)
	must.Succeed(t, c.client.Set(t.Context(), c.key, counterLimit-1, 0).Err())
	clients := []redis.UniversalClient{s.dial(t, s.Addr), s.dial(t, s.Addr)}
	var read [2]int
	for i, client := range clients {
		n, err := client.Get(t.Context(), c.key).Int()
		must.Succeed(t, err)
		read[i] = n
	}
	inside := counterLimit - 1
	for i, client := range clients {
		if read[i] < counterLimit {
			must.Succeed(t, client.Incr(t.Context(), c.key).Err())
			inside++
		}
	}
	if inside != counterLimit+1 || c.readCount(t) != counterLimit+1 {
		t.Errorf("counter: %d inside, counted %d, want %d: one too many", inside, c.readCount(t), counterLimit+1)
	}

	// In the semaphore, one script both checks that a slot is free and takes it.
	s.acquireAll(t, pool, numberedNames("l", 0, counterLimit-1)...)
	inside = counterLimit - 1
	for i, client := range clients {
		out, _, err := slots.New(client).Acquire(t.Context(), pool, slots.Pace{}, newRequests(time.Minute, numberedNames("two", 0, 2)[i]))
		must.Succeed(t, err)
		if out[0].Status == slots.StatusAcquired {
			inside++
		}
	}
	if inside != counterLimit {
		t.Errorf("slots: %d inside, want %d", inside, counterLimit)
	}
}
