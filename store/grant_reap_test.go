package store_test

import (
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

func TestReap(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 4)
		_, once := l.queueBatch(store.Batch{Pool: "p", Lease: time.Millisecond}, "a")
		_, twice := l.queueBatch(store.Batch{Pool: "p", Lease: time.Millisecond, MaxAttempts: 2}, "b")
		_, long := l.queueBatch(store.Batch{Pool: "p"}, "c")
		a, b := l.mustGrant(once[0], "a", "p", 0), l.mustGrant(twice[0], "b", "p", 1)
		l.mustGrant(long[0], "c", "p", 2)
		if reaped, err := l.Reap(l.Context(), l.lapsesAt(a.GrantedAt), 10, settleEnding); err != nil || len(reaped) != 0 {
			l.Fatalf("before their end: %v, %v", reaped, err)
		}
		ended := l.lapsesAt(l.awaitLapsed())
		first, err := l.Reap(l.Context(), ended, 1, settleEnding)
		l.must(err)
		rest, err := l.Reap(l.Context(), ended, 10, settleEnding)
		l.must(err)
		if len(first) != 1 || len(rest) != 1 || first[0].Grant.Token != a.Token || first[0].State != store.TimedOut ||
			rest[0].Grant.LeaseID != b.LeaseID || rest[0].State != store.Pending {
			l.Fatalf("reaped %+v, then %+v", first, rest)
		}
		l.wantTask(a.Task, store.TimedOut)
		l.wantTask(b.Task, store.Pending)
		l.wantTask(long[0], store.Dispatched)
		_, _, attempts, err := l.Task(l.Context(), a.Task)
		l.must(err)
		if len(attempts) != 1 || attempts[0].EndedBy != store.ByLapse {
			l.Fatalf("attempts %+v", attempts)
		}
		events, err := l.Events(l.Context(), store.EventFilter{Kind: "task.lapsed"})
		l.must(err)
		if len(events) != 2 || events[0].Detail != "timed_out" || events[0].Actor != "reaper" || events[0].Device != "a" {
			l.Fatalf("events %+v", events)
		}
	})
}

// TestNextLapse checks that NextLapse returns the earliest end of all leases, even if that lease has already ended
// and was not reaped yet.
func TestNextLapse(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		expect := func(least, most time.Duration, wanted bool) {
			l.Helper()
			left, found, err := l.NextLapse(l.Context())
			l.must(err)
			if found != wanted || left < least || left > most {
				l.Errorf("in %s, %t; want %s to %s, %t", left, found, least, most, wanted)
			}
		}
		l.putPool("p", 4)
		_, short := l.queueBatch(store.Batch{Pool: "p", Lease: time.Millisecond}, "a")
		_, long := l.queueBatch(store.Batch{Pool: "p", Lease: 3 * time.Hour}, "b")
		_, middle := l.queueBatch(store.Batch{Pool: "p", Lease: 2 * time.Hour}, "c")
		expect(0, 0, false)
		l.mustGrant(long[0], "b", "p", 1)
		expect(2*time.Hour, 3*time.Hour, true)
		l.mustGrant(middle[0], "c", "p", 2)
		expect(time.Hour, 2*time.Hour, true)
		l.mustGrant(short[0], "a", "p", 0)
		l.awaitLapsed()
		expect(-time.Hour, 0, true)
	})
}

func TestReapersAndResultsEndAGrantOnce(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	const n = 40
	l.putPool("p", n)
	devices := deviceNames(n)
	_, ids := l.queueBatch(store.Batch{Pool: "p", Lease: time.Millisecond, MaxAttempts: 9}, devices...)
	var results []store.Result
	for i, d := range devices {
		g := l.mustGrant(ids[i], d, "p", i)
		results = append(results, store.Result{Device: d, Task: g.Task, Token: g.Token, Cause: store.ByFailure})
	}
	lapses := l.lapsesAt(l.awaitLapsed())
	var mu sync.Mutex
	ended := map[int64]int{}
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			reaped, err := l.Reap(l.Context(), lapses, 15, settleEnding)
			if err != nil {
				l.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, r := range reaped {
				ended[r.Grant.Task]++
			}
		})
	}
	wait.Go(func() {
		outcomes := l.RecordResults(l.Context(), results, settleEnding)
		mu.Lock()
		defer mu.Unlock()
		for i, o := range outcomes {
			if o.Err != nil {
				l.Error(o.Err)
			}
			if o.Kind == store.ResultRecorded {
				ended[results[i].Task]++
			}
		}
	})
	wait.Wait()
	for _, id := range ids {
		if task := l.wantTask(id, store.Pending); ended[id] != 1 || task.Attempts != 1 {
			l.Errorf("task %d ended %d times, %d attempts", id, ended[id], task.Attempts)
		}
	}
}

