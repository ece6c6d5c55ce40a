package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/store"
)

// partialStore is a ledger that fails to record the result of one task.
type partialStore struct {
	dispatcher.Store
	failingTask int64 // id of the task whose result is not recorded
}

func (s *partialStore) RecordResults(ctx context.Context, results []store.Result, decideState store.DecideTaskState) []store.ResultOutcome {
	outcomes := make([]store.ResultOutcome, len(results))
	for i, r := range results {
		if r.Task == s.failingTask {
			outcomes[i].Err = errDown
			continue
		}
		outcomes[i] = s.Store.RecordResults(ctx, []store.Result{r}, decideState)[0]
	}
	return outcomes
}

// TestAResultThatFailsSpoilsNothing checks a report with several results of which one cannot be recorded. The rest
// of the report is not affected: the other results are acknowledged and running tasks are renewed. Nothing new is
// granted, and the reply is unavailable.
func TestAResultThatFailsSpoilsNothing(t *testing.T) {
	t.Parallel()
	ledger := &partialStore{}
	b := newLightBench(t, func(c *dispatcher.Config) { ledger.Store, c.Store = c.Store, ledger })
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1", "d2")
	b.createBatch("a", nil, "d2")
	done, runs := b.expectGrant("d1"), b.expectGrant("d2")
	ledger.failingTask = done.ID

	body := fmt.Sprintf(`{"id":"r","results":[{"task":%d,"token":%d,"status":"succeeded"},{"task":99,"token":7,"status":"failed"}],
		"running":[{"task":%d,"token":%d}]}`, done.ID, done.Token, runs.ID, runs.Token)
	reply := b.expectReason("d2", body, devices.ReasonUnavailable)
	if len(reply.Acks) != 1 || reply.Acks[0].Task == done.ID || len(reply.Renewed) != 1 {
		t.Errorf("reply %+v: want one acknowledged, one renewed", reply)
	}
	// The failed result is the only result of this report. The running task is still renewed.
	reply = b.expectReason("d2", fmt.Sprintf(`{"id":"r","results":[{"task":%d,"token":%d,"status":"succeeded"}],"running":[{"task":%d,"token":%d}]}`,
		done.ID, done.Token, runs.ID, runs.Token), devices.ReasonUnavailable)
	if len(reply.Acks) != 0 || len(reply.Renewed) != 1 {
		t.Errorf("reply %+v: want none acknowledged, one renewed", reply)
	}
	// This report contains only the failed result, so there is no reply.
	if _, err := b.tryReport("d2", resultReport(done, "succeeded", "")); !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("nothing recorded: %v", err)
	}
}

// TestEveryRunningEntryIsAnswered checks a report with several entries of running tasks: each entry gets an answer,
// also after an entry whose cancellation could not be recorded.
func TestEveryRunningEntryIsAnswered(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 5, minute)
	b.createBatch("a", func(in *store.Batch) { in.MaxRun = minute }, "d1")
	g := b.expectGrant("d1")
	b.endAllLeases()
	spies.failCalls("AskCancel")
	reply := b.expectReason("d1", fmt.Sprintf(`{"id":"r","running":[{"task":%d,"token":%d},{"task":%d,"token":1234567}]}`,
		g.ID, g.Token, g.ID), devices.ReasonUnavailable)
	if len(reply.Cancel) != 2 || reply.Cancel[0].Why != devices.CancelMaxRun || reply.Cancel[1].Why != devices.CancelStale {
		t.Errorf("reply %+v: want both told to stop", reply)
	}
}

// TestAGrantThatEndsBesideItsRedelivery checks a grant that ends while it is being redelivered, because another replica
// records its result. The same report must then get the next task. If the grant ends only after the redelivery was
// recorded, the end is noticed only if the redelivery took long.
func TestAGrantThatEndsBesideItsRedelivery(t *testing.T) {
	t.Parallel()
	for at, hook := range map[string]func(*storeSpies, string, func()){"before": (*storeSpies).runBefore, "after": (*storeSpies).runAfter} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			var passed atomic.Int64
			b, spies := newSpiedBench(t, func(c *dispatcher.Config) {
				c.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
			})
			b.createPool("a", 5, minute)
			b.createBatch("a", nil, "d1")
			b.createBatch("a", nil, "d1")
			first := b.expectGrant("d1")
			hook(spies, "Redeliver", func() {
				spies.removeHooks()
				b.sendResult("d1", first, "succeeded", "", devices.OutcomeRecorded)
				passed.Add(int64(2 * time.Second))
			})
			if second := b.expectGrant("d1"); second.ID == first.ID {
				t.Errorf("granted %+v, want the other task", second)
			}
			b.expectHeld(1)
		})
	}
}

// TestWhatRunsIsAskedBackInTimeToRenew checks the reply to a device with a running task: report_after_ms, which is
// a minimum, leaves enough time to renew the lease.
func TestWhatRunsIsAskedBackInTimeToRenew(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 5, 10*time.Second)
	b.createBatch("a", nil, "d1")
	g := b.expectGrant("d1")
	reply := b.expectReason("d1", runningReport(g), devices.ReasonBusy)
	if lease := reply.Renewed[0].LeaseMS; reply.ReportAfterMS > lease/2 {
		t.Errorf("report after %d ms with %d ms left to run", reply.ReportAfterMS, lease)
	}
}

// TestAnEmptyFleetTokenIsNone checks a dispatcher whose configured fleet token is empty: a client without a
// credential is not authenticated.
func TestAnEmptyFleetTokenIsNone(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, func(c *dispatcher.Config) { c.FleetTokens = []string{""} })
	if _, err := b.Authenticate(b.ctx, "d1", ""); !errors.Is(err, devices.ErrUnauthenticated) {
		t.Errorf("no credential: %v", err)
	}
}
