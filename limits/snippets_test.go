package limits_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// The tests of this file use five widely copied limiters in their usual form. On a real Redis they show the faults of each limiter, and
// what this package does in the same situation.

// dailyQuota is a copied limiter that counts the starts of a day in one key. The caller determines the day by its own clock. The limit is
// passed as a key, not as an argument.
const dailyQuota = `
local n = redis.call('INCRBY', KEYS[1], 1)
if n == 1 then redis.call('EXPIRE', KEYS[1], 86400) end
if n > tonumber(KEYS[2]) then return 0 end
return 1`

// severalWindows is a copied limiter that stores the times of starts in a sorted set. The times are from the caller's clock. A time is its
// own member of the set, so two starts with equal times count as one.
const severalWindows = `
local now = tonumber(ARGV[1])
for i = 2, #ARGV, 2 do
  local max, per = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local nth = redis.call('ZREVRANGE', KEYS[1], max - 1, max - 1)
  if tonumber(nth[1]) > now - per then return 0 end
end
redis.call('ZADD', KEYS[1], now, now)
return 1`

// severalWindowsFixed returns severalWindows without its first fault, an error in the first call.
func severalWindowsFixed() string {
	return strings.Replace(severalWindows, "if tonumber(nth[1])", "if nth[1] and tonumber(nth[1])", 1)
}

// cappedList is a copied limiter that stores the newest times of starts in a list. The times are from the caller's clock.
const cappedList = `
local now, max, per = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if redis.call('LLEN', KEYS[1]) >= max then
  if tonumber(redis.call('LINDEX', KEYS[1], -1)) > now - per then return 0 end
  redis.call('RPOP', KEYS[1])
end
redis.call('LPUSH', KEYS[1], now)
return 1`

// simpleCounter is a copied limiter that sends INCR and EXPIRE as two commands. If the process ends between these commands, EXPIRE is
// missing. beforeExpire is called between them.
func simpleCounter(ctx context.Context, client redis.UniversalClient, key string, maxStarts int64, per time.Duration, beforeExpire func() error) (bool, error) {
	n, err := client.Incr(ctx, key).Result()
	if err != nil {
		return false, err
	}
	if n == 1 {
		if err := beforeExpire(); err != nil { // the process may end here
			return false, err
		}
		if err := client.Expire(ctx, key, per).Err(); err != nil {
			return false, err
		}
	}
	return n <= maxStarts, nil
}

// allowDuplicate is a copied limiter that allows every start if Redis fails.
func allowDuplicate(ctx context.Context, client redis.UniversalClient, key string, maxStarts int64) bool {
	n, err := client.Incr(ctx, key).Result()
	return err != nil || n <= maxStarts
}

func runScript(t *testing.T, client redis.UniversalClient, script string, keys []string, args ...any) (bool, error) {
	t.Helper()
	n, err := client.Eval(t.Context(), script, keys, args...).Int()
	return n == 1, err
}

// TestSnippetDailyQuota shows two faults of dailyQuota. It counts refused starts, so it still refuses after the limit was raised. It passes
// the limit as a key, and in a Cluster this key belongs to another hash slot. This package has neither fault.
func TestSnippetDailyQuota(t *testing.T) {
	t.Parallel()
	s := newRedisLimiter(t)
	for i := range 10 {
		if ok, err := runScript(t, s.client, dailyQuota, []string{"quota:a", "2"}); err != nil || ok != (i < 2) {
			t.Fatalf("call %d: %t, %v", i, ok, err)
		}
	}
	if ok, _ := runScript(t, s.client, dailyQuota, []string{"quota:a", "5"}); ok {
		t.Error("the snippet did not count what it refused")
	}
	cluster := connect(t, sharedRedis.Cluster(t))
	if _, err := runScript(t, cluster.client, dailyQuota, []string{"quota:a", "2"}); err == nil || !strings.Contains(err.Error(), "slot") {
		t.Errorf("the snippet works on a Cluster: %v", err)
	}
	for _, s := range []*redisLimiter{s, cluster} {
		policy := policy.Policy{Name: "daily", Per: "tags.account", Algorithm: policy.Calendar, Period: policy.Month, Timezone: servers.NoonZone(), Max: 2}
		rules := s.newRules(t, policy)
		for i := range 10 {
			if got := s.tryStart(t, rules, "a"); got != (i < 2) {
				t.Errorf("ours, call %d: %t", i, got)
			}
		}
		policy.Max = 5 // the history contains 2 starts and no refused start
		rules = compileRules(t, policy)
		s.rebuild(t, rules, limits.Start{Lease: "1.1.a", Facts: accountFacts("a")}, limits.Start{Lease: "2.1.a", Facts: accountFacts("a")})
		for i := range 5 {
			if got := s.tryStart(t, rules, "a"); got != (i < 3) {
				t.Errorf("ours with 5, call %d: %t", i, got)
			}
		}
	}
}

