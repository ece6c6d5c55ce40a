package store_test

import (
	"slices"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestPoolsArePausedByOneEvent checks that one call pauses several pools and writes one event. A filter by any of these pools finds the
// event, and a filter by another pool does not. Only the actor who began a pause can end it.
func TestPoolsArePausedByOneEvent(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		for _, pool := range []string{"a", "b", "c", "aa", "a_"} {
			l.putPool(pool, 1)
		}
		pause := func(actor string, change store.PoolsPause, want int) {
			l.Helper()
			changed, stopping, err := l.PausePools(l.Context(), actor, change)
			if err != nil || changed != want || stopping != 0 {
				l.Errorf("%s %+v: %d pools changed, %d devices stop, %v; want %d pools", actor, change, changed, stopping, err, want)
			}
		}
		pause("bob", store.PoolsPause{Pools: []string{"b"}}, 1)
		pause("ann", store.PoolsPause{Pools: []string{"c", "b", "a", "none"}, Reason: "of ,aa, all"}, 2)
		pause("ann", store.PoolsPause{Pools: []string{"c", "b", "a"}}, 0)
		if p, err := l.Pool(l.Context(), "a"); err != nil || !p.Paused || p.PausedBy != "ann" || p.PauseReason != "of ,aa, all" || p.PausedAt == nil || p.Version != 2 {
			l.Errorf("%+v, %v", p, err)
		}
		pause("ann", store.PoolsPause{Pools: []string{"a", "b", "c"}, End: true}, 2)
		if p, err := l.Pool(l.Context(), "b"); err != nil || p.PausedBy != "bob" {
			l.Errorf("%+v, %v", p, err)
		}
		created, paused, resumed := "pool.created op capacity=1 lease=1h0m0s paused=false", "pools.paused ann a,c because: of ,aa, all", "pools.resumed ann a,c"
		for pool, want := range map[string][]string{
			"a": {created, paused, resumed}, "b": {created, "pools.paused bob b"}, "c": {created, paused, resumed}, "aa": {created}, "a_": {created},
		} {
			if got := l.poolEvents(pool); !slices.Equal(got, want) {
				l.Errorf("events of pool %s: %q, want %q", pool, got, want)
			}
		}
		newest, err := l.Events(l.Context(), store.EventFilter{Pool: "a", Newest: true, Limit: 2})
		if err != nil || len(newest) != 2 || newest[0].Kind != "pools.resumed" || newest[1].Kind != "pools.paused" {
			l.Errorf("the newest events: %+v, %v", newest, err)
		}
		if found, err := l.Events(l.Context(), store.EventFilter{Pool: "a", Kind: "pools.paused", Actor: "bob"}); err != nil || len(found) != 0 {
			l.Errorf("events of bob: %+v, %v", found, err)
		}
	})
}

// TestAPauseCanStopRunningTasks checks that a pause with StopRunning asks the devices that hold a slot to stop, even in a pool that was
// paused before. Holders of callers' leases are not asked. If a stopped task fails, a return is recorded. If it succeeds, a success is
// recorded.
func TestAPauseCanStopRunningTasks(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 3)
		l.putPool("q", 3)
		_, tasks := l.queueBatch(store.Batch{Pool: "p"}, "a", "b", "@ci/job")
		stopped, done, lease := l.mustGrant(tasks[0], "a", "p", 0), l.mustGrant(tasks[1], "b", "p", 1), l.mustGrant(tasks[2], "@ci/job", "p", 2)
		for _, want := range []struct{ changed, stopping int }{{2, 0}, {0, 2}, {0, 0}} {
			change := store.PoolsPause{Pools: []string{"p", "q"}, StopRunning: want.changed == 0}
			if changed, stopping, err := l.PausePools(l.Context(), "ann", change); err != nil || changed != want.changed || stopping != want.stopping {
				l.Errorf("%d pools changed, %d devices stop, %v; want %+v", changed, stopping, err, want)
			}
		}
		outcomes, err := l.Renew(l.Context(), []store.Renewal{
			{Task: stopped.Task, Token: stopped.Token, Device: "a"}, {Task: lease.Task, Token: lease.Token, Device: "@ci/job"},
		})
		if err != nil || outcomes[0].Grant.CancelWhy != "paused" || outcomes[1].Grant.CancelWhy != "" {
			l.Errorf("renewals: %+v, %v", outcomes, err)
		}
		wantInput := func(cause store.EndCause, state store.TaskState) store.DecideTaskState {
			return func(in store.EndedGrantFacts) store.NextTaskState {
				if in.Cause != cause || in.CancelWhy != "paused" {
					l.Errorf("settled by %+v, want the cause %s", in, cause)
				}
				return store.NextTaskState{State: state}
			}
		}
		for _, end := range []struct {
			grant  store.Grant
			cause  store.EndCause
			settle store.DecideTaskState
		}{{stopped, store.ByFailure, wantInput(store.ByReturn, store.Pending)}, {done, store.BySuccess, wantInput(store.BySuccess, store.Succeeded)}} {
			result := store.Result{Device: end.grant.Device, Task: end.grant.Task, Token: end.grant.Token, Cause: end.cause, Error: "paused"}
			l.must(l.RecordResults(l.Context(), []store.Result{result}, end.settle)[0].Err)
		}
		if task, _, _, err := l.Task(l.Context(), stopped.Task); err != nil || task.State != store.Pending || task.Attempts != 0 {
			l.Errorf("%+v, %v", task, err)
		}
		var got []string
		events, err := l.Events(l.Context(), store.EventFilter{Pool: "p", After: lastGrantEvent(l)})
		l.must(err)
		for _, e := range events {
			got = append(got, e.Kind+" "+e.Actor+" "+e.Device+" "+e.Detail)
		}
		want := []string{
			"pools.paused ann  p,q", "task.cancel_asked canceller a paused", "task.cancel_asked canceller b paused", "pools.paused ann  p stopping=2",
			"task.returned a a pending: paused", "task.succeeded b b succeeded: paused",
		}
		if !slices.Equal(got, want) {
			l.Errorf("events %q, want %q", got, want)
		}
	})
}

// lastGrantEvent returns the id of the newest event of a grant.
func lastGrantEvent(l *ledger) int64 {
	l.Helper()
	events, err := l.Events(l.Context(), store.EventFilter{Kind: "task.granted", Newest: true, Limit: 1})
	if err != nil || len(events) != 1 {
		l.Fatalf("%+v, %v", events, err)
	}
	return events[0].ID
}
