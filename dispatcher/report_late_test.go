package dispatcher_test

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/store"
)

func TestALostGrantIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 2, minute)
		b.createBatch("a", nil, "d1")
		b.createBatch("a", nil, "d1")
		first := b.expectGrant("d1")
		again := b.expectGrant("d1")
		if again.Token != first.Token || again.Redelivered != 1 || again.LeaseMS > first.LeaseMS {
			b.t.Errorf("again %+v after %+v: want the same grant, no more time", again, first)
		}
		b.expectHeld(1)
		// Device d1 holds a grant. A report that does not mention the grant frees nothing. A report that lists it
		// as running gets the reason busy. A report with accept:false gets the reason declined.
		b.expectReason("d1", runningReport(first), devices.ReasonBusy)
		b.expectReason("d1", `{"accept":false}`, devices.ReasonDeclined)
		b.expectHeld(1)
		// The reply to the result of the first task contains the next task.
		reply := b.sendResult("d1", first, "succeeded", "", devices.OutcomeRecorded)
		if reply.Task == nil || reply.Task.ID == first.ID || reply.Task.Token <= first.Token {
			b.t.Errorf("after the result: %+v, want the second task with a higher token", reply.Task)
		}
	})
}

func TestRedeliveryNeedsTime(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, func(c *dispatcher.Config) { c.LeaseMargin, c.LeaseMin = 0, 10*minute })
	b.createPool("a", 1, time.Hour)
	b.createBatch("a", nil, "d1")
	b.expectGrant("d1")
	b.ageGrants(40 * minute) // 20 minutes are left
	if again := b.expectGrant("d1"); again.Redelivered != 1 || again.LeaseMS > (20*minute).Milliseconds() {
		t.Errorf("again %+v, want the grant with what is left of it", again)
	}
	b.ageGrants(15 * minute) // 5 minutes are left, which is less than the minimum
	b.expectReason("d1", `{}`, devices.ReasonBusy)
	b.expectHeld(1)
}

func TestALateResultNeverTouchesANewerGrant(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 10, minute)
		b.createBatch("a", func(in *store.Batch) { in.RetryBackoff = time.Hour }, "waits")
		b.createBatch("a", func(in *store.Batch) { in.OnLost = "fail" }, "over")
		b.createBatch("a", func(in *store.Batch) { in.RetryBackoff = 0; in.Lease = 0 }, "again")

		waits, over, again := b.expectGrant("waits"), b.expectGrant("over"), b.expectGrant("again")
		b.endAllLeases()
		if r := b.reap(); r.Retried != 2 || r.Ended != 1 {
			b.t.Fatalf("reaped %+v, want 2 retried and 1 ended", r)
		}
		b.expectHeld(0)
		b.expectState(over.ID, store.TimedOut)
		b.expectState(waits.ID, store.Pending)

		// A success that comes late ends a task that is pending again or that timed out.
		b.sendResult("waits", waits, "succeeded", `,"output":1`, devices.OutcomeLate)
		b.expectState(waits.ID, store.Succeeded)
		b.sendResult("over", over, "succeeded", `,"output":2`, devices.OutcomeLate)
		b.expectState(over.ID, store.Succeeded)
		b.sendResult("over", over, "succeeded", `,"output":2`, devices.OutcomeLate)

		// A success that comes late never changes a task that has a newer grant.
		b.createPool("a", 10, minute)
		newer := b.expectGrant("again")
		if newer.Token <= again.Token || newer.Attempt != 2 {
			b.t.Fatalf("granted anew %+v after %+v", newer, again)
		}
		b.sendResult("again", again, "succeeded", `,"output":"old"`, devices.OutcomeLate)
		b.expectState(again.ID, store.Dispatched)
		stale := b.sendReport("again", runningReport(again))
		if len(stale.Cancel) != 1 || stale.Cancel[0].Why != devices.CancelStale {
			b.t.Errorf("running under the old token: %+v, want cancel stale", stale)
		}
		b.expectHeld(1)
		b.sendResult("again", newer, "succeeded", `,"output":"new"`, devices.OutcomeRecorded)
		if got := b.readTask(again.ID); string(got.Output) != `"new"` {
			b.t.Errorf("output %s, want the newer grant's", got.Output)
		}
	})
}

func TestLapsedIsStillRecordedBeforeTheReaperComes(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 10, minute)
	b.createBatch("a", nil, "d1")
	g := b.expectGrant("d1")
	b.endAllLeases()
	expired := b.sendReport("d1", runningReport(g))
	if len(expired.Cancel) != 1 || expired.Cancel[0].Why != devices.CancelExpired {
		t.Errorf("running beyond the lease: %+v, want cancel expired", expired)
	}
	b.sendResult("d1", g, "succeeded", "", devices.OutcomeRecorded)
	b.expectHeld(0)
}