func TestABadGrantKeepsNoOtherFromBeingReaped(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 3)
	_, ids := l.queueBatch(store.Batch{Pool: "p", Lease: time.Millisecond}, "a", "b", "c")
	for i, d := range []string{"a", "b", "c"} {
		l.mustGrant(ids[i], d, "p", i)
	}
	lapses := l.lapsesAt(l.awaitLapsed())
	l.must(l.AskCancel(l.Context(), ids[1], l.grantToken(ids[1]), "bad"))
	reaped, err := l.Reap(l.Context(), lapses, 10, func(e store.EndedGrantFacts) store.NextTaskState {
		s := settleEnding(e)
		if e.CancelWhy == "bad" {
			s.State = "no such state"
		}
		return s
	})
	if err == nil || len(reaped) != 2 {
		l.Fatalf("reaped %+v, %v; want two and an error", reaped, err)
	}
	l.wantTask(ids[1], store.Dispatched)
}

func TestExpire(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 3)
		end := time.Now().Add(time.Hour)
		_, ids := l.queueBatch(store.Batch{Pool: "p", NotAfter: &end}, "a", "b", "c")
		_, open := l.queueBatch(store.Batch{Pool: "p"}, "d")
		l.mustGrant(ids[0], "a", "p", 0)
		if n, err := l.Expire(l.Context(), 10); err != nil || n != 0 {
			l.Fatalf("expired %d, %v before the end", n, err)
		}
		l.exec(`UPDATE batches SET not_after = not_after - $1 * {ms}`, (2 * time.Hour).Milliseconds())
		for _, want := range []int{1, 1, 0} {
			if n, err := l.Expire(l.Context(), 1); err != nil || n != want {
				l.Fatalf("expired %d, %v, want %d", n, err, want)
			}
		}
		l.wantTask(ids[0], store.Dispatched)
		l.wantTask(ids[1], store.Expired)
		l.wantTask(ids[2], store.Expired)
		l.wantTask(open[0], store.Pending)
		views, err := l.DeviceViews(l.Context(), []string{"b"})
		l.must(err)
		if len(views[0].Candidates) != 0 {
			l.Fatalf("an expired task is offered: %+v", views)
		}
	})
}

// TestExpireNeverEndsWhatWasGranted runs Expire concurrently with claims. Expire must not end a task that was just granted. This needs care
// because a claim does not write the row of its task: an Expire with an older snapshot would not see the grant.
func TestExpireNeverEndsWhatWasGranted(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *store.Batch, task *store.NewTask, at time.Time){
		"batch": func(b *store.Batch, _ *store.NewTask, at time.Time) { b.NotAfter = &at },
		"wait":  func(b *store.Batch, _ *store.NewTask, at time.Time) { b.MaxWait = time.Until(at) },
		"task":  func(_ *store.Batch, task *store.NewTask, at time.Time) { task.NotAfter = &at },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expireDuringClaims(t, end)
		})
	}
}

func expireAll(l *ledger) {
	_, err := l.Expire(l.Context(), 100)
	if err == nil {
		_, _, err = l.ExpireWaited(l.Context(), store.ExpiryPosition{}, 100)
	}
	if err != nil {
		l.Error(err)
	}
}

func expireDuringClaims(t *testing.T, setEnd func(b *store.Batch, task *store.NewTask, at time.Time)) {
	t.Helper()
	l := openPostgres(t)
	devices := deviceNames(10)
	for range 5 {
		l.putPool("p", 10)
		end := time.Now().Add(60 * time.Millisecond)
		b, tasks := store.Batch{Pool: "p"}, make([]store.NewTask, len(devices))
		for i, d := range devices {
			tasks[i].Device = d
			setEnd(&b, &tasks[i], end)
		}
		ids := l.queueTasks(b, tasks...)
		var wait sync.WaitGroup
		for i, d := range devices {
			wait.Go(func() {
				if _, err := l.Claim(l.Context(), []store.Claim{l.newClaim(ids[i], d, "p", i)}, true); err != nil {
					l.Error(err)
				}
			})
		}
		for range 3 {
			wait.Go(func() {
				for time.Now().Before(end.Add(50 * time.Millisecond)) {
					expireAll(l)
				}
			})
		}
		wait.Wait()
		expireAll(l) // On a busy machine the loops may have run too late.
		for _, id := range ids {
			task, grant, _, err := l.Task(l.Context(), id)
			l.must(err)
			if (grant != nil) == (task.State == store.Expired) {
				l.Fatalf("task %+v with grant %+v", task, grant)
			}
			if grant != nil && l.storedState(id) != "pending" {
				l.Fatalf("task %d is granted and %s", id, l.storedState(id))
			}
		}
		l.reapAll()
	}
}
