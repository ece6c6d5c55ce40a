package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

func TestBatchesKeepTheirRules(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		from, to := time.UnixMilli(1_790_000_000_123).UTC(), time.UnixMilli(4_000_000_000_001).UTC()
		want := store.Batch{
			Name: "night", Pool: "p", Kind: "firmware", Payload: json.RawMessage(`{"v":  1}`), Priority: -3, Weight: 7, Lane: store.LaneUrgent,
			NotBefore: &from, NotAfter: &to, MaxAttempts: 4, RetryOn: []string{"failed", "timed_out"}, RetryBackoff: 1500 * time.Millisecond,
			OnLost: "fail", Lease: 90 * time.Second, MaxRun: 2 * time.Hour, Paused: true,
		}
		first := 9
		created, err := l.CreateBatch(l.Context(), "op", want, newTasks([]store.NewTask{
			{Device: "a", Payload: json.RawMessage(`[ 1]`), Priority: &first}, {Device: "b"},
		}))
		l.must(err)
		want.ID, want.CreatedAt, want.Total = created.ID, created.CreatedAt, 2
		want.Counts = map[store.TaskState]int64{store.Pending: 2}
		read, err := l.Batch(l.Context(), created.ID)
		l.must(err)
		if unknown := (store.UnknownDevices{Tasks: 2, First: "a"}); created.Unknown != unknown {
			l.Errorf("unknown: %+v, want %+v", created.Unknown, unknown)
		}
		created.Unknown = store.UnknownDevices{}
		for _, got := range []store.Batch{created, read} {
			if got.ReadAt.Before(created.CreatedAt) {
				l.Errorf("read at %s, before its creation", got.ReadAt)
			}
			got.ReadAt, got.PoolSettings = time.Time{}, store.BatchPoolSettings{}
			if diff := cmp.Diff(want, got); diff != "" {
				l.Error(diff)
			}
		}
		tasks, err := l.Tasks(l.Context(), store.TaskFilter{Batch: created.ID})
		l.must(err)
		wantTasks := []store.Task{
			{ID: tasks[0].ID, Batch: created.ID, Pool: "p", Device: "a", Kind: "firmware", Payload: json.RawMessage(`[ 1]`), Priority: 9, State: store.Pending, CreatedAt: created.CreatedAt},
			{ID: tasks[0].ID + 1, Batch: created.ID, Pool: "p", Device: "b", Kind: "firmware", Payload: want.Payload, Priority: -3, State: store.Pending, CreatedAt: created.CreatedAt},
		}
		if diff := cmp.Diff(wantTasks, tasks); diff != "" {
			l.Error(diff)
		}
		if _, err := l.Batch(l.Context(), created.ID+1); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("no batch: %v", err)
		}
	})
}

func TestABatchIsCreatedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		broken := errors.New("line 501: no device")
		for _, c := range []struct {
			name  string
			pool  string
			tasks func(yield func(store.NewTask, error) bool)
			want  error
		}{
			{"unknown pool", "q", tasksFor([]string{"a"}), store.ErrUnknownPool},
			{"failing sequence", "p", func(yield func(store.NewTask, error) bool) {
				for i := range 500 {
					if !yield(store.NewTask{Device: fmt.Sprint("d", i)}, nil) {
						return
					}
				}
				yield(store.NewTask{}, broken)
			}, broken},
		} {
			if _, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: c.pool}, c.tasks); !errors.Is(err, c.want) {
				l.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
			if n := l.countRows("tasks") + l.countRows("batches"); n != 0 {
				l.Errorf("%s: %d rows left behind", c.name, n)
			}
		}
		// A batch without tasks is refused. After that, the connection can be used to create the next batch.
		if _, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p"}, tasksFor(nil)); !errors.Is(err, store.ErrNoTasks) {
			l.Fatalf("an empty batch: %v", err)
		}
		l.queueBatch(store.Batch{Pool: "p"}, "a")
	})
}

