package limits_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// sharedRedis holds one Redis server of each kind. All tests of this package use these servers, except tests that
// stop or break a server.
var sharedRedis servers.SharedRedis //nolint:gochecknoglobals // one of each kind per test binary: TestMain ends them

func TestMain(m *testing.M) {
	m.Run()
	sharedRedis.Close()
}

// runOnEachRedis runs a test once on each kind of Redis: a single server, a Cluster and the in-process Redis
// (miniredis).
func runOnEachRedis(t *testing.T, test func(t *testing.T, s *redisLimiter)) {
	t.Helper()
	sharedRedis.RunOnEach(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		test(t, connect(t, at))
	})
}

// newRedisLimiter returns a limiter in a new database of a real Redis.
func newRedisLimiter(tb testing.TB) *redisLimiter {
	tb.Helper()
	return connect(tb, sharedRedis.NewDatabase(tb))
}

// newClockLimiter returns a limiter on an in-process Redis. The clock of this Redis is at now until the test sets it.
func newClockLimiter(tb testing.TB, now time.Time) (*redisLimiter, *miniredis.Miniredis) {
	tb.Helper()
	mini := miniredis.RunT(tb)
	mini.SetTime(now)
	return connect(tb, servers.RedisAt{Addr: mini.Addr()}), mini
}

// arbitraryTime returns a fixed time. No test result depends on which time it is.
func arbitraryTime() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// redisLimiter is a limiter in a running Redis. Only one test uses its scope (the prefix of its keys).
type redisLimiter struct {
	*limits.Limiter

	client      redis.UniversalClient
	leaseNumber *atomic.Int64
	scope       string
}

func connect(tb testing.TB, at servers.RedisAt) *redisLimiter {
	tb.Helper()
	client := at.Client(tb)
	return &redisLimiter{Limiter: limits.New(client), client: client, leaseNumber: new(atomic.Int64), scope: tb.Name()}
}

// compileRules compiles the policies and returns one rule for each.
func compileRules(tb rapid.TB, policies ...policy.Policy) []*limits.Rule {
	tb.Helper()
	rules, err := limits.Compile("p", policies)
	must.Succeed(tb, err)
	return rules
}

// newRules compiles the policies and fills their rules in Redis from an empty history. Then all these rules are known and have counted
// nothing.
func (s *redisLimiter) newRules(tb testing.TB, policies ...policy.Policy) []*limits.Rule {
	tb.Helper()
	rules := compileRules(tb, policies...)
	s.rebuild(tb, rules)
	return rules
}

func (s *redisLimiter) rebuild(tb testing.TB, rules []*limits.Rule, past ...limits.Start) {
	tb.Helper()
	if err := s.Rebuilder.Rebuild(tb.Context(), s.scope, rules, newHistory(past...)); err != nil {
		tb.Fatalf("rebuild: %v", err)
	}
}

// newHistory returns a history that contains the given starts, at each reading.
func newHistory(starts ...limits.Start) limits.History {
	return func(_ context.Context, within time.Duration) iter.Seq2[limits.Start, error] {
		return func(yield func(limits.Start, error) bool) {
			for _, start := range starts {
				if start.Ago < within && !yield(start, nil) {
					return
				}
			}
		}
	}
}

// newCheck returns a check that asks whether a task of the account may start now. The check has a new lease id and a Group of its own.
func (s *redisLimiter) newCheck(rules []*limits.Rule, account string) limits.Check {
	n := s.leaseNumber.Add(1)
	group := "g" + strconv.FormatInt(n, 10)
	return limits.NewCheck(fmt.Sprintf("%d.1.%s", n, group), group, rules, accountFacts(account))
}

func accountFacts(account string) limits.Facts {
	return limits.Facts{
		Device: "d1", Pool: "pool", Kind: "test", Batch: 7, Tags: map[string]string{"account": account},
		Payload: json.RawMessage(`{"server": "` + account + `"}`), Facts: map[string]string{"account": account},
	}
}

