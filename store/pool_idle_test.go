package store_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// TestOpenPools checks that OpenPools returns a pool if it has free slots and a batch whose tasks could start, and returns no other pool.
func TestOpenPools(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		later := time.Now().Add(time.Hour)
		for _, name := range []string{"open", "full", "paused", "held-up", "early", "done"} {
			l.putPool(name, 2)
		}
		l.putPool("empty", 0)
		_, ids := l.queueBatch(store.Batch{Pool: "open"}, "o1", "o2", "o3")
		l.mustGrant(ids[0], "o1", "open", 0)
		_, ids = l.queueBatch(store.Batch{Pool: "full"}, "f1", "f2", "f3")
		l.mustGrant(ids[0], "f1", "full", 0)
		l.mustGrant(ids[1], "f2", "full", 1)
		for _, name := range []string{"paused", "held-up", "empty"} {
			b, _ := l.queueBatch(store.Batch{Pool: name}, name+"-1")
			if name == "held-up" {
				_, err := l.PauseBatch(l.Context(), "op", b.ID, "")
				l.must(err)
			}
		}
		l.queueBatch(store.Batch{Pool: "early", NotBefore: &later}, "e1")
		_, _, err := l.PutPool(l.Context(), "op", "paused", store.PoolSpec{Capacity: 2, Lease: time.Hour, Paused: true})
		l.must(err)
		_, ids = l.queueBatch(store.Batch{Pool: "done"}, "d1")
		l.recordResult(l.mustGrant(ids[0], "d1", "done", 0), store.BySuccess, "")
		pools, err := l.OpenPools(l.Context())
		if diff := cmp.Diff([]store.OpenPool{{Name: "open", Free: 1}}, pools); diff != "" || err != nil {
			l.Fatalf("%v, %s", err, diff)
		}
	})
}

// TestWaitingHere checks that CountWaitingDevices counts each device that has waiting tasks and was seen recently, and counts it once.
func TestWaitingHere(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		names := deviceNames(7)
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, names...)
		l.queueBatch(store.Batch{Pool: "p"}, names...)
		l.mustGrant(ids[0], names[0], "p", 0)
		now, err := l.Clock(l.Context())
		l.must(err)
		seen := map[string]store.LastReport{
			names[0]: {At: now}, names[1]: {At: now}, names[2]: {At: now}, names[3]: {At: now.Add(-time.Hour)}, names[4]: {At: now.Add(-2 * time.Hour)},
			names[5]: {At: now.Add(-2 * time.Hour), QuietUntil: now}, // it was asked not to report until now
		}
		for name := range seen {
			_, err := l.EnsureDevices(l.Context(), name)
			l.must(err)
		}
		l.must(l.TouchDevices(l.Context(), seen))
		for _, test := range []struct {
			within     time.Duration
			most, want int
		}{{30 * time.Minute, 10, 3}, {90 * time.Minute, 10, 4}, {30 * time.Minute, 1, 1}} {
			if got, err := l.CountWaitingDevices(l.Context(), "p", test.within, "", test.most); got != (store.WaitingCount{Waiting: test.want}) || err != nil {
				l.Errorf("within %s, at most %d: %+v, %v; want %d", test.within, test.most, got, err, test.want)
			}
		}
	})
}

// TestIdleTimeIsTakenOnce checks several replicas that take idle time concurrently. No period may be counted twice.
func TestIdleTimeIsTakenOnce(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		began, err := l.Clock(l.Context())
		l.must(err)
		_, err = l.TakeIdleTime(l.Context(), 0)
		l.must(err)
		var taken, times atomic.Int64
		var wait sync.WaitGroup
		for range 8 {
			wait.Go(func() {
				for range 5 {
					d, err := l.TakeIdleTime(l.Context(), 2*time.Millisecond)
					if err != nil || d < 0 {
						l.Errorf("%s, %v", d, err)
					}
					if d > 0 {
						taken.Add(int64(d))
						times.Add(1)
					}
				}
			})
		}
		wait.Wait()
		ended, err := l.Clock(l.Context())
		l.must(err)
		if all := ended.Sub(began); taken.Load() > int64(all) || times.Load() == 0 {
			l.Errorf("%s were taken in %d parts of %s", time.Duration(taken.Load()), times.Load(), all)
		}
		if d, err := l.TakeIdleTime(l.Context(), time.Hour); d != 0 || err != nil {
			l.Errorf("too early: %s, %v", d, err)
		}
	})
}

