package slots_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/slots"
)

// limit is the limit of the counter, and the capacity of the pool that is compared with it.
const limit = 60

// counterAcquire and counterRelease are the widely copied scripts that use one counter.
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

// counter is the plain counter with its usual scripts.
type counter struct {
	client          redis.UniversalClient
	acquireS, freeS *redis.Script
	key             string
}

func newCounter(client redis.UniversalClient, key string) *counter {
	return &counter{
		client: client, key: key,
		acquireS: redis.NewScript(counterAcquire), freeS: redis.NewScript(counterRelease),
	}
}

// acquire returns the count. The caller treats a count of limit or more as full.
func (c *counter) acquire(ctx context.Context) (int, error) {
	return c.acquireS.Run(ctx, c.client, []string{c.key}, limit).Int()
}

func (c *counter) release(ctx context.Context) error {
	return c.freeS.Run(ctx, c.client, []string{c.key}).Err()
}

// enter is acquire with the caller's check. It reports whether the device may start.
func (c *counter) enter(t *testing.T) bool {
	t.Helper()
	count, err := c.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return count < limit
}

func (c *counter) leave(t *testing.T) {
	t.Helper()
	if err := c.release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// counted is enter for a caller with a correct comparison. It reports whether the script
// incremented the counter.
func (c *counter) counted(t *testing.T) bool {
	t.Helper()
	before := c.value(t)
	c.enter(t)
	return c.value(t) > before
}

func (c *counter) value(t *testing.T) int {
	t.Helper()
	n, err := c.client.Get(t.Context(), c.key).Int()
	if err != nil && err != redis.Nil { //nolint:errorlint // returned as it is
		t.Fatal(err)
	}
	return n
}

// fill calls enter n times. It returns how many calls were allowed.
func fill(n int, enter func(i int) bool) (inside int) {
	for i := range n {
		if enter(i) {
			inside++
		}
	}
	return inside
}

func (s *server) enter(t *testing.T, pool, lease string) bool {
	t.Helper()
	return s.acquire(t, pool, lease).Status == slots.StatusAcquired
}

// onBoth returns an empty counter and an empty pool in one Redis.
func onBoth(t *testing.T) (*counter, *server, string) {
	t.Helper()
	s := onRedis(t)
	return newCounter(s.client, "semaphore"), s, s.poolOf(t, limit)
}

// Fault 1: the counter counts the 60th device and refuses it. Only 59 slots are usable, and each
// time the counter is full it loses one slot permanently.
func TestCounterRefusesTheLastSlotAndLeaksIt(t *testing.T) {
	t.Parallel()
	c, s, pool := onBoth(t)
	for round, want := range []int{59, 58, 57} {
		inside := fill(limit, func(int) bool { return c.enter(t) })
		if inside != want {
			t.Errorf("counter, round %d: %d of %d let in, want %d", round, inside, limit, want)
		}
		for range inside {
			c.leave(t)
		}
		if got := c.value(t); got != round+1 {
			t.Errorf("counter, round %d: %d leaked with nobody inside, want %d", round, got, round+1)
		}
	}
	for round := range 3 {
		leases := names("l", 0, limit)
		if inside := fill(limit, func(i int) bool { return s.enter(t, pool, leases[i]) }); inside != limit {
			t.Errorf("slots, round %d: %d let in, want %d", round, inside, limit)
		}
		if s.enter(t, pool, "one too many") {
			t.Errorf("slots, round %d: %d let in", round, limit+1)
		}
		s.release(t, pool, leases...)
		if got := len(s.holders(t, pool)); got != 0 {
			t.Errorf("slots, round %d: %d held with nobody inside", round, got)
		}
	}
}

// Fault 2: a slot whose holder vanished becomes free when the key expires, but calls of other
// holders keep the key alive.
func TestCounterLeakOutlivesItsTTLUnderTraffic(t *testing.T) {
	t.Parallel()
	c, s, pool := onBoth(t)
	c.enter(t) // this holder vanishes
	for range 5 {
		// This simulates that 299 s have passed.
		if err := c.client.PExpire(t.Context(), c.key, time.Second).Err(); err != nil {
			t.Fatal(err)
		}
		c.enter(t)
		c.leave(t)
		if left := c.client.PTTL(t.Context(), c.key).Val(); left < 250*time.Second {
			t.Fatalf("counter: %s left, want it refreshed to 300 s", left)
		}
		if got := c.value(t); got != 1 {
			t.Fatalf("counter: %d, want the leaked 1 to stay for ever", got)
		}
	}

	if _, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, requests(20*time.Millisecond, "vanished")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease to end under traffic", func() bool {
		s.enter(t, pool, "other")
		s.release(t, pool, "other")
		return s.snapshot(t, pool).Leases[0].Remaining < 0
	})
	// The snapshot shows the lease as ended. The test frees the slot by the lease's own id, as a
	// reaper does.
	lease := s.snapshot(t, pool).Leases[0]
	diff(t, "slots: the leaked lease", lease, slots.Lease{ID: "vanished", Device: "dev:vanished"})
	diff(t, "slots: reaped", s.release(t, pool, lease.ID), []bool{true})
	if inside := fill(limit, func(i int) bool { return s.enter(t, pool, names("l", 0, limit)[i]) }); inside != limit {
		t.Errorf("slots: %d held after the leak, want %d", inside, limit)
	}
}

