package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// putCallerPool creates or changes a pool in which callers may together hold at most maxCallerSlots slots.
func (l *ledger) putCallerPool(name string, capacity, maxCallerSlots int) {
	l.Helper()
	_, _, err := l.PutPool(l.Context(), "op", name, store.PoolSpec{Capacity: capacity, Lease: time.Hour, Callers: &maxCallerSlots})
	l.must(err)
}

// openLease opens a lease of the caller ci, with this holder, in the pool.
func (l *ledger) openLease(pool, holder string) store.LeaseTask {
	l.Helper()
	made, err := l.OpenLease(l.Context(), store.NewLease{Pool: pool, Holder: store.HolderDevice("ci", holder), WaitFor: time.Hour})
	l.must(err)
	return made
}

// leaseClaim returns a claim of this slot for an open lease.
func (l *ledger) leaseClaim(task store.LeaseTask, holder, pool string, slot int) store.Claim {
	return l.newClaim(task.Task, store.HolderDevice("ci", holder), pool, slot)
}

// TestCallersNeverHoldMoreThanTheyMay lets callers claim slots concurrently, in many transactions of one or two claims. Each caller claims
// a different slot. At the end, the callers must hold exactly as many slots as callers may hold.
func TestCallersNeverHoldMoreThanTheyMay(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		const bound, devices = 7, 10
		l.putCallerPool("p", 80, bound)
		_, tasks := l.queueBatch(store.Batch{Pool: "p"}, deviceNames(devices)...)
		leases := make([]store.LeaseTask, 50)
		for i := range leases {
			leases[i] = l.openLease("p", fmt.Sprint("job-", i))
		}
		var all sync.WaitGroup
		var held, full atomic.Int64
		claim := func(claims ...store.Claim) {
			outcomes, err := l.Claim(l.Context(), claims, true)
			if err != nil {
				l.Error(err)
			}
			for i, o := range outcomes {
				switch {
				case o.Status == store.ClaimCallersFull && store.IsCaller(claims[i].Device):
					full.Add(1)
				case o.Status != claimGranted:
					l.Errorf("claim of %s: status %d", claims[i].Device, o.Status)
				case store.IsCaller(o.Grant.Device):
					held.Add(1)
				}
			}
		}
		for i := 0; i < len(leases); i += 2 {
			one, two := l.leaseClaim(leases[i], fmt.Sprint("job-", i), "p", i), l.leaseClaim(leases[i+1], fmt.Sprint("job-", i+1), "p", i+1)
			if i%4 == 0 {
				all.Go(func() { claim(one, two) })
				continue
			}
			all.Go(func() { claim(one) })
			all.Go(func() { claim(two) })
		}
		for i, task := range tasks {
			all.Go(func() { claim(l.newClaim(task, deviceNames(devices)[i], "p", 60+i)) })
		}
		all.Wait()
		if held.Load() != bound || full.Load() != int64(len(leases))-bound {
			l.Fatalf("callers hold %d slots, and %d were refused for that; want %d", held.Load(), full.Load(), bound)
		}
	})
}

func TestAHolderHasOneLease(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		l.putPool("q", 5)
		var all sync.WaitGroup
		tasks := make([]store.LeaseTask, 20)
		for i := range tasks {
			all.Go(func() { tasks[i] = l.openLease("p", "job") })
		}
		all.Wait()
		made := 0
		for _, task := range tasks {
			if task.Created {
				made++
			}
			if task.Task != tasks[0].Task {
				l.Fatalf("leases %d and %d", tasks[0].Task, task.Task)
			}
		}
		task := l.wantTask(tasks[0].Task, store.Pending)
		batch, err := l.Batch(l.Context(), task.Batch)
		l.must(err)
		if made != 1 || batch.Total != 1 || batch.Name != store.LeaseBatch || batch.Kind != store.LeaseKind || !batch.System {
			l.Fatalf("%d were made, in %+v", made, batch)
		}
		if _, err := l.OpenLease(l.Context(), store.NewLease{Pool: "q", Holder: store.HolderDevice("ci", "job")}); !errors.Is(err, store.ErrExists) {
			l.Fatalf("a lease in another pool: %v", err)
		}
		if _, err := l.OpenLease(l.Context(), store.NewLease{Pool: "nowhere", Holder: store.HolderDevice("ci", "b")}); !errors.Is(err, store.ErrUnknownPool) {
			l.Fatalf("a lease in a pool that is not there: %v", err)
		}
	})
}