// TestSnippetDayOfTheServer shows two faults of dailyQuota. It uses the day of the caller's machine, and a subject whose key has no TTL is
// blocked permanently. This package uses the day of the configured time zone, also when the clocks change, and does not depend on a TTL.
func TestSnippetDayOfTheServer(t *testing.T) {
	t.Parallel()
	r := newRealRedis(t, servers.StartRedis(t))
	s := r.connect()
	evening := time.Date(2026, 10, 25, 22, 30, 0, 0, time.UTC) // 23:30 in Berlin, after a day of 25 hours
	r.setClock(evening)
	rules := s.newRules(t, policy.Policy{Name: "daily", Per: "tags.account", Algorithm: policy.Calendar, Period: policy.Day, Timezone: "Europe/Berlin", Max: 1})
	key := func(now time.Time) []string { return []string{"quota:a:" + now.UTC().Format(time.DateOnly), "1"} }
	for _, c := range []struct {
		in           time.Duration
		snippet, our bool
	}{{0, true, true}, {29 * time.Minute, false, false}, {31 * time.Minute, false, true}, {89 * time.Minute, false, false}, {91 * time.Minute, true, false}} {
		now := evening.Add(c.in)
		r.setClock(now)
		if ok, err := runScript(t, r.directClient, dailyQuota, key(now)); err != nil || ok != c.snippet {
			t.Errorf("the snippet, at %s: %t, %v", now, ok, err)
		}
		if got := s.tryStart(t, rules, "a"); got != c.our {
			t.Errorf("ours, at %s: %t", now, got)
		}
	}

	r.must(r.directClient.Set(t.Context(), "quota:b", 1, 0).Err()) // a process that ended before EXPIRE has left this key
	if ok, err := runScript(t, r.directClient, dailyQuota, []string{"quota:b", "1"}); err != nil || ok || r.directClient.PTTL(t.Context(), "quota:b").Val() != -1 {
		t.Errorf("the snippet, of a key without TTL: %t, %v", ok, err)
	}
	subject := s.subjectKey(rules[0])
	if ttl := r.directClient.PTTL(t.Context(), subject).Val(); ttl != -1 {
		t.Fatalf("ours ends in %s, want that of a test without TTL", ttl)
	}
	r.setClock(evening.Add(24 * time.Hour))
	if a := s.reserve(t, s.newCheck(rules, "a")); a.Status != limits.StatusLimited {
		t.Errorf("ours without TTL, on the same day: %+v", a)
	}
	r.setClock(evening.Add(25 * time.Hour))
	if a := s.reserve(t, s.newCheck(rules, "a")); a.Status != limits.StatusPassed {
		t.Errorf("ours without TTL, on the next day: %+v", a)
	}
}

// TestSnippetSeveralWindows shows four faults of severalWindows. Its first call fails. Two calls in the same millisecond count as one. Its
// keys never expire. A caller whose clock is ahead passes even if the window is full.
func TestSnippetSeveralWindows(t *testing.T) {
	t.Parallel()
	s := newRedisLimiter(t)
	now := time.Now().UnixMilli()
	if _, err := runScript(t, s.client, severalWindows, []string{"first"}, now, 1, 60_000); err == nil || !strings.Contains(err.Error(), "nil") {
		t.Errorf("the snippet's first call: %v", err)
	}
	passes := 0
	for range 5 { // all five are in the same millisecond
		if ok, _ := runScript(t, s.client, severalWindowsFixed(), []string{"z"}, now, 2, 60_000); ok {
			passes++
		}
	}
	if passes != 5 {
		t.Errorf("%d of one millisecond passed the snippet, want all 5", passes)
	}
	_, _ = runScript(t, s.client, severalWindowsFixed(), []string{"ahead"}, now, 1, 60_000)
	if ok, _ := runScript(t, s.client, severalWindowsFixed(), []string{"ahead"}, now+61_000, 1, 60_000); !ok {
		t.Error("a caller whose clock is ahead is refused by the snippet")
	}
	if ttl := s.client.PTTL(t.Context(), "z").Val(); ttl != -1 {
		t.Errorf("the snippet's set ends in %d", ttl)
	}

	rules := compileSet(t, accountPolicy(policy.Window{Max: 2, PerMS: 60_000}, policy.Window{Max: 5, PerMS: 3_600_000}))
	one := limits.NewTaking("", 1, rules, accountFacts("a"))
	answers, err := s.Takes.Take(t.Context(), s.scope, []limits.Taking{one, one, one, one, one}) // all takes in one call
	must.Succeed(t, err)
	for i, a := range answers {
		if a.Allowed != (i < 2) {
			t.Errorf("ours, %d at once: %+v", i, a)
		}
	}
	if last := answers[4].Items[0]; last.Window != 0 || last.Wait <= 0 || last.Wait > time.Minute {
		t.Errorf("ours says %+v", last)
	}
	ahead := limits.NewWithLocalClock(s.client, func() time.Time { return time.Now().Add(time.Hour) })
	if a, err := ahead.Takes.Take(t.Context(), s.scope, []limits.Taking{one}); err != nil || a[0].Allowed {
		t.Errorf("ours, with a clock that is ahead: %+v, %v", a, err)
	}
	if ttl := s.client.PTTL(t.Context(), s.subjectKey(rules[0])).Val(); ttl <= 0 || ttl > time.Hour+time.Second { // the list outlives its longest window by a second
		t.Errorf("ours ends in %s", ttl)
	}
}

