package store_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

func TestTasksAreFiltered(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		l.putPool("q", 2)
		one, first := l.queueBatch(store.Batch{Pool: "p", Kind: "k1"}, "a", "b", "c")
		_, second := l.queueBatch(store.Batch{Pool: "q", Kind: "k2"}, "a", "d")
		l.recordResult(l.mustGrant(first[0], "a", "p", 0), store.BySuccess, "")
		l.mustGrant(first[1], "b", "p", 0)
		for name, c := range map[string]struct {
			filter store.TaskFilter
			want   []int64
		}{
			"all":        {store.TaskFilter{}, append(slices.Clone(first), second...)},
			"device":     {store.TaskFilter{Device: "a"}, []int64{first[0], second[0]}},
			"batch":      {store.TaskFilter{Batch: one.ID}, first},
			"pool":       {store.TaskFilter{Pool: "q"}, second},
			"kind":       {store.TaskFilter{Kind: "k1"}, first},
			"pending":    {store.TaskFilter{State: store.Pending}, []int64{first[2], second[0], second[1]}},
			"dispatched": {store.TaskFilter{State: store.Dispatched}, first[1:2]},
			"succeeded":  {store.TaskFilter{State: store.Succeeded}, first[:1]},
			"both":       {store.TaskFilter{Device: "a", Pool: "q"}, second[:1]},
			"page":       {store.TaskFilter{After: first[0], Limit: 2}, first[1:]},
			"none":       {store.TaskFilter{Device: "z"}, nil},
		} {
			tasks, err := l.Tasks(l.Context(), c.filter)
			l.must(err)
			var got []int64
			for _, task := range tasks {
				got = append(got, task.ID)
				l.wantTask(task.ID, task.State)
			}
			if !slices.Equal(got, c.want) {
				l.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
		if _, _, _, err := l.Task(l.Context(), 99999); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("no task: %v", err)
		}
	})
}

func TestCancelTask(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 3)
	_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 5}, "a", "b", "c")
	ended, running := l.mustGrant(ids[0], "a", "p", 0), l.mustGrant(ids[1], "b", "p", 1)
	l.recordResult(ended, store.BySuccess, "")
	for i, want := range []store.TaskState{store.Succeeded, store.Dispatched, store.Cancelled} {
		for range 2 {
			if task, err := l.CancelTask(l.Context(), "op", ids[i]); err != nil || task.State != want {
				l.Fatalf("task %d: %+v, %v; want %s", i, task, err, want)
			}
		}
	}
	if _, err := l.CancelTask(l.Context(), "op", 99999); !errors.Is(err, store.ErrNotFound) {
		l.Fatalf("no task: %v", err)
	}
	views, err := l.DeviceViews(l.Context(), []string{"b", "c"})
	l.must(err)
	if views[0].Grant.CancelWhy != "cancelled" || len(views[1].Candidates) != 0 {
		l.Fatalf("views %+v", views)
	}
	if o := l.recordResult(running, store.ByFailure, ""); o.State != store.Cancelled {
		l.Fatalf("outcome %+v", o)
	}
	l.wantStatuses(l.claimAll(l.newClaim(ids[2], "c", "p", 2)), claimLost)
}

func TestViewsOfferTheBestTaskOfEachBatch(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 3)
		l.putPool("q", 3)
		high, low := 5, 1
		soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
		mixed, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p", Weight: 3, Lease: time.Minute, MaxAttempts: 3}, newTasks([]store.NewTask{
			{Device: "a", Priority: &low}, {Device: "a", Priority: &high}, {Device: "a", Priority: &high}, {Device: "b"},
		}))
		l.must(err)
		list, err := l.Tasks(l.Context(), store.TaskFilter{Batch: mixed.ID})
		l.must(err)
		later, laterIDs := l.queueBatch(store.Batch{Pool: "q", NotBefore: &soon, Paused: true}, "a")
		l.queueBatch(store.Batch{Pool: "q", NotAfter: &past}, "a")
		gone, _ := l.queueBatch(store.Batch{Pool: "q"}, "a")
		l.exec(`UPDATE batches SET cancelled_at = {now} WHERE id = $1`, gone.ID)
		view := func() []store.Candidate {
			views, err := l.DeviceViews(l.Context(), []string{"a"})
			l.must(err)
			if time.Since(views[0].Now).Abs() > time.Minute {
				l.Fatalf("read at %s", views[0].Now)
			}
			return views[0].Candidates
		}
		got := view()
		if len(got) != 2 || got[0].Batch != mixed.ID || got[1].Batch != later.ID {
			l.Fatalf("candidates %+v", got)
		}
		best := got[0]
		if best.Task != list[1].ID || best.Priority != 5 || best.Weight != 3 || best.Lease != time.Minute || best.Attempt != 1 ||
			best.Pool != "p" || !best.NotBefore.IsZero() || !best.RetryAt.IsZero() || !best.CreatedAt.Equal(mixed.CreatedAt) || best.PoolPaused || best.BatchPaused {
			l.Errorf("best of the first batch %+v", best)
		}
		if c := got[1]; c.Task != laterIDs[0] || c.NotBefore.UnixMilli() != soon.UnixMilli() || !c.BatchPaused || c.Lease != time.Hour {
			l.Errorf("best of the paused batch %+v", c)
		}
		// The task is in its backoff, so it comes after the tasks that can start now.
		l.exec(`UPDATE tasks SET retry_at = {now} + 3600000 * {ms} WHERE id = $1`, list[1].ID)
		if got := view(); got[0].Task != list[2].ID {
			l.Errorf("candidates %+v, want task %d", got, list[2].ID)
		}
		l.mustGrant(list[2].ID, "a", "p", 0)
		if got := view(); got[0].Task != list[0].ID {
			l.Errorf("candidates %+v, want task %d", got, list[0].ID)
		}
	})
}
