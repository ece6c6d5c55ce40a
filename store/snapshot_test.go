package store_test

import (
	"context"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestMomentStandsStill checks that a snapshot of the ledger does not show commits that happen while it is read. This must hold for
// prepared queries, for queries that are planned at each call, and for views of tasks. The next snapshot must show these commits.
func TestMomentStandsStill(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 3)
	batch, tasks := l.queueBatch(store.Batch{Pool: "p"}, "d-1", "d-2")
	type snapshotView struct{ held, events, dispatched int }
	readAll := func(ctx context.Context) (s snapshotView) {
		o, err := l.Occupancy(ctx, "p", 10)
		l.must(err)
		events, err := l.Events(ctx, store.EventFilter{Batch: batch.ID})
		l.must(err)
		v, err := l.TaskView(ctx, tasks[0])
		l.must(err)
		return snapshotView{len(o.Grants), len(events), v.Held}
	}
	var before store.Snapshot
	l.must(l.InOneSnapshot(t.Context(), func(ctx context.Context, at store.Snapshot) error {
		before = at
		first := readAll(ctx)
		l.mustGrant(tasks[0], "d-1", "p", 0)
		if again := readAll(ctx); again != first || first.held != 0 {
			t.Errorf("in one snapshot first %+v, then %+v", first, again)
		}
		if now := readAll(t.Context()); now.held != 1 || now.dispatched != 1 || now.events <= first.events {
			t.Errorf("outside: %+v", now)
		}
		return nil
	}))
	l.must(l.InOneSnapshot(t.Context(), func(ctx context.Context, at store.Snapshot) error {
		if now := readAll(ctx); now.held != 1 || at.Event <= before.Event {
			t.Errorf("in the next snapshot: %+v at %s, before %s", now, at, before)
		}
		return nil
	}))
}

// TestMomentIsNamedByAllNewestEvents checks the names of two snapshots with the same newest event. If an event with a lower id was
// committed between the snapshots, their names must differ.
func TestMomentIsNamedByAllNewestEvents(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	held, err := l.DB().BeginTx(t.Context(), nil)
	l.must(err)
	defer held.Rollback()
	_, err = held.ExecContext(t.Context(), `INSERT INTO events (at, kind) VALUES (now(), 'held')`)
	l.must(err)
	for range 70 {
		l.exec(`INSERT INTO events (at, kind) VALUES (now(), 'other')`)
	}
	name := func() (at store.Snapshot) {
		l.must(l.InOneSnapshot(t.Context(), func(_ context.Context, now store.Snapshot) error {
			at = now
			return nil
		}))
		return at
	}
	if at := name(); at.Event != 71 || at.Below != 8 {
		t.Errorf("snapshot %s, want 71.8", at)
	}
	l.exec(`DELETE FROM events WHERE id > 40`)
	before := name()
	l.must(held.Commit())
	if after := name(); before.Event != 40 || after.Event != 40 || before == after {
		t.Errorf("%s before an older event came, then %s", before, after)
	}
}

// TestMomentOnBoth checks snapshots on both databases (Postgres and SQLite). An open snapshot must not block writers. A snapshot must be
// closed if its function returns an error.
func TestMomentOnBoth(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 3)
		for range 2 * 6 { // more often than the maximum number of concurrent snapshots
			err := l.InOneSnapshot(l.Context(), func(ctx context.Context, at store.Snapshot) error {
				if at.Event == 0 || at.Below != 1 {
					l.Errorf("snapshot %s, want one from 1 on", at)
				}
				l.resizePool("p", 3) // The open snapshot must not block this write.
				_, err := l.Pool(ctx, "nowhere")
				return err
			})
			if err == nil {
				l.Error("the error within is lost")
			}
		}
		l.putPool("q", 1)
	})
}