// TestSnippetCappedList shows two faults of cappedList: it uses the caller's clock, and its keys never expire. Its memory is bounded. The
// memory of this package is bounded, too, and it has neither fault.
func TestSnippetCappedList(t *testing.T) {
	t.Parallel()
	s := newRedisLimiter(t)
	now := time.Now().UnixMilli()
	for i := range 5 {
		if ok, err := runScript(t, s.client, cappedList, []string{"l"}, now, 3, 3_600_000); err != nil || ok != (i < 3) {
			t.Fatalf("call %d: %t, %v", i, ok, err)
		}
	}
	if ok, _ := runScript(t, s.client, cappedList, []string{"l"}, now+3_600_001, 3, 3_600_000); !ok {
		t.Error("a caller whose clock is ahead is refused by the snippet")
	}
	if ttl := s.client.PTTL(t.Context(), "l").Val(); ttl != -1 {
		t.Errorf("the snippet's list ends in %d", ttl)
	}
	rules := compileSet(t, hourlyPolicy(200))
	key := s.subjectKey(rules[0])
	for i := range 250 {
		if a := s.take(t, rules, "a"); a.Allowed != (i < 200) {
			t.Fatalf("ours, call %d: %+v", i, a)
		}
	}
	if n, ttl := s.client.LLen(t.Context(), key).Val(), s.client.PTTL(t.Context(), key).Val(); n != 200 || ttl <= 0 {
		t.Errorf("ours keeps %d, which end in %s", n, ttl)
	}
}

// TestSnippetSimpleCounter shows the fault of simpleCounter. If a process ends between the two commands, its subject is blocked
// permanently.
func TestSnippetSimpleCounter(t *testing.T) {
	t.Parallel()
	s := newRedisLimiter(t)
	ended := errors.New("killed")
	if _, err := simpleCounter(t.Context(), s.client, "c", 1, time.Millisecond, func() error { return ended }); !errors.Is(err, ended) {
		t.Fatal(err)
	}
	if ok, _ := simpleCounter(t.Context(), s.client, "c", 1, time.Millisecond, func() error { return nil }); ok || s.client.PTTL(t.Context(), "c").Val() != -1 {
		t.Error("the snippet's counter ends after all")
	}
	rules := s.newRules(t, policy.Policy{Name: "n", Per: "tags.account", Algorithm: policy.Fixed, PerMS: 3_600_000, Max: 1})
	s.reserve(t, s.newCheck(rules, "a")) // the process ends after this reservation
	s.SetSettleWithin(0)
	overdue, err := s.Reservations.Overdue(t.Context(), s.scope)
	if err != nil || len(overdue) != 1 {
		t.Fatalf("overdue: %v, %v", overdue, err)
	}
	s.release(t, limits.Check{Lease: overdue[0]})
	s.SetSettleWithin(time.Minute)
	if !s.tryStart(t, rules, "a") || s.tryStart(t, rules, "a") {
		t.Error("ours: want one start")
	}
	if ttl := s.client.PTTL(t.Context(), s.subjectKey(rules[0])).Val(); ttl <= 0 || ttl > time.Hour {
		t.Errorf("ours ends in %s", ttl)
	}
}

// TestSnippetDuplicates shows that the copied duplicate check allows every start while Redis is not reachable. This
// package returns an error.
func TestSnippetDuplicates(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s := connect(t, servers.RedisAt{Addr: r.Addr})
	rules := s.newRules(t, policy.Policy{Name: "same", Algorithm: policy.Duplicate, PerMS: 3_600_000, Max: 2})
	for i := range 3 {
		if got := allowDuplicate(t.Context(), s.client, "dup", 2); got != (i < 2) {
			t.Errorf("the snippet, call %d: %t", i, got)
		}
		if got := s.tryStart(t, rules, "a"); got != (i < 2) {
			t.Errorf("ours, call %d: %t", i, got)
		}
	}
	r.Kill()
	for range 3 {
		if !allowDuplicate(t.Context(), s.client, "dup", 2) {
			t.Error("the snippet refuses without Redis")
		}
		if _, err := s.Reservations.Reserve(t.Context(), s.scope, []limits.Check{s.newCheck(rules, "a")}); !errors.Is(err, limits.ErrUnavailable) {
			t.Errorf("ours without Redis: %v", err)
		}
	}
}