// TestABigBatchIsStreamed checks that CreateBatch does not hold a big batch in memory. It measures the memory of the process, so it does
// not run in parallel with other tests.
func TestABigBatchIsStreamed(t *testing.T) { //nolint:paralleltest,tparallel // see above
	if testing.Short() {
		t.Skip("long: 100,000 tasks; make test-long runs it")
	}
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		n := 100_000
		if l.Dialect() == "sqlite" {
			n = 10_000 // SQLite is for the embedded mode, and is slow under the race detector.
		}
		payload := json.RawMessage(`{"pad": "` + strings.Repeat("x", 1000) + `"}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		peak := uint64(0)
		start := time.Now()
		b, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p"}, func(yield func(store.NewTask, error) bool) {
			for i := range n {
				if i%(n/5) == n/5-1 {
					runtime.GC()
					runtime.ReadMemStats(&after)
					peak = max(peak, after.HeapAlloc)
				}
				if !yield(store.NewTask{Device: fmt.Sprintf("dev-%06d", i), Payload: payload}, nil) {
					return
				}
			}
		})
		l.must(err)
		l.Logf("%d tasks in %s; live heap %d KiB before, %d KiB at most", n, time.Since(start).Round(time.Millisecond), before.HeapAlloc>>10, peak>>10)
		// The rows of the batch have more than 100 MB in total, or 10 MB with SQLite.
		if peak > before.HeapAlloc+(50<<20) {
			l.Errorf("the heap grew from %d to %d bytes", before.HeapAlloc, peak)
		}
		read, err := l.Batch(l.Context(), b.ID)
		if err != nil || read.Total != int64(n) || read.Counts[store.Pending] != int64(n) {
			l.Fatalf("read %+v, %v", read, err)
		}
	})
}

func TestCountsAddUpInEveryReading(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	const n = 30
	l.putPool("p", n)
	devices := deviceNames(n)
	batch, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 2}, devices...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i, d := range devices {
			outcomes, err := l.Claim(l.Context(), []store.Claim{l.newClaim(ids[i], d, "p", i)}, true)
			if err != nil || outcomes[0].Status != claimGranted {
				l.Errorf("claim: %+v, %v", outcomes, err)
				return
			}
			cause := []store.EndCause{store.BySuccess, store.ByFailure, store.ByReject}[i%3]
			l.RecordResults(l.Context(), []store.Result{{Device: d, Task: ids[i], Token: outcomes[0].Grant.Token, Cause: cause}}, settleEnding)
		}
	}()
	for reading, running := 0, true; running; reading++ {
		select {
		case <-done:
			running = false
		default:
		}
		list, err := l.Batches(l.Context(), store.BatchFilter{}, 0, 10)
		l.must(err)
		sum := int64(0)
		for _, c := range list[0].Counts {
			sum += c
		}
		if list[0].ID != batch.ID || sum != n || list[0].Counts[store.Pending] < 0 {
			l.Fatalf("reading %d: %v adds up to %d, want %d", reading, list[0].Counts, sum, n)
		}
	}
	got, err := l.Batch(l.Context(), batch.ID)
	l.must(err)
	want := map[store.TaskState]int64{store.Succeeded: 10, store.Pending: 10, store.Failed: 10}
	if diff := cmp.Diff(want, got.Counts); diff != "" {
		l.Fatal(diff)
	}
}

func TestBatchesComeNewestFirst(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 1)
	var want, got []int64
	for range 5 {
		b, _ := l.queueBatch(store.Batch{Pool: "p"}, "a")
		want = append(want, b.ID)
	}
	slices.Reverse(want)
	for before := int64(0); ; before = got[len(got)-1] {
		page, err := l.Batches(l.Context(), store.BatchFilter{}, before, 2)
		l.must(err)
		if len(page) == 0 {
			break
		}
		for _, b := range page {
			got = append(got, b.ID)
		}
	}
	if !slices.Equal(got, want) {
		l.Fatalf("got %v, want %v", got, want)
	}
}

func newTasks(list []store.NewTask) func(yield func(store.NewTask, error) bool) {
	return func(yield func(store.NewTask, error) bool) {
		for _, task := range list {
			if !yield(task, nil) {
				return
			}
		}
	}
}
