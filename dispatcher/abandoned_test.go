package dispatcher_test

import (
	"context"
	"errors"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// TestAReportThatIsAbandonedLeavesNoSlotBehind checks a device that disconnects while its report is handled. The
// report is completed nevertheless, so it leaves no slot behind that only a reconciliation would free.
func TestAReportThatIsAbandonedLeavesNoSlotBehind(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1")
	b.reconcile()
	caller := devices.Caller{Device: "d1", Via: devices.ViaFleetToken}
	idle := devices.Report{ID: "r", Accept: true}

	ctx, leave := context.WithCancel(b.ctx)
	spies.runAfter("Acquire", leave)
	reply, err := b.HandleReport(ctx, caller, idle)
	if err != nil || reply.Task == nil {
		t.Fatalf("left after the acquire: %+v, %v; want the grant made all the same", reply, err)
	}
	b.expectHeld(1)
	g := *reply.Task

	ctx, leave = context.WithCancel(b.ctx)
	spies.runAfter("RecordResults", leave)
	done := devices.Report{Results: []devices.Result{{Task: g.ID, Token: g.Token, Status: devices.StatusSucceeded}}}
	if reply, err := b.HandleReport(ctx, caller, done); err != nil || len(reply.Acks) != 1 {
		t.Errorf("left after the commit: %+v, %v", reply, err)
	}
	b.expectHeld(0)
	b.expectState(g.ID, store.Succeeded)

	if _, err := b.HandleReport(ctx, caller, idle); !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("left before the start: %v, want nothing begun", err)
	}
}

// TestALostClaimIsGivenBackAfterTheDeviceLeft checks a claim that the ledger refuses after the device has
// disconnected: its slot is released.
func TestALostClaimIsGivenBackAfterTheDeviceLeft(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1")
	b.reconcile()
	spies.runAfter("Acquire", func() {
		if _, _, err := b.store.PutPool(b.ctx, "test", "a", store.PoolSpec{Capacity: 5, Lease: minute, Paused: true}); err != nil {
			t.Error(err)
		}
	})
	ctx, leave := context.WithCancel(b.ctx)
	spies.runAfter("Claim", leave)
	reply, err := b.HandleReport(ctx, devices.Caller{Device: "d1", Via: devices.ViaFleetToken}, devices.Report{Accept: true})
	if err != nil || reply.Reason != devices.ReasonPaused {
		t.Errorf("reply %+v, %v; want paused", reply, err)
	}
	b.expectHeld(0)
}

// TestAReaperThatIsStoppedFreesWhatItReaped checks a pass of Reap that is stopped after it has changed the ledger:
// it still frees the slots in the semaphore.
func TestAReaperThatIsStoppedFreesWhatItReaped(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1")
	b.expectGrant("d1")
	b.endAllLeases()
	ctx, stop := context.WithCancel(b.ctx)
	spies.runAfter("Reap", stop)
	if r, err := b.Upkeep.Reap(ctx); err != nil || r.Retried != 1 {
		t.Errorf("reaped %+v, %v", r, err)
	}
	b.expectHeld(0)
}

// TestAGrantThatCannotBeReapedKeepsNoOtherSlot checks a pass of Reap in which one of several ended grants cannot be
// reaped. The slots of the other grants are free immediately, and not only after a reconciliation.
func TestAGrantThatCannotBeReapedKeepsNoOtherSlot(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	spies.failAfter("Reap", errDown)
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1", "d2")
	b.expectGrant("d1")
	b.expectGrant("d2")
	b.endAllLeases()
	if r, err := b.Upkeep.Reap(b.ctx); !errors.Is(err, errDown) || r.Retried != 2 {
		t.Errorf("reaped %+v, %v; want two, and the error", r, err)
	}
	b.expectHeld(0)
}
