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

// shared are the servers of all tests of this package that do not break them.
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

// onRedis is a limiter in a database of a real Redis.
func onRedis(tb testing.TB) *server {
	tb.Helper()
	return serve(tb, shared.NewDatabase(tb))
}

// onClock is a limiter in a Redis of which the test sets the time.
func onClock(tb testing.TB, now time.Time) (*server, *miniredis.Miniredis) {
	tb.Helper()
	mini := miniredis.RunT(tb)
	mini.SetTime(now)
	return serve(tb, servers.RedisAt{Addr: mini.Addr()}), mini
}

// march is a time that nothing depends on.
func march() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// server is a Redis and a limiter in it, with a scope of the test's own.
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

// compiled makes a rule of each policy.
func compiled(tb rapid.TB, policies ...limits.Policy) []*limits.Rule {
	tb.Helper()
	rules, err := limits.Compile("p", policies)
	if err != nil {
		tb.Fatal(err)
	}
	return rules
}

// rules compiles policies and makes them known, with nothing counted.
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

// history has the same starts at each reading.
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

// check is one of a start of an account, under a lease of its own.
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

// setOf makes the rules of a set, with the same policies but by facts.
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

// take takes one of an account, under no id.
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

// start starts one of an account, and says whether it may.
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

// subject is the key of account a.
func (s *server) subject(rule *limits.Rule) string {
	return limits.SubjectKey(s.scope, rule, rule.Subject(facts("a")))
}

// keys are all that Redis has of the scope.
func (s *server) keys(tb testing.TB) []string {
	tb.Helper()
	keys, err := s.client.Keys(tb.Context(), s.key("*")).Result()
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

// hourly allows so many an hour.
func hourly(most int64) limits.Policy {
	return perAccount(limits.Window{Max: most, PerMS: 3_600_000})
}

func perAccount(windows ...limits.Window) limits.Policy {
	return limits.Policy{Name: "per-account", Per: "tags.account", Algorithm: limits.Sliding, Windows: windows}
}
