package store_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestBatchesHaveALane checks that the lane of a batch (normal or urgent) is stored, listed, changed and recorded
// in the audit log. A batch without a lane is normal.
func TestBatchesHaveALane(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		l.putPool("q", 1)
		var ids []int64
		for _, b := range []store.Batch{{Pool: "p"}, {Pool: "p", Lane: store.LaneUrgent}, {Pool: "q", Lane: store.LaneUrgent}} {
			made, err := l.CreateBatch(l.Context(), "ann", b, newTasks([]store.NewTask{{Device: "d"}}))
			l.must(err)
			ids = append(ids, made.ID)
		}
		l.expectLane(store.LaneUrgent, ids[2], ids[1])
		l.expectLane(store.LaneNormal, ids[0])
		l.expectUrgent("p", store.OpenBatch{ID: ids[1], MayStart: true})

		changed, err := l.ChangeBatch(l.Context(), "bob", ids[0], func(b *store.Batch) error { b.Lane = store.LaneUrgent; return nil })
		l.must(err)
		if changed.Lane != store.LaneUrgent {
			l.Errorf("changed to %q", changed.Lane)
		}
		_, err = l.PauseBatch(l.Context(), "bob", ids[0], "")
		l.must(err)
		l.expectUrgent("p", store.OpenBatch{ID: ids[1], MayStart: true}, store.OpenBatch{ID: ids[0]})
		_, err = l.ChangeBatch(l.Context(), "bob", ids[1], func(b *store.Batch) error { b.Lane = store.LaneNormal; return nil })
		l.must(err)
		l.expectUrgent("p", store.OpenBatch{ID: ids[0]})

		var laneEvents []string
		events, err := l.Events(l.Context(), store.EventFilter{Pool: "p", Newest: true, Limit: 100})
		l.must(err)
		for _, e := range events {
			if strings.Contains(e.Detail, "lane=") {
				laneEvents = append(laneEvents, e.Kind+" by "+e.Actor+": "+e.Detail)
			}
		}
		want := []string{"batch.changed by bob: lane=urgent -> normal", "batch.changed by bob: lane=normal -> urgent", "batch.created by ann: tasks=1 lane=urgent"}
		if !slices.Equal(laneEvents, want) {
			l.Errorf("events %q, want %q", laneEvents, want)
		}

		views, err := l.DeviceViews(l.Context(), []string{"d"})
		l.must(err)
		for _, c := range views[0].Candidates {
			if c.Urgent != (c.Batch != ids[1]) {
				l.Errorf("task of batch %d: urgent %v", c.Batch, c.Urgent)
			}
		}

		// Pool p gets a newer urgent batch without a waiting task. This batch must not hide the older urgent batch of p.
		ended, tasks := l.queueBatch(store.Batch{Pool: "p", Lane: store.LaneUrgent}, "e")
		l.exec(`UPDATE tasks SET state = 'succeeded' WHERE id = $1`, tasks[0])
		if open, err := l.UrgentBatches(l.Context(), "p", 1); err != nil || len(open) != 1 || open[0].ID != ids[0] {
			l.Errorf("beside batch %d, which ended: %+v, %v", ended.ID, open, err)
		}
		// The urgent batch of pool p is paused, so only pool q has urgent work.
		if with, err := l.PoolsWithUrgent(l.Context(), []string{"p", "q"}); err != nil || !slices.Equal(with, []string{"q"}) {
			l.Errorf("pools with urgent work: %q, %v", with, err)
		}
	})
}

func (l *ledger) expectLane(lane store.Lane, want ...int64) {
	l.Helper()
	list, err := l.Batches(l.Context(), store.BatchFilter{Lane: lane}, 0, 10)
	l.must(err)
	var got []int64
	for _, b := range list {
		got = append(got, b.ID)
	}
	if !slices.Equal(got, want) {
		l.Errorf("%s: batches %d, want %d", lane, got, want)
	}
}

func (l *ledger) expectUrgent(pool string, want ...store.OpenBatch) {
	l.Helper()
	got, err := l.UrgentBatches(l.Context(), pool, 10)
	l.must(err)
	if !slices.Equal(got, want) {
		l.Errorf("urgent of %s: %+v, want %+v", pool, got, want)
	}
}
