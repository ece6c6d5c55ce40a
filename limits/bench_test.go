package limits_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/testservers"
	"github.com/fleetslots/dispatcher/limits"
)

// BenchmarkOneWindow measures checks of one window, most of which pass, in turns
// on one Redis from one client: ours (Take), the same in batches of 50, redis_rate
// and the snippets. It reports the medians in checks per second, and what a subject
// of ten starts takes.
func BenchmarkOneWindow(b *testing.B) {
	const round, accounts, most = 500, 100, 1000
	s := serve(b, testservers.Redis(b).Addr, false)
	rules := s.rules(b, perAccount(limits.Window{Max: most, PerMS: 60_000}))
	checks := make([]limits.Check, accounts)
	for i := range checks {
		checks[i] = s.check(rules, strconv.Itoa(i))
	}
	lease := 0
	next := func(n int) limits.Check {
		c := checks[n%accounts]
		lease++
		c.Lease = strconv.Itoa(lease) + ".1.0123456789abcdef"
		return c
	}
	rate := redis_rate.NewLimiter(s.client)
	snippet := func(script string, args ...any) func(n int) (int, error) {
		compiled := redis.NewScript(script)
		return func(n int) (int, error) {
			all := append([]any{time.Now().UnixMilli()}, args...)
			return 1, compiled.Run(b.Context(), s.client, []string{"s:" + strconv.Itoa(len(script)) + ":" + strconv.Itoa(n%accounts)}, all...).Err()
		}
	}
	kinds := map[string]func(n int) (int, error){
		"ours": func(n int) (int, error) {
			_, err := s.Take(b.Context(), scope, []limits.Check{next(n)})
			return 1, err
		},
		"ours-by-50": func(n int) (int, error) {
			batch := make([]limits.Check, 50)
			for i := range batch {
				batch[i] = next(n + i)
			}
			_, err := s.Take(b.Context(), scope, batch)
			return 50, err
		},
		"redis_rate": func(n int) (int, error) {
			_, err := rate.Allow(b.Context(), strconv.Itoa(n%accounts), redis_rate.PerMinute(most))
			return 1, err
		},
		"zset":        snippet(severalWindowsMended(), most, 60_000),
		"capped-list": snippet(cappedList, most, 60_000),
	}
	rates := make(map[string][]float64)
	for b.Loop() {
		for kind, one := range kinds {
			begin := time.Now()
			for done := 0; done < round; {
				n, err := one(done)
				if err != nil {
					b.Fatal(kind, err)
				}
				done += n
			}
			rates[kind] = append(rates[kind], round/time.Since(begin).Seconds())
		}
	}
	for kind, all := range rates {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], kind+"/s")
	}
}

// BenchmarkMemory reports what a subject takes with ten starts, in bytes.
func BenchmarkMemory(b *testing.B) {
	s := serve(b, testservers.Redis(b).Addr, false)
	rate := redis_rate.NewLimiter(s.client)
	for b.Loop() {
		for form, p := range map[string]limits.Policy{
			"log":      perAccount(limits.Window{Max: 10, PerMS: 3_600_000}),
			"list":     perAccount(limits.Window{Max: 100, PerMS: 3_600_000}),
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
