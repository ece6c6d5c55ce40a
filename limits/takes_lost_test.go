package limits_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// TestALostAnswerCountsOnce checks takes (requests to a limit set) whose reply is lost. A take with an id must be sent again and count
// once. A take without an id must be sent only once, even by a client that retries by itself.
func TestALostAnswerCountsOnce(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t)
	way := servers.NewProxy(t, server.Addr)
	sure := connect(t, servers.RedisAt{Addr: server.Addr})
	for name, retries := range map[string]int{"client": -1, "client that repeats": 3} {
		rules := compileSet(t, hourlyPolicy(10))
		for _, id := range []string{"", "id"} {
			client := redis.NewClient(&redis.Options{Addr: way.Addr, MaxRetries: retries, ReadTimeout: 20 * time.Second})
			t.Cleanup(func() { _ = client.Close() })
			lossy := *sure
			lossy.Limiter = limits.New(client)
			account := name + id
			take := func() (limits.TakeResult, error) {
				a, err := lossy.Takes.Take(t.Context(), sure.scope, []limits.Taking{limits.NewTaking(id, 2, rules, accountFacts(account))})
				return append(a, limits.TakeResult{})[0], err
			}
			lossy.take(t, rules, "warm")
			way.DropReplies(1)
			a, err := take()
			if lost := errors.Is(err, limits.ErrUnavailable); lost == (id != "") {
				t.Errorf("%s, id %q: %+v, %v", name, id, a, err)
			}
			if id != "" && !a.Allowed {
				t.Errorf("%s: %+v", name, a)
			}
			if use := sure.peekStanding(t, rules, account); use.Used != 2 {
				t.Errorf("%s, id %q: %+v", name, id, use)
			}
		}
	}
}

// TestTakesBeginEmptyAndSaySo checks a limit set that is new, or whose counts Redis has lost. It must begin with no counts, and Since must
// be the time at which it began.
func TestTakesBeginEmptyAndSaySo(t *testing.T) {
	t.Parallel()
	now := arbitraryTime()
	s, mini := newClockLimiter(t, now)
	rules := compileSet(t, accountPolicy(policy.Window{Max: 2, PerMS: 60_000}, policy.Window{Max: 5, PerMS: 3_600_000}))
	since := func(at time.Time) {
		t.Helper()
		if a := s.takeWithID(t, rules, "", 2, fmt.Sprint(now)); !a.Allowed || !a.Since.Equal(at) {
			t.Errorf("at %s: %+v, want it counted since %s", now, a, at)
		}
	}
	since(now)
	began := now
	now = now.Add(time.Hour - time.Millisecond)
	mini.SetTime(now)
	since(began)
	now = now.Add(time.Millisecond)
	mini.SetTime(now)
	since(time.Time{})
	mini.FlushAll()
	since(now)
}
