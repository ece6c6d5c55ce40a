package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// TestLeasesAreCountedExactly checks that the counts of a batch of callers' leases are exact before and after a fold (the pass that adds up
// counts). A dropped lease must not be counted.
func TestLeasesAreCountedExactly(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		tried, leaves, ends, held := l.openLease("p", "tried"), l.openLease("p", "leaves"), l.openLease("p", "ends"), l.openLease("p", "held")
		l.openLease("p", "waits")
		batch := l.wantTask(held.Task, store.Pending).Batch
		_, err := l.DropLease(l.Context(), tried)
		l.must(err)
		_, err = l.GiveUpLease(l.Context(), "ci", leaves.Task)
		l.must(err)
		l.recordResult(l.mustGrant(ends.Task, store.HolderDevice("ci", "ends"), "p", 0), store.BySuccess, "")
		l.mustGrant(held.Task, store.HolderDevice("ci", "held"), "p", 1)
		for _, when := range []string{"as it is", "folded"} {
			b, err := l.Batch(l.Context(), batch)
			l.must(err)
			if diff := cmp.Diff(map[store.TaskState]int64{store.Succeeded: 1, store.Cancelled: 1, store.Dispatched: 1, store.Pending: 1}, b.Counts); b.Total != 4 || diff != "" {
				l.Errorf("%s: total %d, want 4: %s", when, b.Total, diff)
			}
			l.foldAll()
		}
		var queued int64
		l.must(l.DB().QueryRowContext(l.Context(), `SELECT n FROM pool_counts WHERE pool = 'p' AND state = 'queued'`).Scan(&queued))
		if queued != 4 {
			l.Errorf("the pool counts %d tasks, want 4", queued)
		}
	})
}

// TestRetentionKeepsOpenLeases checks that the retention deletes neither a lease that holds a slot or waits, nor its batch. After a batch
// of leases was deleted, a new lease must get a new batch.
func TestRetentionKeepsOpenLeases(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		held, waits := l.openLease("p", "held"), l.openLease("p", "waits")
		g := l.mustGrant(held.Task, store.HolderDevice("ci", "held"), "p", 0)
		ends := l.openLease("p", "ends")
		l.recordResult(l.mustGrant(ends.Task, store.HolderDevice("ci", "ends"), "p", 1), store.BySuccess, "")
		age := func() {
			l.exec(`UPDATE batches SET created_at = created_at - $1 * {ms}`, (100 * day).Milliseconds())
			l.exec(`UPDATE tasks SET finished_at = finished_at - $1 * {ms}`, (91 * day).Milliseconds())
		}
		age()
		l.wantRetained(90*day, 10, store.DeletedCounts{})
		l.recordResult(g, store.BySuccess, "")
		age()
		l.wantRetained(90*day, 10, store.DeletedCounts{})
		l.wantTask(waits.Task, store.Pending)
		batch := l.wantTask(waits.Task, store.Pending).Batch
		_, err := l.GiveUpLease(l.Context(), "ci", waits.Task)
		l.must(err)
		age()
		l.wantRetained(90*day, 10, store.DeletedCounts{Tasks: 3, Batches: 1})
		if next := l.wantTask(l.openLease("p", "next").Task, store.Pending).Batch; next <= batch {
			l.Errorf("batch %d after batch %d", next, batch)
		}
	})
}
