package limits_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
)

// shared contains the servers for all tests of this package that do not break a server.
var shared servers.SharedRedis //nolint:gochecknoglobals // one of each kind per test binary: TestMain ends them

func TestMain(m *testing.M) {
	code := m.Run()
	shared.Close()
	os.Exit(code) //nolint:forbidigo // TestMain's way to end
}

// on runs a test on each kind of Redis.
func on(t *testing.T, test func(t *testing.T, s *server)) {
	t.Helper()
	shared.Each(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		test(t, serve(t, at))
	})
}

// onRedis returns a limiter in a new database of a real Redis.
func onRedis(tb testing.TB) *server {
	tb.Helper()
	return serve(tb, shared.NewDatabase(tb))
}

// onClock returns a limiter in a Redis whose time the test sets.
func onClock(tb testing.TB, now time.Time) (*server, *miniredis.Miniredis) {
	tb.Helper()
	mini := miniredis.RunT(tb)
	mini.SetTime(now)
	return serve(tb, servers.RedisAt{Addr: mini.Addr()}), mini
}

// march returns an arbitrary time on which no result depends.
func march() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// server is a limiter in a running Redis, with a scope for this test only.
type server struct {
	*limits.Limiter

	client redis.UniversalClient
	leases *atomic.Int64
	scope  string
}

func serve(tb testing.TB, at servers.RedisAt) *server {
	tb.Helper()
	client := at.Client(tb)
	return &server{Limiter: limits.New(client), client: client, leases: new(atomic.Int64), scope: tb.Name()}
}

// compiled returns the rules of the policies.
func compiled(tb rapid.TB, policies ...limits.Policy) []*limits.Rule {
	tb.Helper()
	rules, err := limits.Compile("p", policies)
	if err != nil {
		tb.Fatal(err)
	}
	return rules
}

// rules compiles policies and makes their rules known in Redis, with no counts.
func (s *server) rules(tb testing.TB, policies ...limits.Policy) []*limits.Rule {
	tb.Helper()
	rules := compiled(tb, policies...)
	s.know(tb, rules)
	return rules
}

func (s *server) know(tb testing.TB, rules []*limits.Rule, past ...limits.Start) {
	tb.Helper()
	if err := s.Rebuilder.Rebuild(tb.Context(), s.scope, rules, history(past...)); err != nil {
		tb.Fatalf("rebuild: %v", err)
	}
}

// history returns a history with the same starts at each reading.
func history(starts ...limits.Start) limits.History {
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

// check returns a check of a start of the account, with a new lease.
func (s *server) check(rules []*limits.Rule, account string) limits.Check {
	n := s.leases.Add(1)
	group := "g" + strconv.FormatInt(n, 10)
	return limits.NewCheck(fmt.Sprintf("%d.1.%s", n, group), group, rules, facts(account))
}

func facts(account string) limits.Facts {
	return limits.Facts{
		Device: "d1", Pool: "pool", Kind: "test", Batch: 7, Tags: map[string]string{"account": account},
		Payload: json.RawMessage(`{"server": "` + account + `"}`), Facts: map[string]string{"account": account},
	}
}

func (s *server) reserve(tb testing.TB, c limits.Check) limits.Answer {
	tb.Helper()
	answers, err := s.Reservations.Reserve(tb.Context(), s.scope, []limits.Check{c})
	if err != nil || len(answers) != 1 {
		tb.Fatalf("reserve: %v, %v", answers, err)
	}
	return answers[0]
}

func (s *server) mustReserve(tb testing.TB, c limits.Check) {
	tb.Helper()
	if a := s.reserve(tb, c); a.Status != limits.StatusPassed {
		tb.Fatalf("%s may not start: %+v", c.Lease, a)
	}
}

func (s *server) count(tb testing.TB, c limits.Check) {
	tb.Helper()
	s.countLate(tb, c, 0)
}

func (s *server) countLate(tb testing.TB, c limits.Check, ago time.Duration) {
	tb.Helper()
	if err := s.Reservations.Count(tb.Context(), s.scope, []limits.Check{c}, ago); err != nil {
		tb.Fatalf("count: %v", err)
	}
}

// setOf returns the rules of a limit set with the same policies, which count by facts instead of
// tags.
func setOf(tb rapid.TB, policies ...limits.Policy) []*limits.Rule {
	tb.Helper()
	of := slices.Clone(policies)
	for i := range of {
		of[i].Per = strings.ReplaceAll(of[i].Per, "tags.", "facts.")
	}
	rules, err := limits.CompileSet("s", of)
	if err != nil {
		tb.Fatal(err)
	}
	return rules
}

// take takes a cost of 1 of the account, without an id.
func (s *server) take(tb testing.TB, rules []*limits.Rule, account string) limits.Taken {
	tb.Helper()
	return s.takeAs(tb, rules, "", 1, account)
}

func (s *server) takeAs(tb testing.TB, rules []*limits.Rule, id string, cost int64, account string) limits.Taken {
	tb.Helper()
	taken, err := s.Takes.Take(tb.Context(), s.scope, []limits.Taking{limits.NewTaking(id, cost, rules, facts(account))})
	if err != nil || len(taken) != 1 {
		tb.Fatalf("take: %v, %v", taken, err)
	}
	return taken[0]
}

func (s *server) release(tb testing.TB, c limits.Check) {
	tb.Helper()
	if err := s.Reservations.Release(tb.Context(), s.scope, []limits.Check{c}); err != nil {
		tb.Fatalf("release: %v", err)
	}
}

// start reserves and counts a start of the account. It reports whether the start was allowed.
func (s *server) start(tb testing.TB, rules []*limits.Rule, account string) bool {
	tb.Helper()
	c := s.check(rules, account)
	if s.reserve(tb, c).Status != limits.StatusPassed {
		return false
	}
	s.count(tb, c)
	return true
}

func (s *server) key(name string) string { return "limits:{" + s.scope + "}:" + name }

// subject returns the key of the subject of account a.
func (s *server) subject(rule *limits.Rule) string {
	return limits.SubjectKey(s.scope, rule, rule.Subject(facts("a")))
}

// keys returns all keys of the scope in Redis.
func (s *server) keys(tb testing.TB) []string {
	tb.Helper()
	keys, err := s.client.Keys(tb.Context(), s.key("*")).Result()
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

// hourly returns a policy that allows at most `most` starts per hour.
func hourly(most int64) limits.Policy {
	return perAccount(limits.Window{Max: most, PerMS: 3_600_000})
}

func perAccount(windows ...limits.Window) limits.Policy {
	return limits.Policy{Name: "per-account", Per: "tags.account", Algorithm: limits.Sliding, Windows: windows}
}