// TestATryLeavesNothingBehind checks a lease that was requested without a wait: DropLease deletes it, unless it was granted or was requested
// again.
func TestATryLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		drop := func(task store.LeaseTask, want bool) {
			l.Helper()
			dropped, err := l.DropLease(l.Context(), task)
			l.must(err)
			if dropped != want {
				l.Fatalf("dropped %t, want %t", dropped, want)
			}
		}
		tried := l.openLease("p", "a")
		batch := l.wantTask(tried.Task, store.Pending).Batch
		drop(tried, true)
		drop(tried, false)
		if _, _, _, err := l.Task(l.Context(), tried.Task); !errors.Is(err, store.ErrNotFound) {
			l.Fatalf("the task is still there: %v", err)
		}
		if b, err := l.Batch(l.Context(), batch); err != nil || b.Total != 0 {
			l.Fatalf("the batch has %d tasks, %v", b.Total, err)
		}

		held := l.openLease("p", "b")
		l.mustGrant(held.Task, store.HolderDevice("ci", "b"), "p", 0)
		drop(held, false)
		l.wantTask(held.Task, store.Dispatched)

		waits := l.openLease("p", "c")
		longer, err := l.OpenLease(l.Context(), store.NewLease{Pool: "p", Holder: store.HolderDevice("ci", "c"), WaitFor: 2 * time.Hour})
		l.must(err)
		drop(waits, false)
		l.must(l.SetLeaseWait(l.Context(), waits, 0))
		shorter, err := l.OpenLease(l.Context(), store.NewLease{Pool: "p", Holder: store.HolderDevice("ci", "c"), WaitFor: time.Minute})
		l.must(err)
		drop(longer, false)
		l.must(l.SetLeaseWait(l.Context(), longer, 0)) // The holder has requested the lease again, so this call must change nothing.
		drop(shorter, true)
	})
}

// TestALeaseThatIsHeldIsNotGivenUp checks that GiveUpLease cancels a lease that waits for a slot, and does not
// change a lease that holds one.
func TestALeaseThatIsHeldIsNotGivenUp(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		giveUp := func(task int64, want bool) {
			l.Helper()
			held, err := l.GiveUpLease(l.Context(), "ci", task)
			l.must(err)
			if held != want {
				l.Fatalf("held %t, want %t", held, want)
			}
		}
		waits, held := l.openLease("p", "a"), l.openLease("p", "b")
		giveUp(waits.Task, false)
		giveUp(waits.Task, false)
		l.wantTask(waits.Task, store.Cancelled)
		holder := store.HolderDevice("ci", "b")
		g := l.mustGrant(held.Task, holder, "p", 0)
		giveUp(held.Task, true)
		renewed, err := l.Renew(l.Context(), []store.Renewal{{Task: g.Task, Token: g.Token, Device: holder}})
		l.must(err)
		if got := renewed[0].Grant; got.CancelWhy != "" {
			l.Fatalf("its holder is asked to stop: %+v", got)
		}
	})
}

// TestTheBatchOfLeases checks the batch that contains the leases of one day. The batch of the next day must copy the settings that
// operators changed, but it must not be cancelled.
func TestTheBatchOfLeases(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		first := l.wantTask(l.openLease("p", "a").Task, store.Pending).Batch
		if again := l.wantTask(l.openLease("p", "b").Task, store.Pending).Batch; again != first {
			l.Fatalf("batches %d and %d on one day", first, again)
		}
		_, err := l.ChangeBatch(l.Context(), "op", first, func(b *store.Batch) error { b.Weight = 4; return nil })
		l.must(err)
		l.exec(`UPDATE batches SET created_at = created_at - $1 * {ms}`, (25 * time.Hour).Milliseconds())
		next := l.wantTask(l.openLease("p", "c").Task, store.Pending).Batch
		if b, err := l.Batch(l.Context(), next); err != nil || next == first || b.Weight != 4 || b.MaxRun != 7*24*time.Hour || b.OnLost != "fail" {
			l.Fatalf("batch %+v, %v", b, err)
		}
		soon := time.Now().Add(10 * time.Second)
		_, err = l.ChangeBatch(l.Context(), "op", next, func(b *store.Batch) error { b.NotAfter = &soon; return nil })
		l.must(err)
		if again := l.wantTask(l.openLease("p", "e").Task, store.Pending).Batch; again == next {
			l.Fatal("a lease in a batch that is about to end")
		}
		_, err = l.CancelBatch(l.Context(), "op", next)
		l.must(err)
		last := l.wantTask(l.openLease("p", "d").Task, store.Pending).Batch
		if b, err := l.Batch(l.Context(), last); err != nil || last == next || b.CancelledAt != nil {
			l.Fatalf("after a cancel: batch %+v, %v", b, err)
		}
	})
}

