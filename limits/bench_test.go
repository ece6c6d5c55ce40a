package limits_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// BenchmarkOneWindow compares the speed of checks of one window on one Redis. It measures this package, go-redis/redis_rate and the widely
// copied snippets in turn, with 1 caller and with 32 concurrent callers. All checks pass. It reports two medians: checks per second, and
// the ratio to redis_rate in the same turn.
//
// "take" is a request to a limit set. Like the other limiters it decides at once, and it also returns the remaining number. "take-id" is a
// take that counts once under its id. "reserve" is the check of a start. "start" is this check plus the count after the COMMIT.
func BenchmarkOneWindow(b *testing.B) {
	for most, form := range map[int]string{60: "60-a-minute", 1000: "1000-a-minute"} {
		b.Run(form, func(b *testing.B) {
			w := newWindowBenchmark(b, most)
			kinds := map[string]func(a benchAccount) error{
				"take": w.takeWithoutID, "take-id": w.takeWithNewID, "reserve": w.reserve, "start": w.reserveAndCount, "redis_rate": w.allowRedisRate,
				"zset": w.snippetCheck(severalWindowsFixed()), "capped-list": w.snippetCheck(cappedList),
			}
			found := make(map[string][]float64)
			for turn := 0; b.Loop(); turn++ {
				for suffix, callers := range map[string]int{"": 1, "-by-32": 32} {
					rates := make(map[string]float64)
					for kind, one := range kinds {
						rates[kind] = w.measureRound(b, callers, w.accountsForKind(b, kind, turn/7), one)
					}
					for kind, rate := range rates {
						found[kind+suffix+"/s"] = append(found[kind+suffix+"/s"], rate)
						found[kind+suffix+"-x"] = append(found[kind+suffix+"-x"], rate/rates["redis_rate"])
					}
				}
			}
			for kind, all := range found {
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], kind)
			}
		})
	}
}

// windowBenchmark contains the limiters that are compared, and the accounts of each kind.
type windowBenchmark struct {
	*redisLimiter

	ctx        context.Context //nolint:containedctx // the context of the benchmark
	maxStarts  int
	rules      []*limits.Rule
	setRules   []*limits.Rule
	accounts   map[string][]benchAccount
	redisRate  *redis_rate.Limiter
	mu         sync.Mutex
	openChecks []limits.Check
}

// benchAccount is an account that is checked in the benchmark. Its check is prepared in advance, because a caller of another limiter also
// has its key ready.
type benchAccount struct {
	name  string
	check limits.Check
	items []limits.Item // items of the one take (request to a limit set) that the benchmark sends
}

func newWindowBenchmark(b *testing.B, maxStarts int) *windowBenchmark {
	b.Helper()
	s, policy := newRedisLimiter(b), accountPolicy(policy.Window{Max: int64(maxStarts), PerMS: 60_000})
	return &windowBenchmark{
		redisLimiter: s, ctx: b.Context(), maxStarts: maxStarts, redisRate: redis_rate.NewLimiter(s.client),
		rules: s.newRules(b, policy), setRules: compileSet(b, policy), accounts: make(map[string][]benchAccount),
	}
}

// accountsForKind returns a hundred accounts for one kind of check. Each generation has new accounts, so that no window becomes full: each
// account is checked 45 times in 7 turns of two rounds.
func (w *windowBenchmark) accountsForKind(b *testing.B, kind string, generation int) []benchAccount {
	b.Helper()
	name := fmt.Sprintf("%s:%d", kind, generation)
	if w.accounts[name] == nil {
		for n := range 100 {
			a := benchAccount{name: fmt.Sprintf("%s:%d", name, n)}
			a.check, a.items = w.newCheck(w.rules, a.name), limits.NewTaking("", 1, w.setRules, accountFacts(a.name)).Items
			w.accounts[name] = append(w.accounts[name], a)
		}
	}
	return w.accounts[name]
}

// measureRound returns the number of checks per second for this number of concurrent callers. From time to time it releases the open
// reservations, and does not measure this time. So there are about as many open reservations as this number of callers would have.
func (w *windowBenchmark) measureRound(b *testing.B, callers int, accounts []benchAccount, checkOne func(a benchAccount) error) float64 {
	b.Helper()
	const checks = 320
	var took time.Duration
	part := min(callers*callers, checks) // a single caller releases each reservation before its next check
	for first := 0; first < checks; first += part {
		call := func(caller int) {
			for n := caller; n < part; n += callers {
				if err := checkOne(accounts[(first+n)%len(accounts)]); err != nil {
					b.Error(err)
				}
			}
		}
		begin := time.Now()
		var all sync.WaitGroup
		for caller := 1; caller < callers; caller++ {
			all.Go(func() { call(caller) })
		}
		call(0)
		all.Wait()
		took += time.Since(begin)
		must.Succeed(b, w.Reservations.Release(w.ctx, w.scope, w.openChecks))
		w.openChecks = w.openChecks[:0]
	}
	return checks / took.Seconds()
}

// nextCheck returns the prepared check of the account with a new lease id.
func (w *windowBenchmark) nextCheck(a benchAccount) limits.Check {
	a.check.Lease = strconv.FormatInt(w.leaseNumber.Add(1), 10) + ".1.0123456789abcdef"
	return a.check
}

// errNotPassed reports that a check was refused. It ends the benchmark, which must measure only checks that pass.
var errNotPassed = errors.New("it did not pass")

