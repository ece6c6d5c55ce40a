package store_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

func TestPools(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		spec := store.PoolSpec{Capacity: 60, Lease: 300 * time.Second}
		p, created, err := l.PutPool(l.Context(), "op", "ar:330100", spec)
		if err != nil || !created || p.Name != "ar:330100" || p.Capacity != 60 || p.Lease != 300*time.Second || p.Paused || p.Version != 1 || p.CreatedAt.IsZero() {
			l.Fatalf("created %t %+v, %v", created, p, err)
		}
		same, created, err := l.PutPool(l.Context(), "op", "ar:330100", spec)
		if err != nil || created || !cmp.Equal(p, same) {
			l.Fatalf("the same again: %t %+v, %v", created, same, err)
		}
		for i, change := range []store.PoolSpec{
			{Capacity: 0, Lease: 300 * time.Second},
			{Capacity: 0, Lease: time.Second},
			{Capacity: 0, Lease: time.Second, Paused: true},
		} {
			p, created, err = l.PutPool(l.Context(), "op", "ar:330100", change)
			if err != nil || created || p.Version != int64(i+2) || !cmp.Equal(store.PoolSpec{Capacity: p.Capacity, Lease: p.Lease, Paused: p.Paused}, change) {
				l.Fatalf("changed %t %+v, %v", created, p, err)
			}
		}
		if got, err := l.Pool(l.Context(), "ar:330100"); err != nil || !cmp.Equal(got, p) {
			l.Fatalf("read %+v, %v", got, err)
		}
		if _, err := l.Pool(l.Context(), "AR:330100"); !errors.Is(err, store.ErrNotFound) {
			l.Fatalf("another name: %v", err)
		}
		for _, bad := range []store.PoolSpec{{Capacity: -1, Lease: time.Second}, {Capacity: 10001, Lease: time.Second}, {Capacity: 1}} {
			if _, _, err := l.PutPool(l.Context(), "op", "bad", bad); err == nil {
				l.Errorf("%+v was taken", bad)
			}
		}
		events, err := l.Events(l.Context(), store.EventFilter{Pool: "ar:330100"})
		l.must(err)
		if len(events) != 4 || events[0].Kind != "pool.created" || events[3].Kind != "pool.changed" || events[0].Actor != "op" {
			l.Fatalf("events %+v", events)
		}
	})
}

func TestPoolsComeByName(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		for _, name := range []string{"b", "a.1", "B", "a:1", "a-1"} {
			l.putPool(name, 1)
		}
		var got []string
		for after := ""; ; after = got[len(got)-1] {
			page, err := l.Pools(l.Context(), after, 2)
			l.must(err)
			if len(page) == 0 {
				break
			}
			for _, p := range page {
				got = append(got, p.Name)
			}
		}
		if diff := cmp.Diff([]string{"B", "a-1", "a.1", "a:1", "b"}, got); diff != "" {
			l.Fatal(diff)
		}
	})
}

func TestOnePutCreatesThePool(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	var wait sync.WaitGroup
	var mu sync.Mutex
	first := 0
	for n := range 10 {
		wait.Go(func() {
			_, created, err := l.PutPool(l.Context(), "op", "p", store.PoolSpec{Capacity: n, Lease: time.Second})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				l.Error(err)
			}
			if created {
				first++
			}
		})
	}
	wait.Wait()
	p, err := l.Pool(l.Context(), "p")
	if err != nil || first != 1 || p.Version != 10 {
		l.Fatalf("created %d times, version %d, %v; want once and 10", first, p.Version, err)
	}
}

