package store_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

func TestResultsEndGrantsAsSettled(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		for _, c := range []settlementCase{
			{store.BySuccess, 1, store.Succeeded, 1, 0, "task.succeeded"},
			{store.ByFailure, 1, store.Failed, 1, 0, "task.failed"},
			{store.ByFailure, 2, store.Pending, 1, 0, "task.failed"},
			{store.ByReject, 2, store.Failed, 1, 0, "task.failed"},
			{store.ByReturn, 1, store.Pending, 0, 1, "task.returned"},
		} {
			c.check(l)
		}
	})
}

// settlementCase is a result of the only task of a batch, and the effect that the result must have.
type settlementCase struct {
	cause    store.EndCause
	max      int // maximum attempts of the batch
	state    store.TaskState
	attempts int
	returned int
	event    string
}

func (c settlementCase) check(l *ledger) {
	l.Helper()
	device := fmt.Sprint(c.cause, "-of-", c.max)
	_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: c.max, RetryBackoff: time.Minute}, device)
	g := l.mustGrant(ids[0], device, "p", 0)
	r := store.Result{Device: device, Task: g.Task, Token: g.Token, Cause: c.cause, Output: json.RawMessage(`[1]`), Error: "why", RetryAfter: time.Minute}
	o := l.RecordResults(l.Context(), []store.Result{r}, settleEnding)[0]
	if o.Err != nil || o.Kind != store.ResultRecorded || o.State != c.state || o.Ended == nil || o.Ended.Slot != g.Slot {
		l.Fatalf("%s: outcome %+v", device, o)
	}
	task := l.wantTask(g.Task, c.state)
	if returns := l.countReturns(g.Task); task.Attempts != c.attempts || returns != c.returned {
		l.Errorf("%s: %d attempts and %d returns, want %d and %d", device, task.Attempts, returns, c.attempts, c.returned)
	}
	waits := c.state == store.Pending
	if (task.RetryAt != nil) != waits || (task.FinishedAt == nil) != waits || (task.Output == nil) != waits || (task.Error == "") != waits {
		l.Errorf("%s: task %+v", device, task)
	}
	_, _, attempts, err := l.Task(l.Context(), g.Task)
	l.must(err)
	if len(attempts) != 1 || attempts[0].Token != g.Token || attempts[0].EndedBy != c.cause || attempts[0].Number != 1 ||
		string(attempts[0].Output) != `[1]` || attempts[0].Error != "why" || attempts[0].EndedAt.Before(attempts[0].GrantedAt) {
		l.Errorf("%s: attempts %+v", device, attempts)
	}
	events, err := l.Events(l.Context(), store.EventFilter{Task: g.Task, Newest: true, Limit: 1})
	l.must(err)
	if len(events) != 1 || events[0].Kind != c.event || events[0].Actor != device || events[0].Token != g.Token || events[0].Pool != "p" || events[0].Detail != string(c.state)+": why" {
		l.Errorf("%s: events %+v, want %s", device, events, c.event)
	}
	if waits {
		l.wantStatuses(l.claimAll(l.newClaim(g.Task, device, "p", 0)), claimLost) // The task must not start again before its RetryAt.
	}
}

func TestLapsedGrantStillTakesItsResult(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 1)
	_, ids := l.queueBatch(store.Batch{Pool: "p", Lease: time.Millisecond}, "a")
	g := l.mustGrant(ids[0], "a", "p", 0)
	l.awaitLapsed()
	if o := l.recordResult(g, store.BySuccess, "1"); o.Kind != store.ResultRecorded {
		l.Fatalf("outcome %+v, want recorded", o)
	}
}

func TestLateSuccess(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		for _, c := range []struct {
			name    string
			max     int
			regrant bool
			state   store.TaskState // expected state after the late success
		}{
			{"finishes a task that waits for its next attempt", 2, false, store.Succeeded},
			{"finishes a task that was given up", 1, false, store.Succeeded},
			{"leaves a newer grant alone", 2, true, store.Dispatched},
		} {
			_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: c.max}, "a")
			old := l.mustGrant(ids[0], "a", "p", 0)
			if reaped := l.reapAll(); len(reaped) != 1 || reaped[0].Grant.LeaseID != old.LeaseID {
				l.Fatalf("%s: reaped %+v", c.name, reaped)
			}
			var newer store.Grant
			if c.regrant {
				newer = l.mustGrant(ids[0], "a", "p", 0)
			}
			for range 3 {
				if o := l.recordResult(old, store.BySuccess, `"late"`); o.Kind != store.ResultLate || o.State != c.state || o.Ended != nil {
					l.Fatalf("%s: outcome %+v, want late and %s", c.name, o, c.state)
				}
			}
			task := l.wantTask(ids[0], c.state)
			if c.state == store.Succeeded && string(task.Output) != `"late"` {
				l.Errorf("%s: output %s", c.name, task.Output)
			}
			events, err := l.Events(l.Context(), store.EventFilter{Kind: "task.succeeded_late", Task: ids[0]})
			l.must(err)
			if want := map[bool]int{false: 1, true: 0}[c.regrant]; len(events) != want {
				l.Errorf("%s: %d late successes recorded, want %d", c.name, len(events), want)
			}
			if c.regrant {
				if o := l.recordResult(newer, store.ByFailure, ""); o.Kind != store.ResultRecorded {
					l.Errorf("%s: result of the newer grant: %+v", c.name, o)
				}
			}
		}
	})
}

