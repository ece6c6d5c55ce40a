package store_test

import (
	"fmt"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestADroppedOutputIsMarked checks a result whose output was dropped because it is too large. The attempt and the task that the result
// ended must be marked. There must be one event, even if the result is sent more than once.
func TestADroppedOutputIsMarked(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		for _, c := range []struct {
			name         string
			cause        store.EndCause
			max          int
			lapsed       bool
			kind         store.ResultKind
			task, ending bool // expected marks of the task and of its attempt
		}{
			{"ends the task", store.BySuccess, 1, false, store.ResultRecorded, true, true},
			{"is tried again", store.ByFailure, 2, false, store.ResultRecorded, false, true},
			{"came late", store.BySuccess, 2, true, store.ResultLate, true, false},
			{"came late, and is of no use", store.ByFailure, 2, true, store.ResultLate, false, false},
		} {
			_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: c.max}, "a")
			g := l.mustGrant(ids[0], "a", "p", 0)
			if c.lapsed {
				l.reapAll()
			}
			r := store.Result{Device: "a", Task: g.Task, Token: g.Token, Cause: c.cause, Dropped: true}
			kinds := ""
			for range 2 {
				kinds += fmt.Sprint(l.RecordResults(l.Context(), []store.Result{r}, settleEnding)[0].Kind)
			}
			if again := map[bool]store.ResultKind{false: store.ResultDuplicate, true: store.ResultLate}[c.lapsed]; kinds != string(c.kind+again) {
				l.Errorf("%s: %s", c.name, kinds)
			}
			task, _, attempts, err := l.Task(l.Context(), g.Task)
			l.must(err)
			if task.Dropped != c.task || len(attempts) != 1 || attempts[0].Dropped != c.ending {
				l.Errorf("%s: the task says %t, want %t; the attempts %+v, want %t", c.name, task.Dropped, c.task, attempts, c.ending)
			}
			events, err := l.Events(l.Context(), store.EventFilter{Task: g.Task, Kind: "result.output_dropped"})
			l.must(err)
			if len(events) != 1 || events[0].Actor != "a" || events[0].Pool != "p" || events[0].Token != g.Token || events[0].Detail != "too large" {
				l.Errorf("%s: events %+v", c.name, events)
			}
			_, err = l.CancelTask(l.Context(), "op", g.Task) // End the task if it waits again, so that the slot is free.
			l.must(err)
		}
	})
}

func TestARetriedTaskForgetsWhatWasDropped(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 1}, "a")
		g := l.mustGrant(ids[0], "a", "p", 0)
		r := store.Result{Device: "a", Task: g.Task, Token: g.Token, Cause: store.ByFailure, Dropped: true}
		l.must(l.RecordResults(l.Context(), []store.Result{r}, settleEnding)[0].Err)
		if task, err := l.RetryTask(l.Context(), "op", ids[0]); err != nil || task.Dropped {
			l.Errorf("%+v, %v", task, err)
		}
	})
}