func TestPoolStatsAndWaiting(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		l.putPool("idle", 3)
		devices := deviceNames(6)
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, devices...)
		l.queueBatch(store.Batch{Pool: "p"}, devices[0], devices[5])
		soon := time.Now().Add(time.Hour)
		l.queueBatch(store.Batch{Pool: "p", NotBefore: &soon}, "later")
		l.recordResult(l.mustGrant(ids[0], devices[0], "p", 0), store.BySuccess, "")
		l.recordResult(l.mustGrant(ids[1], devices[1], "p", 0), store.ByReject, "")
		l.mustGrant(ids[2], devices[2], "p", 4)
		stats, err := l.PoolStats(l.Context())
		l.must(err)
		if len(stats) != 2 || stats[1].OldestPending <= 0 || stats[0].OldestPending != 0 {
			l.Fatalf("stats %+v", stats)
		}
		stats[1].OldestPending = 0
		want := []store.PoolStat{
			{Pool: "idle", Capacity: 3, Tasks: map[store.TaskState]int64{}},
			{Pool: "p", Capacity: 5, Held: 1, Tasks: map[store.TaskState]int64{
				store.Pending: 6, store.Dispatched: 1, store.Succeeded: 1, store.Failed: 1,
			}},
		}
		if diff := cmp.Diff(want, stats); diff != "" {
			l.Fatal(diff)
		}
		// The devices 0, 3, 4 and 5 could start their tasks. Device 2 holds a grant, and the batch of the device
		// "later" has not begun.
		for most, want := range map[int]int{100: 4, 4: 4, 2: 2} {
			if n := l.countWaitingUpTo(most, "p"); n != want {
				l.Errorf("%d of at most %d wait, want %d", n, most, want)
			}
		}
		o, err := l.Occupancy(l.Context(), "p", 3)
		l.must(err)
		if o.Pool.Capacity != 5 || o.Waiting != 3 || len(o.Grants) != 1 || o.Grants[0].Slot != 4 || o.Grants[0].Remaining <= 0 {
			l.Fatalf("occupancy %+v", o)
		}
		if o, err := l.Occupancy(l.Context(), "idle", 3); err != nil || o.Pool.Name != "idle" || o.Waiting != 0 || o.Grants != nil {
			l.Fatalf("occupancy %+v, %v", o, err)
		}
		if _, err := l.Occupancy(l.Context(), "none", 3); !errors.Is(err, store.ErrNotFound) {
			l.Fatalf("no pool: %v", err)
		}
	})
}

func TestClockAndLeases(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		clock, err := l.LeaseClock(l.Context())
		l.must(err)
		if clock.Lengths != nil || clock.StoredPair != nil || time.Since(clock.Now).Abs() > time.Minute {
			l.Fatalf("clock %+v", clock)
		}
		l.putPool("p", 2)
		_, ids := l.queueBatch(store.Batch{Pool: "p", Lease: 2 * time.Hour}, "a", "b")
		g := l.mustGrant(ids[0], "a", "p", 0)
		pair := store.ClockPair{Ledger: clock.Now.Truncate(time.Millisecond), Wall: clock.Now.Truncate(time.Minute)}
		l.must(l.StoreClockPair(l.Context(), store.ClockPair{Ledger: pair.Wall, Wall: pair.Ledger}))
		l.must(l.StoreClockPair(l.Context(), pair))
		clock, err = l.LeaseClock(l.Context())
		l.must(err)
		if diff := cmp.Diff([]time.Duration{2 * time.Hour}, clock.Lengths); diff != "" || *clock.StoredPair != pair {
			l.Fatal(diff, clock.StoredPair)
		}
		live, err := l.LiveLeases(l.Context(), []string{g.LeaseID, "gone"})
		if diff := cmp.Diff(map[string]bool{g.LeaseID: true}, live); err != nil || diff != "" {
			l.Fatal(diff, err)
		}
	})
}

func TestChangedPools(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	for _, name := range []string{"old", "same", "changed"} {
		l.putPool(name, 1)
	}
	l.exec(`UPDATE pools SET updated_at = updated_at - 60000 * {ms}`)
	l.putPool("new", 1)
	l.putPool("same", 1)
	l.putPool("changed", 2)
	changed, err := l.ChangedPools(l.Context(), 50*time.Second)
	l.must(err)
	if len(changed) != 2 || changed[0].Name != "changed" || changed[0].Capacity != 2 || changed[0].Version != 2 || changed[1].Name != "new" {
		l.Errorf("changed lately: %+v", changed)
	}
	if all, err := l.ChangedPools(l.Context(), time.Hour); err != nil || len(all) != 4 {
		l.Errorf("within an hour: %+v, %v", all, err)
	}
}
