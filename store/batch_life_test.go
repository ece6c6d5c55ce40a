package store_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// batchEvents returns the kinds of the events of a batch, oldest first. It leaves out the events of its tasks.
func (l *ledger) batchEvents(batch int64) (kinds []string) {
	l.Helper()
	events, err := l.Events(l.Context(), store.EventFilter{Batch: batch, Limit: 1000})
	l.must(err)
	for _, e := range events {
		if e.Task == 0 {
			kinds = append(kinds, e.Kind+" "+e.Actor+" "+e.Detail)
		}
	}
	return kinds
}

func TestAPausedBatchGrantsNothingUntilItIsResumed(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 5)
	b, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "b")
	running := l.mustGrant(ids[0], "a", "p", 0)
	for range 2 { // The second call changes nothing.
		paused, err := l.PauseBatch(l.Context(), "ann", b.ID, "too slow")
		l.must(err)
		if !paused.Paused || paused.PausedBy != "ann" || paused.PauseReason != "too slow" || paused.PausedAt == nil || paused.Counts[store.Pending] != 1 {
			l.Fatalf("paused: %+v", paused)
		}
	}
	l.wantStatuses(l.claimAll(l.newClaim(ids[1], "b", "p", 1)), claimLost)
	views, err := l.DeviceViews(l.Context(), []string{"b"})
	l.must(err)
	if !views[0].Candidates[0].BatchPaused {
		l.Fatalf("not seen as paused: %+v", views[0].Candidates)
	}
	if o := l.recordResult(running, store.BySuccess, ""); o.State != store.Succeeded {
		l.Fatalf("what ran came to %s", o.State)
	}
	for range 2 {
		resumed, err := l.ResumeBatch(l.Context(), "bob", b.ID)
		l.must(err)
		if resumed.Paused || resumed.PausedBy != "" || resumed.PauseReason != "" || resumed.PausedAt != nil {
			l.Fatalf("resumed: %+v", resumed)
		}
	}
	l.mustGrant(ids[1], "b", "p", 1)
	want := []string{"batch.created op tasks=2", "batch.paused ann too slow", "batch.resumed bob "}
	if got := l.batchEvents(b.ID); !slices.Equal(got, want) {
		l.Fatalf("events %q, want %q", got, want)
	}
	for name, call := range map[string]func() (store.Batch, error){
		"pause":  func() (store.Batch, error) { return l.PauseBatch(l.Context(), "op", 99, "") },
		"resume": func() (store.Batch, error) { return l.ResumeBatch(l.Context(), "op", 99) },
		"cancel": func() (store.Batch, error) { return l.CancelBatch(l.Context(), "op", 99) },
	} {
		if _, err := call(); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("%s of no batch: %v", name, err)
		}
	}
}

func TestACancelledBatchEnds(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 9)
	b, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 9}, deviceNames(30)...)
	_, other := l.queueBatch(store.Batch{Pool: "p"}, deviceNames(2)...)
	var held []store.Grant
	for i := range 4 {
		held = append(held, l.mustGrant(ids[i], deviceNames(30)[i], "p", i))
	}
	for range 2 { // The second call changes nothing.
		got, err := l.CancelBatch(l.Context(), "ann", b.ID)
		l.must(err)
		if got.CancelledAt == nil {
			l.Fatalf("cancelled: %+v", got)
		}
	}
	l.wantStatuses(l.claimAll(l.newClaim(ids[9], deviceNames(30)[9], "p", 5)), claimLost)
	for _, g := range held {
		if _, grant, _, err := l.Task(l.Context(), g.Task); err != nil || grant.CancelWhy != "cancelled" {
			l.Fatalf("the device of %+v is not asked to stop: %+v, %v", g, grant, err)
		}
	}
	var parts []int
	for {
		n, err := l.EndCancelled(l.Context(), 10)
		l.must(err)
		if parts = append(parts, n); n < 10 {
			break
		}
	}
	if !slices.Equal(parts, []int{10, 10, 6}) {
		l.Fatalf("ended in parts of %v, want bounded ones", parts)
	}
	l.recordResult(held[0], store.BySuccess, "")
	l.recordResult(held[1], store.ByFailure, "")
	l.recordResult(held[2], store.ByReturn, "")
	if n := l.countRows("batches WHERE cancelling"); n != 1 {
		l.Fatalf("%d batches being cancelled while one task runs, want 1", n)
	}
	l.reapAll()
	n, err := l.EndCancelled(l.Context(), 10)
	l.must(err)
	got, err := l.Batch(l.Context(), b.ID)
	l.must(err)
	want := map[store.TaskState]int64{store.Succeeded: 1, store.Cancelled: 29}
	if diff := cmp.Diff(want, got.Counts); diff != "" || n != 0 {
		l.Fatalf("ended %d more; %s", n, diff)
	}
	if n := l.countRows("batches WHERE cancelling"); n != 0 {
		l.Fatalf("%d batches still being cancelled", n)
	}
	l.mustGrant(other[0], deviceNames(1)[0], "p", 0)
	if got, want := l.batchEvents(b.ID), []string{"batch.created op tasks=30", "batch.cancelled ann "}; !slices.Equal(got, want) {
		l.Errorf("events %q, want %q", got, want)
	}
	if asked, ended := l.countRows("events WHERE kind = 'task.cancel_asked'"), l.countRows("events WHERE kind = 'task.cancelled' AND actor = 'canceller'"); asked != 4 || ended != 26 {
		l.Errorf("%d asked, %d ended in the audit log, want 4 and 26", asked, ended)
	}
}