// Fault 3: when the key expires, the counter forgets all running holders.
func TestCounterExpiryLetsTwiceTheLimitIn(t *testing.T) {
	t.Parallel()
	c, s, pool := onBoth(t)
	expire := func(keys ...string) { // simulates the expiry
		t.Helper()
		if err := s.client.Del(t.Context(), keys...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	counted := func(int) bool { return c.counted(t) }
	running := fill(limit+5, counted)
	expire(c.key)
	if more := fill(limit+5, counted); running != limit || more != limit {
		t.Errorf("counter: %d running and %d more, want %d and %d", running, more, limit, limit)
	}

	for _, lease := range names("old", 0, limit) {
		if _, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, requests(time.Millisecond, lease)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all leases to end", func() bool {
		for _, l := range s.snapshot(t, pool).Leases {
			if l.Remaining >= 0 {
				return false
			}
		}
		return true
	})
	enter := func(i int) bool { return s.enter(t, pool, names("new", 0, limit)[i]) }
	if more := fill(limit, enter); more != 0 {
		t.Errorf("slots: %d let in beside %d whose lease ended", more, limit)
	}
	for _, key := range slots.Keys(pool) {
		expire(key)
		if more := fill(3, enter); more != 0 {
			t.Errorf("slots: %d let in after %s was lost", more, key)
		}
	}
}

// Fault 4: a release that arrives twice also frees the slot of another device.
func TestCounterDuplicateReleaseFreesAStrangersSlot(t *testing.T) {
	t.Parallel()
	c, s, pool := onBoth(t)
	inside := fill(limit, func(int) bool { return c.counted(t) })
	c.leave(t)
	inside--
	c.leave(t) // the same message again
	inside += fill(5, func(int) bool { return c.counted(t) })
	if inside != limit+1 {
		t.Errorf("counter: %d inside, want %d: one too many", inside, limit+1)
	}

	leases := names("l", 0, limit)
	inside = fill(limit, func(i int) bool { return s.enter(t, pool, leases[i]) })
	diff(t, "slots: release", s.release(t, pool, leases[7]), []bool{true})
	inside--
	diff(t, "slots: the same again", s.release(t, pool, leases[7]), []bool{false})
	inside += fill(5, func(i int) bool { return s.enter(t, pool, names("m", 0, 5)[i]) })
	diff(t, "slots: and late", s.release(t, pool, leases[7]), []bool{false})
	inside += fill(5, func(i int) bool { return s.enter(t, pool, names("n", 0, 5)[i]) })
	if inside != limit {
		t.Errorf("slots: %d inside, want %d", inside, limit)
	}
}

// Fault 5: an older form of the counter reads, decides in the client, and then increments. Two
// clients that read before either client increments both enter.
func TestCounterWithoutAScriptOverGrants(t *testing.T) {
	t.Parallel()
	c, s, pool := onBoth(t)
	if err := c.client.Set(t.Context(), c.key, limit-1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	clients := []redis.UniversalClient{s.dial(t, s.Addr), s.dial(t, s.Addr)}
	var read [2]int
	for i, client := range clients {
		n, err := client.Get(t.Context(), c.key).Int()
		if err != nil {
			t.Fatal(err)
		}
		read[i] = n
	}
	inside := limit - 1
	for i, client := range clients {
		if read[i] < limit {
			if err := client.Incr(t.Context(), c.key).Err(); err != nil {
				t.Fatal(err)
			}
			inside++
		}
	}
	if inside != limit+1 || c.value(t) != limit+1 {
		t.Errorf("counter: %d inside, counted %d, want %d: one too many", inside, c.value(t), limit+1)
	}

	// In the semaphore, reading and taking a slot are one step.
	s.acquireAll(t, pool, names("l", 0, limit-1)...)
	inside = limit - 1
	for i, client := range clients {
		out, _, err := slots.New(client).Acquire(t.Context(), pool, slots.Pace{}, requests(time.Minute, names("two", 0, 2)[i]))
		if err != nil {
			t.Fatal(err)
		}
		if out[0].Status == slots.StatusAcquired {
			inside++
		}
	}
	if inside != limit {
		t.Errorf("slots: %d inside, want %d", inside, limit)
	}
}