func checkPassed(answers []limits.Answer, err error) error {
	if err == nil && answers[0].Status != limits.StatusPassed {
		return fmt.Errorf("%w: %+v", errNotPassed, answers)
	}
	return err
}

func (w *windowBenchmark) takeWithoutID(a benchAccount) error { return w.takeUnderID("", a) }

func (w *windowBenchmark) takeWithNewID(a benchAccount) error {
	return w.takeUnderID(strconv.FormatInt(w.leaseNumber.Add(1), 10)+".0123456789abcdef", a)
}

func (w *windowBenchmark) takeUnderID(id string, a benchAccount) error {
	taken, err := w.Takes.Take(w.ctx, "set:"+w.scope, []limits.Taking{{ID: id, Cost: 1, Items: a.items}})
	if err == nil && (!taken[0].Allowed || taken[0].Repeated) {
		return fmt.Errorf("%w: %+v", errNotPassed, taken)
	}
	return err
}

func (w *windowBenchmark) reserve(a benchAccount) error {
	c := w.nextCheck(a)
	err := checkPassed(w.Reservations.Reserve(w.ctx, w.scope, []limits.Check{c}))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.openChecks = append(w.openChecks, c)
	return err
}

func (w *windowBenchmark) reserveAndCount(a benchAccount) error {
	c := w.nextCheck(a)
	if err := checkPassed(w.Reservations.Reserve(w.ctx, w.scope, []limits.Check{c})); err != nil {
		return err
	}
	return w.Reservations.Count(w.ctx, w.scope, []limits.Check{c}, 0)
}

func (w *windowBenchmark) allowRedisRate(a benchAccount) error {
	result, err := w.redisRate.Allow(w.ctx, a.name, redis_rate.PerMinute(w.maxStarts))
	if err == nil && result.Allowed != 1 {
		return errNotPassed
	}
	return err
}

func (w *windowBenchmark) snippetCheck(script string) func(a benchAccount) error {
	compiled, prefix := redis.NewScript(script), fmt.Sprintf("s:%d:", len(script))
	return func(a benchAccount) error {
		passed, err := compiled.Run(w.ctx, w.client, []string{prefix + a.name}, time.Now().UnixMilli(), w.maxStarts, 60_000).Int()
		if err == nil && passed != 1 {
			return errNotPassed
		}
		return err
	}
}

// BenchmarkTakes reports how long a take (a request to a limit set) lasts, p50 and p99 in microseconds, for a set
// with 1 policy and for a set with 16 policies, the maximum.
func BenchmarkTakes(b *testing.B) {
	for _, many := range []int{1, 16} {
		for _, callers := range []int{1, 32} {
			b.Run(fmt.Sprintf("%d-policies-by-%d", many, callers), func(b *testing.B) {
				s, policies := newRedisLimiter(b), []policy.Policy(nil)
				for i := range many {
					policies = append(policies, namedHourlyPolicy(fmt.Sprint("p", i), 100_000))
				}
				rules, each := compileSet(b, policies...), make([][]time.Duration, callers)
				var all sync.WaitGroup
				for caller := range callers {
					all.Go(func() {
						for n := caller; n < b.N; n += callers {
							one := limits.NewTaking(fmt.Sprint(n), 1, rules, accountFacts(fmt.Sprint(n%100)))
							began := time.Now()
							if _, err := s.Takes.Take(b.Context(), s.scope, []limits.Taking{one}); err != nil {
								b.Error(err)
							}
							each[caller] = append(each[caller], time.Since(began))
						}
					})
				}
				all.Wait()
				took := slices.Concat(each...)
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
			})
		}
	}
}

// BenchmarkMemory reports the memory in bytes that Redis needs for one subject (for example, one account) with ten
// counted starts.
func BenchmarkMemory(b *testing.B) {
	s := newRedisLimiter(b)
	rate := redis_rate.NewLimiter(s.client)
	for b.Loop() {
		for form, p := range map[string]policy.Policy{
			"sliding":  hourlyPolicy(100),
			"fixed":    {Name: "f", Per: "tags.account", Algorithm: policy.Fixed, PerMS: 3_600_000, Max: 100},
			"calendar": {Name: "c", Per: "tags.account", Algorithm: policy.Calendar, Period: policy.Month, Max: 100},
		} {
			rules := s.newRules(b, p)
			for range 10 {
				c := s.newCheck(rules, "a")
				c.Lease = "812345.1.0123456789abcdef"[:9] + c.Lease
				s.countStart(b, c)
			}
			key := s.subjectKey(rules[0])
			b.ReportMetric(float64(s.client.MemoryUsage(b.Context(), key).Val()), form+"-bytes")
		}
		for i := range 10 {
			now := time.Now().UnixMilli() + int64(i)
			must.Succeed(b, s.client.Eval(b.Context(), severalWindowsFixed(), []string{"zset"}, now, 100, 3_600_000).Err())
			must.Succeed(b, s.client.Eval(b.Context(), cappedList, []string{"list"}, now, 100, 3_600_000).Err())
			_, err := rate.Allow(b.Context(), "a", redis_rate.PerHour(100))
			must.Succeed(b, err)
		}
		for name, key := range map[string]string{"zset-snippet": "zset", "list-snippet": "list", "redis_rate": "rate:a"} {
			b.ReportMetric(float64(s.client.MemoryUsage(b.Context(), key).Val()), name+"-bytes")
		}
	}
}