// TestTheLengthOfALease checks that a lease has the length that the caller requested, and that a renewal can change
// the length.
func TestTheLengthOfALease(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		holder := store.HolderDevice("ci", "a")
		made, err := l.OpenLease(l.Context(), store.NewLease{Pool: "p", Holder: holder, Lease: time.Minute, Metadata: json.RawMessage(`{"job":17}`), WaitFor: time.Hour})
		l.must(err)
		views, err := l.DeviceViews(l.Context(), []string{holder})
		l.must(err)
		if c := views[0].Candidates; len(c) != 1 || c[0].Lease != time.Minute {
			l.Fatalf("candidates %+v", c)
		}
		g := l.mustGrant(made.Task, holder, "p", 0)
		if g.LeaseLength != time.Minute || string(g.Payload) != `{"job":17}` || g.MaxUntil.Sub(g.GrantedAt) != 7*24*time.Hour {
			l.Fatalf("grant %+v", g)
		}
		expect := func(renewed time.Duration, length, longest, left time.Duration) {
			l.Helper()
			got, err := l.Renew(l.Context(), []store.Renewal{{Task: g.Task, Token: g.Token, Device: holder, Lease: renewed}})
			l.must(err)
			if got := got[0].Grant; got.LeaseLength != length || got.LongestLease != longest || got.Remaining > left || got.Remaining < left-time.Minute {
				l.Fatalf("renewed for %s: length %s, longest %s, %s left; want %s, %s, %s", renewed, got.LeaseLength, got.LongestLease, got.Remaining, length, longest, left)
			}
		}
		expect(5*time.Minute, 5*time.Minute, 5*time.Minute, 5*time.Minute)
		expect(2*time.Minute, 5*time.Minute, 5*time.Minute, 5*time.Minute) // The holder may rely on the five minutes.
		_, err = l.Renew(l.Context(), []store.Renewal{{Task: g.Task, Token: g.Token + 1, Device: holder, Lease: time.Hour}})
		l.must(err)
		expect(0, 5*time.Minute, 5*time.Minute, 5*time.Minute) // The renewal with another token has not changed the lease.
		l.ageGrants("p", 4*time.Minute)
		expect(2*time.Minute, 2*time.Minute, 5*time.Minute, 2*time.Minute)
		l.ageGrants("p", time.Minute)
		expect(0, 2*time.Minute, 5*time.Minute, 2*time.Minute)
	})
}

// TestTheNextCallers checks that NextCallers returns the callers that have waited longest. It returns at most as many as the callers of the pool
// may still get slots.
func TestTheNextCallers(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putCallerPool("p", 5, 2)
		a, b, c := l.openLease("p", "a"), l.openLease("p", "z"), l.openLease("p", "c")
		full := func(task store.LeaseTask, held, ahead int, want bool) {
			l.Helper()
			s, err := l.CallerBoundOf(l.Context(), "p", task.Task)
			l.must(err)
			if s.Held != held || s.Ahead != ahead || s.IsFull() != want {
				l.Fatalf("held %d, ahead %d, full %t; want %d, %d, %t", s.Held, s.Ahead, s.IsFull(), held, ahead, want)
			}
		}
		next := func(want ...string) {
			l.Helper()
			got, err := l.NextCallers(l.Context(), "p", 10)
			l.must(err)
			if !slices.Equal(got, want) {
				l.Fatalf("next are %v, want %v", got, want)
			}
		}
		full(a, 0, 0, false)
		full(b, 0, 1, false)
		full(c, 0, 2, true)
		next("@ci/a", "@ci/z")
		for _, want := range []bool{true, false} { // A policy refuses the caller, so the caller lets others go first.
			stood, err := l.YieldPlace(l.Context(), a.Task)
			l.must(err)
			if stood != want {
				l.Fatalf("it stood before others: %t, want %t", stood, want)
			}
		}
		full(c, 0, 1, false)
		next("@ci/z", "@ci/c")
		a = l.openLease("p", "a") // The caller asks again.
		full(c, 0, 2, true)
		l.mustGrant(a.Task, "@ci/a", "p", 0)
		full(c, 1, 1, true)
		next("@ci/z")
		l.must(l.SetLeaseWait(l.Context(), b, time.Second)) // The caller no longer waits.
		full(c, 1, 0, false)
		next("@ci/c")
		l.putPool("free", 5)
		d := l.openLease("free", "d")
		if s, err := l.CallerBoundOf(l.Context(), "free", d.Task); err != nil || s != (store.CallerBound{}) {
			l.Fatalf("without a bound: %+v, %v", s, err)
		}
		if got, err := l.NextCallers(l.Context(), "free", 10); err != nil || len(got) > 0 {
			l.Fatalf("without a bound: %v, %v", got, err)
		}
	})
}