// TestCancelWhileClaimsCommit checks that a cancelled batch leaves no task behind. A claim whose statement began
// before the cancel may commit after the cancel. Its task must be cancelled, too.
func TestCancelWhileClaimsCommit(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 100)
	for range 5 {
		devices := deviceNames(60)
		b, ids := l.queueBatch(store.Batch{Pool: "p"}, devices...)
		var wait sync.WaitGroup
		for i := range 6 {
			wait.Go(func() {
				for n := range 10 {
					task := i*10 + n
					if _, err := l.Claim(l.Context(), []store.Claim{l.newClaim(ids[task], devices[task], "p", task)}, true); err != nil {
						l.Error(err)
					}
				}
			})
		}
		for range 2 {
			wait.Go(func() {
				if _, err := l.CancelBatch(l.Context(), "op", b.ID); err != nil {
					l.Error(err)
				}
				for range 3 {
					if _, err := l.EndCancelled(l.Context(), 7); err != nil {
						l.Error(err)
					}
				}
			})
		}
		wait.Wait()
		for open := true; open; {
			n, err := l.EndCancelled(l.Context(), 1000)
			l.must(err)
			open = n > 0
		}
		if n := l.countRows("grants WHERE cancel_why <> 'cancelled'"); n != 0 {
			l.Fatalf("%d devices are not asked to stop", n)
		}
		l.reapAll()
		_, err := l.EndCancelled(l.Context(), 1000)
		l.must(err)
		if got, err := l.Batch(l.Context(), b.ID); err != nil || got.Counts[store.Cancelled] != 60 {
			l.Fatalf("%v, %v", got.Counts, err)
		}
	}
	if n := l.countRows("batches WHERE cancelling"); n != 0 {
		l.Fatalf("%d batches never end", n)
	}
}

func TestBatchesChange(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		own := 4
		b, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p", Priority: 1, Weight: 2, MaxAttempts: 3}, newTasks([]store.NewTask{
			{Device: "a"}, {Device: "a", Priority: &own},
		}))
		l.must(err)
		end := time.UnixMilli(4_000_000_000_001).UTC()
		got, err := l.ChangeBatch(l.Context(), "ann", b.ID, func(b *store.Batch) error {
			b.Priority, b.Weight, b.NotAfter, b.MaxAttempts, b.Name = 9, 5, &end, 1, "not kept"
			return nil
		})
		l.must(err)
		want := b
		want.Unknown = store.UnknownDevices{}
		want.Priority, want.Weight, want.NotAfter, want.MaxAttempts, want.ReadAt, want.PoolSettings = 9, 5, &end, 1, got.ReadAt, got.PoolSettings
		if diff := cmp.Diff(want, got); diff != "" {
			l.Fatal(diff)
		}
		tasks, err := l.Tasks(l.Context(), store.TaskFilter{Batch: b.ID})
		l.must(err)
		views, err := l.DeviceViews(l.Context(), []string{"a"})
		l.must(err)
		if tasks[0].Priority != 9 || tasks[1].Priority != 4 || views[0].Candidates[0].Task != tasks[0].ID || views[0].Candidates[0].Priority != 9 {
			l.Fatalf("priorities %d and %d, best %+v; want the batch's 9 before the task's own 4", tasks[0].Priority, tasks[1].Priority, views[0].Candidates)
		}
		for _, change := range []func(*store.Batch) error{
			func(*store.Batch) error { return nil },
			func(b *store.Batch) error { b.Priority = 77; return errors.New("refused") },
		} {
			_, err := l.ChangeBatch(l.Context(), "ann", b.ID, change)
			if after, _ := l.Batch(l.Context(), b.ID); after.Priority != 9 || (err != nil) != (change(&after) != nil) {
				l.Errorf("%v: %+v", err, after)
			}
		}
		_, err = l.ChangeBatch(l.Context(), "ann", b.ID, func(b *store.Batch) error { b.NotAfter = nil; return nil })
		l.must(err)
		events := []string{
			"batch.created op tasks=2", "batch.changed ann priority=1 -> 9 weight=2 -> 5 not_after=none -> 2096-10-02T07:06:40.001Z max_attempts=3 -> 1",
			"batch.changed ann not_after=2096-10-02T07:06:40.001Z -> none",
		}
		if got := l.batchEvents(b.ID); !slices.Equal(got, events) {
			l.Errorf("events %q, want %q", got, events)
		}
		g := l.mustGrant(tasks[0].ID, "a", "p", 0)
		if o := l.recordResult(g, store.ByFailure, ""); o.State != store.Failed {
			l.Errorf("a failure after max_attempts fell to 1: %s", o.State)
		}
	})
}

// TestCancelOfABigBatch checks the cancel of a batch with 100,000 waiting tasks: the tasks are ended in several
// transactions, each with a bounded number of tasks.
func TestCancelOfABigBatch(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: 100,000 tasks; make test-long runs it")
	}
	l := openPostgres(t)
	l.putPool("p", 5)
	const n = 100_000
	b, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p"}, tasksFor(deviceNames(n)))
	l.must(err)
	_, err = l.CancelBatch(l.Context(), "op", b.ID)
	l.must(err)
	started := time.Now()
	total := 0
	for part := 1000; part == 1000; total += part {
		part, err = l.EndCancelled(l.Context(), 1000)
		l.must(err)
	}
	l.Logf("%d tasks ended in %s", total, time.Since(started).Round(time.Millisecond))
	got, err := l.Batch(l.Context(), b.ID)
	l.must(err)
	if total != n || got.Counts[store.Cancelled] != n {
		l.Fatalf("%d ended: %v", total, got.Counts)
	}
}