// TestManyPools checks that OpenPools returns all of many open pools.
func TestManyPools(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	const many = 50
	for i := range many {
		name := fmt.Sprintf("p-%03d", i)
		l.putPool(name, 1+i)
		l.queueBatch(store.Batch{Pool: name}, name)
	}
	pools, err := l.OpenPools(l.Context())
	if len(pools) != many || err != nil {
		l.Fatalf("%d pools, %v", len(pools), err)
	}
}

// TestWaitingHereLooksNoFurther checks CountWaitingDevices while 2,000 devices wait with many tasks. It must stop reading devices when it
// has counted up to its maximum.
func TestWaitingHereLooksNoFurther(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 5)
	l.exec(`INSERT INTO devices (id, created_at, last_seen, quiet_until) SELECT 'd' || n, now(), now(), now() FROM generate_series(1, 2000) n`)
	l.exec(`INSERT INTO batches (pool, created_at) SELECT 'p', now() FROM generate_series(1, 10)`)
	l.exec(`INSERT INTO tasks (batch, pool, device) SELECT b.id, 'p', 'd' || n FROM batches b, generate_series(1, 2000) n`)
	for _, statistics := range []string{`SELECT 1`, `ANALYZE`} {
		l.exec(statistics)
		if plan := l.explainAnalyze(store.WaitingHereText(), "p", 5, 60_000, ""); maxRowsRead(plan) > 100 {
			l.Errorf("after %s %d rows are looked at:\n%s", statistics, maxRowsRead(plan), strings.Join(plan, "\n"))
		}
	}
}

// TestWaitingHereFindsFewAmongMany checks CountWaitingDevices if thousands of devices have tasks but only a few of them were seen lately.
// Each call checks at most 500 devices. All calls together must find these few devices.
func TestWaitingHereFindsFewAmongMany(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		const many = 1500
		silent := make([]string, many)
		for i := range silent {
			silent[i] = fmt.Sprintf("d%05d", i)
		}
		_, err := l.EnsureDevices(l.Context(), silent...)
		l.must(err)
		l.queueBatch(store.Batch{Pool: "p"}, append([]string{silent[0]}, silent...)...)
		l.must(l.TouchDevices(l.Context(), map[string]store.LastReport{silent[0]: {At: time.Now()}, silent[many-2]: {At: time.Now()}, silent[many-1]: {At: time.Now()}}))
		for _, step := range []struct {
			after string
			limit int
			want  store.WaitingCount
		}{
			{"", 5, store.WaitingCount{Waiting: 1, Last: silent[499]}},
			{silent[499], 5, store.WaitingCount{Last: silent[999]}},
			{silent[999], 5, store.WaitingCount{Waiting: 2, Last: silent[1499]}},
			{silent[1499], 5, store.WaitingCount{}},
			{silent[1000], 5, store.WaitingCount{Waiting: 2}},
			{silent[1498], 5, store.WaitingCount{Waiting: 1}},
			{"", 1, store.WaitingCount{Waiting: 1}},
		} {
			if got, err := l.CountWaitingDevices(l.Context(), "p", time.Minute, step.after, step.limit); got != step.want || err != nil {
				l.Errorf("after %q, at most %d: %+v, %v; want %+v", step.after, step.limit, got, err, step.want)
			}
		}
		if l.Dialect() == "postgres" {
			plan := strings.Join(l.explainAnalyze(store.WaitingHereText(), "p", 5, 60_000, ""), "\n")
			leapt := regexp.MustCompile(`WorkTable Scan .* loops=([0-9]+)`).FindStringSubmatch(plan)
			if n, _ := strconv.Atoi(leapt[1]); n > 510 {
				l.Errorf("it leaps %d times:\n%s", n, plan)
			}
		}
	})
}
