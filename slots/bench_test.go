package slots_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
)

// BenchmarkPair measures how many pairs of calls (acquire a slot, release it) the semaphore and the plain counter of counter_test.go can
// serve on one Redis. One client measures both in turn. The benchmark reports the medians in pairs per second, and their ratio.
func BenchmarkPair(b *testing.B) {
	const round = 200
	client := redis.NewUniversalClient(redisconn.Options(servers.StartRedis(b).Addr))
	b.Cleanup(func() { _ = client.Close() })
	sem, plain := slots.New(client), newCounter(client, "semaphore")
	_, err := sem.Restore(b.Context(), "pool", slots.Config{Capacity: counterLimit, Version: 1}, newHoldings("l", counterLimit/2))
	must.Succeed(b, err)
	lease := 0
	ours := func() error {
		lease++
		id := "812." + strconv.Itoa(lease) + ".0123456789abcdef"
		if _, _, err := sem.Acquire(b.Context(), "pool", slots.Pace{}, []slots.Request{{Device: "ar:330100:17", Wants: []slots.Want{{Lease: id, TTL: 300 * time.Second, Batch: 12, Task: 812}}}}); err != nil {
			return err
		}
		_, _, err := sem.Release(b.Context(), "pool", slots.Pace{}, []string{id})
		return err
	}
	counter := func() error {
		if _, err := plain.acquire(b.Context()); err != nil {
			return err
		}
		return plain.release(b.Context())
	}
	rate := func(pair func() error) float64 {
		begin := time.Now()
		for range round {
			must.Succeed(b, pair())
		}
		return round / time.Since(begin).Seconds()
	}
	var rates [2][]float64
	for b.Loop() { // one iteration measures one round of the semaphore and one of the counter
		rates[0] = append(rates[0], rate(ours))
		rates[1] = append(rates[1], rate(counter))
	}
	b.ReportMetric(median(rates[0]), "slots-pairs/s")
	b.ReportMetric(median(rates[1]), "counter-pairs/s")
	b.ReportMetric(median(rates[0])/median(rates[1]), "ratio")
}

// BenchmarkBatch measures calls of the semaphore that acquire or release 60 slots at once.
func BenchmarkBatch(b *testing.B) {
	client := redis.NewUniversalClient(redisconn.Options(servers.StartRedis(b).Addr))
	b.Cleanup(func() { _ = client.Close() })
	sem := slots.New(client)
	_, err := sem.Restore(b.Context(), "pool", slots.Config{Capacity: counterLimit, Version: 1}, nil)
	must.Succeed(b, err)
	leases := numberedNames("812.0123456789abcdef", 0, counterLimit)
	reqs := newRequests(300*time.Second, leases...)
	for b.Loop() {
		_, _, err := sem.Acquire(b.Context(), "pool", slots.Pace{}, reqs)
		must.Succeed(b, err)
		_, _, err = sem.Release(b.Context(), "pool", slots.Pace{}, leases)
		must.Succeed(b, err)
	}
	b.ReportMetric(float64(b.N*counterLimit)/b.Elapsed().Seconds(), "pairs/s")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// BenchmarkBesideWaiters measures a refused acquire while other devices wait. It uses a Redis server and the in-process Redis of the
// embedded mode. The cost must not depend on the number of waiters or of batches.
func BenchmarkBesideWaiters(b *testing.B) {
	b.Run("redis", func(b *testing.B) {
		benchmarkBesideWaiters(b, func(b *testing.B) string { b.Helper(); return servers.StartRedis(b).Addr })
	})
	b.Run("in process", func(b *testing.B) {
		benchmarkBesideWaiters(b, func(b *testing.B) string { b.Helper(); return servers.InProcessRedis(b).Addr })
	})
}

func benchmarkBesideWaiters(b *testing.B, start func(b *testing.B) string) {
	b.Helper()
	for _, line := range []struct{ waiters, batches int }{{0, 1}, {1000, 1}, {50_000, 1}, {50_000, 200}, {50_000, 2000}} {
		b.Run(fmt.Sprintf("%d of %d batches", line.waiters, line.batches), func(b *testing.B) {
			client := redis.NewUniversalClient(redisconn.Options(start(b)))
			b.Cleanup(func() { _ = client.Close() })
			s, pace := slots.New(client), slots.Pace{MeanHold: time.Minute, MinWait: time.Second, ReportPeriod: time.Hour, OfferTTL: time.Hour}
			_, err := s.Restore(b.Context(), "pool", slots.Config{Capacity: counterLimit, Version: 1}, newHoldings("l", counterLimit))
			must.Succeed(b, err)
			for part := range slices.Chunk(newJoiners(line.waiters, line.batches), 5000) {
				_, err := s.Join(b.Context(), "pool", pace, part)
				must.Succeed(b, err)
			}
			n := 0
			for b.Loop() {
				n++
				w := slots.Want{Lease: strconv.Itoa(n), TTL: time.Hour, Batch: 1, Task: int64(1_000_000 + n%100)}
				_, _, err := s.Acquire(b.Context(), "pool", pace, []slots.Request{{Device: fmt.Sprint("p", n%100), Wants: []slots.Want{w}}})
				must.Succeed(b, err)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N), "us/acquire")
		})
	}
}

func newJoiners(waiters, batches int) []slots.Joiner {
	joiners := make([]slots.Joiner, waiters)
	for i := range joiners {
		joiners[i] = slots.Joiner{Device: fmt.Sprint("d", i), Want: slots.Want{Batch: int64(i%batches + 1), Task: int64(i)}, Reach: slots.ReachPush}
	}
	return joiners
}