func (s *redisLimiter) reserve(tb testing.TB, c limits.Check) limits.Answer {
	tb.Helper()
	answers, err := s.Reservations.Reserve(tb.Context(), s.scope, []limits.Check{c})
	if err != nil || len(answers) != 1 {
		tb.Fatalf("reserve: %v, %v", answers, err)
	}
	return answers[0]
}

func (s *redisLimiter) mustReserve(tb testing.TB, c limits.Check) {
	tb.Helper()
	if a := s.reserve(tb, c); a.Status != limits.StatusPassed {
		tb.Fatalf("%s may not start: %+v", c.Lease, a)
	}
}

func (s *redisLimiter) countStart(tb testing.TB, c limits.Check) {
	tb.Helper()
	s.countLate(tb, c, 0)
}

func (s *redisLimiter) countLate(tb testing.TB, c limits.Check, ago time.Duration) {
	tb.Helper()
	if err := s.Reservations.Count(tb.Context(), s.scope, []limits.Check{c}, ago); err != nil {
		tb.Fatalf("count: %v", err)
	}
}

// compileSet returns the rules of a limit set with the given policies. It replaces tags in Per with facts, because a limit set counts by
// facts that a caller sends.
func compileSet(tb rapid.TB, policies ...policy.Policy) []*limits.Rule {
	tb.Helper()
	of := slices.Clone(policies)
	for i := range of {
		of[i].Per = strings.ReplaceAll(of[i].Per, "tags.", "facts.")
	}
	rules, err := limits.CompileSet("s", of)
	must.Succeed(tb, err)
	return rules
}

// take sends one take (a request to a limit set) for the account, with a cost of 1 and without an id.
func (s *redisLimiter) take(tb testing.TB, rules []*limits.Rule, account string) limits.TakeResult {
	tb.Helper()
	return s.takeWithID(tb, rules, "", 1, account)
}

func (s *redisLimiter) takeWithID(tb testing.TB, rules []*limits.Rule, id string, cost int64, account string) limits.TakeResult {
	tb.Helper()
	taken, err := s.Takes.Take(tb.Context(), s.scope, []limits.Taking{limits.NewTaking(id, cost, rules, accountFacts(account))})
	if err != nil || len(taken) != 1 {
		tb.Fatalf("take: %v, %v", taken, err)
	}
	return taken[0]
}

func (s *redisLimiter) release(tb testing.TB, c limits.Check) {
	tb.Helper()
	if err := s.Reservations.Release(tb.Context(), s.scope, []limits.Check{c}); err != nil {
		tb.Fatalf("release: %v", err)
	}
}

// tryStart reserves a start of the account. If the start is allowed, tryStart counts it as started and returns true.
func (s *redisLimiter) tryStart(tb testing.TB, rules []*limits.Rule, account string) bool {
	tb.Helper()
	c := s.newCheck(rules, account)
	if s.reserve(tb, c).Status != limits.StatusPassed {
		return false
	}
	s.countStart(tb, c)
	return true
}

func (s *redisLimiter) redisKey(name string) string { return "limits:{" + s.scope + "}:" + name }

// subjectKey returns the Redis key in which the rule counts the starts of account a.
func (s *redisLimiter) subjectKey(rule *limits.Rule) string {
	return limits.SubjectKey(s.scope, rule, rule.Subject(accountFacts("a")))
}

// redisKeys returns all Redis keys of the limiter's scope.
func (s *redisLimiter) redisKeys(tb testing.TB) []string {
	tb.Helper()
	keys, err := s.client.Keys(tb.Context(), s.redisKey("*")).Result()
	must.Succeed(tb, err)
	return keys
}

// hourlyPolicy returns a policy that allows at most maxStarts starts per hour.
func hourlyPolicy(maxStarts int64) policy.Policy {
	return accountPolicy(policy.Window{Max: maxStarts, PerMS: 3_600_000})
}

func accountPolicy(windows ...policy.Window) policy.Policy {
	return policy.Policy{Name: "per-account", Per: "tags.account", Algorithm: policy.Sliding, Windows: windows}
}
