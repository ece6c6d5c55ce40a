package store_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// wantKeptResults checks that there are late events for late results and unknown events for unknown results. The table late_results must
// have one row for each of these events.
func (l *ledger) wantKeptResults(late, unknown int) {
	l.Helper()
	gotLate := l.countEvents("result.late")
	if gotUnknown := l.countEvents("result.unknown"); gotLate != late || gotUnknown != unknown {
		l.Errorf("%d events result.late and %d result.unknown, want %d and %d", gotLate, gotUnknown, late, unknown)
	}
	if rows := l.countRows("late_results"); rows != late+unknown {
		l.Errorf("%d results kept, want %d", rows, late+unknown)
	}
}

// completeTasks lets the device do n tasks. It returns their grants in the order of their tokens.
func (l *ledger) completeTasks(device string, n int) (done []store.Grant) {
	l.Helper()
	tasks := make([]string, n)
	for i := range tasks {
		tasks[i] = device
	}
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, tasks...)
	for _, id := range ids {
		g := l.mustGrant(id, device, "p", 0)
		l.recordResult(g, store.BySuccess, "")
		done = append(done, g)
	}
	return done
}

// lapseGrants grants the task n times and lets each lease lapse. It returns these grants in the order of their
// tokens.
func (l *ledger) lapseGrants(task int64, device string, n int) (old []store.Grant) {
	l.Helper()
	for range n {
		old = append(old, l.mustGrant(task, device, "p", 0))
		l.reapAll()
	}
	return old
}

// TestTokensOfOtherTasksMakeNoLateResults checks a device that sends results of its task with the tokens of its earlier tasks. These
// results must not be stored as late results.
func TestTokensOfOtherTasksMakeNoLateResults(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		done := l.completeTasks("a", 250)
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a")
		g := l.mustGrant(ids[0], "a", "p", 0)
		for _, old := range done[50:] {
			old.Task = g.Task
			if o := l.recordResult(old, store.BySuccess, `"made up"`); o.Kind != store.ResultUnknown {
				l.Fatalf("token %d: outcome %+v, want unknown", old.Token, o)
			}
		}
		l.wantKeptResults(0, 100)
		if o := l.recordResult(g, store.BySuccess, ""); o.Kind != store.ResultRecorded {
			l.Errorf("result of the grant: %+v", o)
		}
	})
}

// TestLateResultsAreBounded grants a task to a device again and again, and each result comes too late. The number of stored late results
// must be bounded.
func TestLateResultsAreBounded(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 500}, "a")
		old := l.lapseGrants(ids[0], "a", 120)
		for _, g := range old[:119] {
			if o := l.recordResult(g, store.ByFailure, ""); o.Kind != store.ResultLate || o.State != store.Pending {
				l.Fatalf("token %d: outcome %+v, want late", g.Token, o)
			}
		}
		l.wantKeptResults(100, 0)
		if o := l.recordResult(old[119], store.BySuccess, `"late"`); o.Kind != store.ResultLate || o.State != store.Succeeded {
			l.Errorf("the 120th result: %+v, want a late success that finishes the task", o)
		}
		if task := l.wantTask(ids[0], store.Succeeded); string(task.Output) != `"late"` {
			l.Errorf("output %s", task.Output)
		}
		l.wantKeptResults(100, 0)
	})
}

func TestUnknownResultsLeaveRoomForLateOnes(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 500}, "a")
		old := l.lapseGrants(ids[0], "a", 2)
		for i := range 150 {
			l.recordResult(store.Grant{Device: "a", Task: ids[0] + 1000 + int64(i), Token: 1}, store.BySuccess, "")
		}
		newer := l.mustGrant(ids[0], "a", "p", 0)
		for _, g := range old {
			if o := l.recordResult(g, store.BySuccess, ""); o.Kind != store.ResultLate || o.State != store.Dispatched {
				l.Errorf("outcome %+v, want late", o)
			}
		}
		l.wantKeptResults(2, 100)
		if o := l.recordResult(newer, store.BySuccess, ""); o.Kind != store.ResultRecorded {
			l.Errorf("result of the newer grant: %+v", o)
		}
	})
}

// TestLateResultsOutliveTheirAttempts checks late results whose attempts were deleted by the retention. If a late result was stored before,
// its repetition must be answered with late again. If it was not stored, the ledger cannot tell it from an invented result, and must store
// it as unknown.
func TestLateResultsOutliveTheirAttempts(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 500}, "a")
		old := l.lapseGrants(ids[0], "a", 2)
		l.recordResult(old[0], store.ByFailure, "")
		l.exec(`DELETE FROM attempts`)
		l.mustGrant(ids[0], "a", "p", 0)
		for range 2 {
			if o := l.recordResult(old[0], store.ByFailure, ""); o.Kind != store.ResultLate {
				l.Errorf("outcome of a result that was kept: %+v, want late", o)
			}
			if o := l.recordResult(old[1], store.ByFailure, ""); o.Kind != store.ResultUnknown {
				l.Errorf("outcome of a result without an attempt: %+v, want unknown", o)
			}
		}
		l.wantKeptResults(1, 1)
	})
}

// TestUnknownResultsAreBounded checks a device that sends results of tasks that were never granted to it. The number of stored unknown
// results must be bounded.
func TestUnknownResultsAreBounded(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a")
		g := l.mustGrant(ids[0], "a", "p", 0)
		var made []store.Result
		for i := range 150 {
			made = append(made, store.Result{Device: "liar", Task: int64(i + 1), Token: g.Token, Cause: store.BySuccess})
		}
		for i, o := range l.RecordResults(l.Context(), made, settleEnding) { // The ledger records at most eight results concurrently.
			if o.Err != nil || o.Kind != store.ResultUnknown {
				l.Fatalf("result %d: %+v", i, o)
			}
		}
		l.wantKeptResults(0, 100)
	})
}