func TestLateFailureIsOnlyKept(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 1)
	_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 2}, "a")
	g := l.mustGrant(ids[0], "a", "p", 0)
	l.reapAll()
	if o := l.recordResult(g, store.ByFailure, ""); o.Kind != store.ResultLate || o.State != store.Pending {
		l.Fatalf("outcome %+v", o)
	}
	l.wantTask(ids[0], store.Pending)
}

func TestResultsOfNobodysGrants(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 3}, "a", "b")
		g := l.mustGrant(ids[0], "a", "p", 0)
		for _, r := range []store.Result{
			{Device: "b", Task: g.Task, Token: g.Token},        // the grant belongs to another device
			{Device: "b", Task: ids[1], Token: g.Token},        // the token belongs to another task
			{Device: "a", Task: 424242, Token: g.Token},        // no such task
			{Device: "a", Task: g.Task, Token: g.Token + 1000}, // this token was never issued
			{Device: "a", Task: g.Task, Token: -1},
			{Device: "stranger", Task: g.Task, Token: g.Token},
		} {
			r.Cause = store.BySuccess
			for range 2 {
				if o := l.RecordResults(l.Context(), []store.Result{r}, settleEnding)[0]; o.Err != nil || o.Kind != store.ResultUnknown || o.Ended != nil || o.State != "" {
					l.Fatalf("%+v: outcome %+v, want unknown", r, o)
				}
			}
		}
		l.wantTask(g.Task, store.Dispatched)
		l.wantTask(ids[1], store.Pending)
		if o := l.recordResult(g, store.BySuccess, ""); o.Kind != store.ResultRecorded {
			l.Fatalf("outcome %+v", o)
		}
		// After the grant has ended, results that other devices send for it are still unknown.
		if o := l.RecordResults(l.Context(), []store.Result{{Device: "b", Task: g.Task, Token: g.Token, Cause: store.BySuccess}}, settleEnding)[0]; o.Kind != store.ResultUnknown {
			l.Fatalf("outcome %+v, want unknown", o)
		}
	})
}

func TestABadResultFailsAlone(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 3)
		devices := deviceNames(3)
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, devices...)
		var results []store.Result
		for i, d := range devices {
			g := l.mustGrant(ids[i], d, "p", i)
			results = append(results, store.Result{Device: d, Task: g.Task, Token: g.Token, Cause: store.BySuccess})
		}
		failing := func(e store.EndedGrantFacts) store.NextTaskState {
			s := settleEnding(e)
			if e.Cause == store.ByFailure {
				s.State = "no such state"
			}
			return s
		}
		results[1].Cause = store.ByFailure
		outcomes := l.RecordResults(l.Context(), results, failing)
		if outcomes[0].Err != nil || outcomes[1].Err == nil || outcomes[2].Err != nil {
			l.Fatalf("outcomes %+v", outcomes)
		}
		l.wantTask(ids[0], store.Succeeded)
		l.wantTask(ids[1], store.Dispatched)
		l.wantTask(ids[2], store.Succeeded)
	})
}

func TestOneOfManyDuplicatesCounts(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 1)
	_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 500}, "a")
	g := l.mustGrant(ids[0], "a", "p", 0)
	r := store.Result{Device: "a", Task: g.Task, Token: g.Token, Cause: store.ByFailure}
	kinds := map[store.ResultKind]int{}
	var mu sync.Mutex
	var wait sync.WaitGroup
	for range 100 {
		wait.Go(func() {
			o := l.RecordResults(l.Context(), []store.Result{r}, settleEnding)[0]
			mu.Lock()
			defer mu.Unlock()
			kinds[o.Kind]++
			if o.Err != nil {
				l.Error(o.Err)
			}
		})
	}
	wait.Wait()
	if kinds[store.ResultRecorded] != 1 || kinds[store.ResultDuplicate] != 99 {
		l.Fatalf("outcomes %v", kinds)
	}
	if task := l.wantTask(g.Task, store.Pending); task.Attempts != 1 {
		l.Fatalf("%d attempts counted, want 1", task.Attempts)
	}
}

func TestOutputsComeBackByteForByte(t *testing.T) {
	t.Parallel()
	odd := []string{
		`{"b":1,  "a":1,"a":2}`, "[\n\t1.0, 1e2,-0.0, 1E+400 ]", `"\u0000\u00e9é\/<>&` + "\u2028" + `"`, `0.10000000000000000000000000001`,
		`"` + strings.Repeat("x", 32<<10) + `"`, ` null `, `{"\ud83d\ude00":"😀"}`, `[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]`,
	}
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", len(odd))
		devices := deviceNames(len(odd))
		tasks := func(yield func(store.NewTask, error) bool) {
			for i, d := range devices {
				if !yield(store.NewTask{Device: d, Payload: json.RawMessage(odd[i])}, nil) {
					return
				}
			}
		}
		batch, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p", Payload: json.RawMessage(` {"of": "batch"}`)}, tasks)
		l.must(err)
		list, err := l.Tasks(l.Context(), store.TaskFilter{Batch: batch.ID})
		l.must(err)
		for i, task := range list {
			g := l.mustGrant(task.ID, devices[i], "p", i)
			if string(g.Payload) != odd[i] {
				l.Errorf("payload %.80q, want %.80q", g.Payload, odd[i])
			}
			l.recordResult(g, store.BySuccess, odd[i])
			got, _, attempts, err := l.Task(l.Context(), task.ID)
			l.must(err)
			if string(got.Output) != odd[i] || string(attempts[0].Output) != odd[i] {
				l.Errorf("output %.80q and %.80q, want %.80q", got.Output, attempts[0].Output, odd[i])
			}
		}
	})
}
