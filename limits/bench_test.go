package limits_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/testservers"
	"github.com/fleetslots/dispatcher/limits"
)

// BenchmarkOneWindow measures checks of one window, in turns on one Redis: ours
// against go-redis/redis_rate and the snippets, asked one by one and by 32 at once.
// It reports medians in checks per second. "take" is what the others do: a check that
// counts at once. "reserve" is the check of a start, "start" is that and its count
// after the COMMIT.
func BenchmarkOneWindow(b *testing.B) {
	for most, form := range map[int]string{60: "packed", 1000: "list"} {
		b.Run(form, func(b *testing.B) {
			w := newWindows(b, most)
			kinds := map[string]func(n int) error{
				"take": w.take, "start": w.start, "redis_rate": w.rate,
				"zset": w.snippet(severalWindowsMended()), "capped-list": w.snippet(cappedList),
			}
			rates := make(map[string][]float64)
			for b.Loop() {
				for kind, one := range kinds {
					rates[kind+"/s"] = append(rates[kind+"/s"], w.round(b, 1, one))
					rates[kind+"-by-32/s"] = append(rates[kind+"-by-32/s"], w.round(b, 32, one))
				}
				rates["reserve/s"] = append(rates["reserve/s"], w.round(b, 1, w.reserve))
				w.settle(b)
				rates["reserve-by-32/s"] = append(rates["reserve-by-32/s"], w.round(b, 32, w.reserve))
				w.settle(b)
			}
			for kind, all := range rates {
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], kind)
			}
		})
	}
}

// windows are those of a hundred accounts.
type windows struct {
	*server

	ctx   context.Context //nolint:containedctx // that of the benchmark
	most  int
	ready []limits.Check // of each account; a caller of the others has its keys, too
	limit *redis_rate.Limiter
	mu    sync.Mutex
	open  []limits.Check
}

func newWindows(b *testing.B, most int) *windows {
	b.Helper()
	s := serve(b, testservers.Redis(b).Addr, false)
	rules := s.rules(b, perAccount(limits.Window{Max: int64(most), PerMS: 60_000}))
	w := &windows{server: s, ctx: b.Context(), most: most, limit: redis_rate.NewLimiter(s.client)}
	for n := range 100 {
		w.ready = append(w.ready, s.check(rules, account(n)))
	}
	return w
}

// next is a check under a lease of its own.
func (w *windows) next(n int) limits.Check {
	c := w.ready[n%100]
	c.Lease = strconv.FormatInt(w.leases.Add(1), 10) + ".1.0123456789abcdef"
	c.Group = c.Lease
	return c
}

// round is how many a second so many callers get through.
func (*windows) round(b *testing.B, callers int, one func(n int) error) float64 {
	b.Helper()
	const checks = 320
	begin := time.Now()
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for n := caller; n < checks; n += callers {
				if err := one(n); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
	return checks / time.Since(begin).Seconds()
}

func account(n int) string { return strconv.Itoa(n % 100) }

func (w *windows) take(n int) error {
	_, err := w.Take(w.ctx, scope, []limits.Check{w.next(n)})
	return err
}

func (w *windows) reserve(n int) error {
	c := w.next(n)
	_, err := w.Reserve(w.ctx, scope, []limits.Check{c})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = append(w.open, c)
	return err
}

// settle gives back what was reserved.
func (w *windows) settle(b *testing.B) {
	b.Helper()
	if err := w.Release(w.ctx, scope, w.open); err != nil {
		b.Fatal(err)
	}
	w.open = nil
}

func (w *windows) start(n int) error {
	c := w.next(n)
	if a, err := w.Reserve(w.ctx, scope, []limits.Check{c}); err != nil || a[0].Status != limits.StatusPassed {
		return err
	}
	return w.Count(w.ctx, scope, []limits.Check{c}, 0)
}

func (w *windows) rate(n int) error {
	_, err := w.limit.Allow(w.ctx, account(n), redis_rate.PerMinute(w.most))
	return err
}

func (w *windows) snippet(script string) func(n int) error {
	compiled := redis.NewScript(script)
	return func(n int) error {
		key := fmt.Sprintf("s:%d:%s", len(script), account(n))
		return compiled.Run(w.ctx, w.client, []string{key}, time.Now().UnixMilli(), w.most, 60_000).Err()
	}
}

// BenchmarkMemory reports what a subject takes with ten starts, in bytes.
func BenchmarkMemory(b *testing.B) {
	s := serve(b, testservers.Redis(b).Addr, false)
	rate := redis_rate.NewLimiter(s.client)
	for b.Loop() {
		for form, p := range map[string]limits.Policy{
			"packed":   perAccount(limits.Window{Max: 10, PerMS: 3_600_000}),
			"list":     perAccount(limits.Window{Max: 1000, PerMS: 3_600_000}),
			"fixed":    {Name: "f", Per: "tags.account", Algorithm: limits.Fixed, PerMS: 3_600_000, Max: 100},
			"calendar": {Name: "c", Per: "tags.account", Algorithm: limits.Calendar, Period: limits.Month, Max: 100},
		} {
			rules := s.rules(b, p)
			for range 10 {
				c := s.check(rules, "a")
				c.Lease = "812345.1.0123456789abcdef"[:9] + c.Lease
				if _, err := s.Take(b.Context(), scope, []limits.Check{c}); err != nil {
					b.Fatal(err)
				}
			}
			key := limits.SubjectKey(scope, rules[0], rules[0].Subject(facts("a")))
			b.ReportMetric(float64(s.client.MemoryUsage(b.Context(), key).Val()), form+"-bytes")
		}
		for i := range 10 {
			now := time.Now().UnixMilli() + int64(i)
			if err := s.client.Eval(b.Context(), severalWindowsMended(), []string{"zset"}, now, 100, 3_600_000).Err(); err != nil {
				b.Fatal(err)
			}
			if err := s.client.Eval(b.Context(), cappedList, []string{"list"}, now, 100, 3_600_000).Err(); err != nil {
				b.Fatal(err)
			}
			if _, err := rate.Allow(b.Context(), "a", redis_rate.PerHour(100)); err != nil {
				b.Fatal(err)
			}
		}
		for name, key := range map[string]string{"zset-snippet": "zset", "list-snippet": "list", "redis_rate": "rate:a"} {
			b.ReportMetric(float64(s.client.MemoryUsage(b.Context(), key).Val()), name+"-bytes")
		}
	}
}
