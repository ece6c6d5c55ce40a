package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// day is the unit in which the tests give retention times.
const day = 24 * time.Hour

func (l *ledger) wantRetained(keep time.Duration, limit int, want store.DeletedCounts) {
	l.Helper()
	got, err := l.Retain(l.Context(), keep, limit)
	l.must(err)
	if diff := cmp.Diff(want, got); diff != "" {
		l.Error(diff)
	}
}

func TestWhatIsOldIsRemovedInChunks(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 3)
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, deviceNames(5)...)
		var last store.Grant
		for i, id := range ids {
			last = l.mustGrant(id, deviceNames(5)[i], "p", 0)
			l.recordResult(last, store.ByReject, "")
		}
		unknown := last
		unknown.Task = ids[0] // The token belongs to another task.
		l.recordResult(unknown, store.BySuccess, "")
		ctx, _ := withOnceKey(l, 1, "k", "x")
		_, err := l.CreateToken(ctx, "op", store.Token{Name: "n"}, []byte("n"))
		l.must(err)
		before := l.countRows("events")
		l.sealBlocks(int64(before), 1)

		l.wantRetained(90*day, 3, store.DeletedCounts{})
		l.exec(`UPDATE event_seals SET at = at - $1 * {ms} WHERE last <= 4`, (91 * day).Milliseconds())
		l.exec(`UPDATE attempts SET ended_at = ended_at - $1 * {ms} WHERE token <= 4`, (91 * day).Milliseconds())
		l.exec(`UPDATE late_results SET received_at = received_at - $1 * {ms}`, (91 * day).Milliseconds())
		l.exec(`UPDATE answers SET answered_at = answered_at - $1 * {ms}`, (25 * time.Hour).Milliseconds())
		l.wantRetained(0, 3, store.DeletedCounts{Answers: 1}) // Everything else is kept for ever.
		l.wantRetained(90*day, 3, store.DeletedCounts{Events: 3, Attempts: 3, Results: 1})
		l.wantRetained(90*day, 3, store.DeletedCounts{Events: 1, Attempts: 1})
		l.wantRetained(90*day, 3, store.DeletedCounts{})
		if events, attempts := l.countRows("events"), l.countRows("attempts"); events != before-4 || attempts != 1 {
			l.Errorf("%d events of %d, %d attempts", events, before, attempts)
		}
		if n := l.countRows("tasks"); n != 5 {
			l.Errorf("%d tasks", n)
		}
	})
}

// TestOldBatchesGoWithTheirTasks checks the retention of a batch that ended long ago. It must be deleted in parts, and its counts must be
// correct after each part. A batch that still runs or that ended lately must keep all its tasks.
func TestOldBatchesGoWithTheirTasks(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		old, ids := l.queueBatch(store.Batch{Pool: "p"}, deviceNames(5)...)
		runs, open := l.queueBatch(store.Batch{Pool: "p"}, "r1", "r2")
		late, fresh := l.queueBatch(store.Batch{Pool: "p"}, "l1", "l2")
		var last store.Grant
		for i, id := range ids {
			last = l.mustGrant(id, deviceNames(5)[i], "p", 0)
			l.recordResult(last, []store.EndCause{store.BySuccess, store.ByReject}[i%2], "")
		}
		for i, id := range []int64{open[0], fresh[0], fresh[1]} {
			l.recordResult(l.mustGrant(id, []string{"r1", "l1", "l2"}[i], "p", 0), store.BySuccess, "")
		}
		_, _, err := l.Fold(l.Context(), 6) // Fold six deltas (changes of counts): three of new batches and three of results. The others stay.
		l.must(err)
		l.exec(`UPDATE batches SET created_at = created_at - $1 * {ms}`, (100 * day).Milliseconds())
		l.exec(`UPDATE tasks SET finished_at = finished_at - $1 * {ms} WHERE id <> $2`, (91 * day).Milliseconds(), fresh[0])

		l.wantRetained(0, 10, store.DeletedCounts{})
		l.wantRetained(92*day, 10, store.DeletedCounts{})
		l.wantRetained(90*day, 2, store.DeletedCounts{Tasks: 2})
		b, err := l.Batch(l.Context(), old.ID)
		l.must(err)
		if diff := cmp.Diff(map[store.TaskState]int64{store.Succeeded: 3}, b.Counts); b.Total != 3 || diff != "" {
			l.Errorf("a part is gone: total %d, %s", b.Total, diff)
		}
		l.wantRetained(90*day, 10, store.DeletedCounts{Tasks: 3, Batches: 1})
		l.wantRetained(90*day, 10, store.DeletedCounts{})
		if _, err := l.Batch(l.Context(), old.ID); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("the old batch: %v", err)
		}
		for _, kept := range []store.Batch{runs, late} {
			if b, err := l.Batch(l.Context(), kept.ID); err != nil || b.Total != 2 {
				l.Errorf("batch %d: %+v, %v", kept.ID, b, err)
			}
		}
		for range 10 { // The deltas of the deleted batch are removed.
			_, _, err := l.Fold(l.Context(), 100)
			l.must(err)
		}
		if n := l.countRows("batch_deltas"); n != 0 {
			l.Errorf("%d changes of counts left", n)
		}
		pool, err := l.TaskCounts(l.Context(), "p", 10)
		l.must(err)
		if diff := cmp.Diff(map[store.TaskState]int64{store.Succeeded: 3, store.Pending: 1}, pool.ByState); diff != "" {
			l.Errorf("tasks of the pool: %s", diff)
		}
		events, err := l.Events(l.Context(), store.EventFilter{Kind: "batch.removed"})
		l.must(err)
		if len(events) != 1 || events[0].Batch != old.ID || events[0].Actor != "retention" || events[0].Pool != "p" {
			l.Errorf("events %+v", events)
		}
		// A result of a deleted task is answered with unknown, and is stored as an unknown result.
		if o := l.recordResult(last, store.BySuccess, "1"); o.Kind != store.ResultUnknown || l.countRows("late_results") != 1 {
			l.Errorf("outcome %+v, %d kept", o, l.countRows("late_results"))
		}
	})
}