// TestABatchThatStartsNothingBlocksNoCallers checks a caller whose batch of leases starts nothing now (for example, because it is paused).
// This caller must not count as ahead of the callers in the next day's batch, and must not be called. As soon as its batch starts tasks
// again, it must be the first caller again.
func TestABatchThatStartsNothingBlocksNoCallers(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putCallerPool("p", 5, 1)
		old := l.wantTask(l.openLease("p", "z-old").Task, store.Pending).Batch
		l.exec(`UPDATE batches SET created_at = created_at - $1 * {ms}`, (25 * time.Hour).Milliseconds())
		next := l.openLease("p", "next")
		for _, c := range []struct{ name, stops, goesOn string }{
			{"paused", `UPDATE batches SET paused = TRUE WHERE id = $1`, `UPDATE batches SET paused = FALSE WHERE id = $1`},
			{"not begun", `UPDATE batches SET not_before = {now} + 3600000 * {ms} WHERE id = $1`, `UPDATE batches SET not_before = NULL WHERE id = $1`},
			{
				"closed", `UPDATE batches SET opens_at = {now} + 3600000 * {ms}, closes_at = {now} + 7200000 * {ms} WHERE id = $1`,
				`UPDATE batches SET opens_at = {now} - 3600000 * {ms}, closes_at = {now} + 3600000 * {ms} WHERE id = $1`,
			},
		} {
			for _, want := range []struct {
				do    string
				ahead int
				first string
			}{{c.stops, 0, "@ci/next"}, {c.goesOn, 1, "@ci/z-old"}} {
				l.exec(want.do, old)
				s, err := l.CallerBoundOf(l.Context(), "p", next.Task)
				l.must(err)
				called, err := l.NextCallers(l.Context(), "p", 10)
				l.must(err)
				if s.Ahead != want.ahead || len(called) != 1 || called[0] != want.first {
					l.Errorf("%s: %d are ahead, and %v are called; want %d, %s", c.name, s.Ahead, called, want.ahead, want.first)
				}
			}
		}
	})
}

func TestLeasesAreListedByCaller(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		l.queueBatch(store.Batch{Pool: "p"}, "ci")
		open := func(caller, holder string) store.LeaseTask {
			made, err := l.OpenLease(l.Context(), store.NewLease{Pool: "p", Holder: store.HolderDevice(caller, holder), WaitFor: time.Hour})
			l.must(err)
			return made
		}
		held := open("ci", "b")
		open("ci", "a")
		open("ci/x", "a")
		open("ci 2|", "a")
		l.mustGrant(held.Task, "@ci/b", "p", 3)
		list := func(f store.LeaseFilter, want ...string) {
			l.Helper()
			f.Pool = "p"
			found, err := l.Leases(l.Context(), f)
			l.must(err)
			var got []string
			for _, one := range found {
				got = append(got, one.Device)
				if (one.Grant.Task != 0) != (one.Device == "@ci/b") {
					l.Fatalf("%s has grant %+v", one.Device, one.Grant)
				}
			}
			if !slices.Equal(got, want) {
				l.Fatalf("%v, want %v", got, want)
			}
		}
		list(store.LeaseFilter{}, "@ci%202%7C/a", "@ci%2Fx/a", "@ci/a", "@ci/b")
		list(store.LeaseFilter{Caller: "ci"}, "@ci/a", "@ci/b")
		list(store.LeaseFilter{Caller: "ci", After: "@ci/a"}, "@ci/b")
		list(store.LeaseFilter{Caller: "ci/x"}, "@ci%2Fx/a")
	})
}
