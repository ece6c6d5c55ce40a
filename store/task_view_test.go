package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

func TestTaskView(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		view := func(id int64) store.TaskView {
			v, err := l.TaskView(l.Context(), id)
			l.must(err)
			return v
		}
		if _, err := l.TaskView(l.Context(), 1); !errors.Is(err, store.ErrNotFound) {
			l.Fatalf("no task: %v", err)
		}
		pool := l.putPool("p", 3)
		_, err := l.EnsureDevices(l.Context(), "a")
		l.must(err)
		batch, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 3}, "a", "b", "a")
		_, elsewhere := l.queueBatch(store.Batch{Pool: "p"}, "a")
		l.mustGrant(ids[1], "b", "p", 0)

		v := view(ids[2]) // This task is not the first candidate of its batch.
		if v.Task.ID != ids[2] || v.RunningGrant != nil || v.Batch.ID != batch.ID || v.Pool.Version != pool.Version || v.Held != 1 || v.LastAttempt != nil || v.LateResultAt != nil {
			l.Errorf("waiting: %+v", v)
		}
		if v.Device == nil || v.Device.ID != "a" || v.Grant != nil || time.Since(v.Now).Abs() > time.Minute {
			l.Errorf("its device: %+v", v.DeviceView)
		}
		var open []int64
		for _, c := range v.Candidates {
			open = append(open, c.Task)
		}
		if len(open) != 3 || open[0] != ids[0] || open[1] != ids[2] || open[2] != elsewhere[0] {
			l.Errorf("candidates %v, want the best of each batch and the task itself", open)
		}
		if v := view(ids[0]); len(v.Candidates) != 2 {
			l.Errorf("candidates %+v: the best of its batch is there once", v.Candidates)
		}

		g := l.mustGrant(ids[2], "a", "p", 2)
		v = view(ids[2])
		if v.RunningGrant == nil || v.RunningGrant.Token != g.Token || v.RunningGrant.Slot != 2 || v.Held != 2 || v.Grant == nil || v.Grant.Task != ids[2] || v.Task.State != store.Dispatched {
			l.Errorf("running: %+v", v)
		}
		if v := view(ids[0]); v.RunningGrant != nil || v.Grant == nil || v.Grant.Task != ids[2] {
			l.Errorf("of a device that holds another: %+v", v)
		}
		_, err = l.CancelTask(l.Context(), "ann", ids[2])
		l.must(err)
		if v := view(ids[2]); v.CancelledBy != "ann" || v.RunningGrant.CancelWhy != "cancelled" {
			l.Errorf("asked to stop: %+v", v)
		}
		l.recordResult(g, store.ByFailure, "")
		if v := view(ids[2]); v.RunningGrant != nil || v.LastAttempt == nil || v.LastAttempt.Token != g.Token || v.LastAttempt.EndedBy != store.ByFailure || v.CancelledBy != "ann" {
			l.Errorf("ended: %+v", v)
		}
	})
}
