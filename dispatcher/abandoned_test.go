package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// abandoningSemaphore and abandoningStore call leave once, right after a step:
// the device's connection breaks there.
type abandoningSemaphore struct {
	dispatcher.Semaphore
	afterAcquire func()
}

func (s *abandoningSemaphore) Acquire(ctx context.Context, pool string, pace slots.Pace, r []slots.Request) ([]slots.Acquisition, []slots.Offer, error) {
	got, offers, err := s.Semaphore.Acquire(ctx, pool, pace, r)
	s.afterAcquire()
	return got, offers, err
}

type abandoningStore struct {
	dispatcher.Store
	afterClaim, afterResults, afterReap func()
}

func (s *abandoningStore) Claim(ctx context.Context, claims []store.Claim) ([]store.ClaimOutcome, error) {
	outcomes, err := s.Store.Claim(ctx, claims)
	s.afterClaim()
	return outcomes, err
}

func (s *abandoningStore) RecordResults(ctx context.Context, r []store.Result, settle store.Settle) []store.ResultOutcome {
	outcomes := s.Store.RecordResults(ctx, r, settle)
	s.afterResults()
	return outcomes
}

func (s *abandoningStore) Reap(ctx context.Context, before time.Time, limit int, settle store.Settle) ([]store.Reaped, error) {
	reaped, err := s.Store.Reap(ctx, before, limit, settle)
	s.afterReap()
	return reaped, err
}

func abandoning(t *testing.T, changes ...func(*dispatcher.Config)) (*bench, *abandoningStore, *abandoningSemaphore) {
	t.Helper()
	nothing := func() {}
	ledger := &abandoningStore{afterClaim: nothing, afterResults: nothing, afterReap: nothing}
	semaphore := &abandoningSemaphore{afterAcquire: nothing}
	b := embedded(t, append(changes, func(c *dispatcher.Config) {
		ledger.Store, semaphore.Semaphore = c.Store, c.Semaphore
		c.Store, c.Semaphore = ledger, semaphore
	})...)
	return b, ledger, semaphore
}

// TestAReportThatIsAbandonedLeavesNoSlotBehind: the device goes away in the
// middle of its report. What was begun is finished, so that no slot is left to
// reconciliation.
func TestAReportThatIsAbandonedLeavesNoSlotBehind(t *testing.T) {
	t.Parallel()
	b, ledger, semaphore := abandoning(t)
	b.pool("a", 5, minute)
	b.batch("a", nil, "d1")
	b.reconcile()
	caller := dispatcher.Caller{Device: "d1", Via: dispatcher.ViaFleetToken}
	idle := devices.Report{ID: "r", Accept: true}

	ctx, leave := context.WithCancel(b.ctx)
	semaphore.afterAcquire = leave
	reply, err := b.HandleReport(ctx, caller, idle)
	if err != nil || reply.Task == nil {
		t.Fatalf("left after the acquire: %+v, %v; want the grant made all the same", reply, err)
	}
	b.expectHeld(1)
	g := *reply.Task

	ctx, leave = context.WithCancel(b.ctx)
	ledger.afterResults = leave
	done := devices.Report{Results: []devices.Result{{Task: g.ID, Token: g.Token, Status: devices.StatusSucceeded}}}
	if reply, err := b.HandleReport(ctx, caller, done); err != nil || len(reply.Acks) != 1 {
		t.Errorf("left after the commit: %+v, %v", reply, err)
	}
	b.expectHeld(0)
	b.expectState(g.ID, store.Succeeded)

	if _, err := b.HandleReport(ctx, caller, idle); !errors.Is(err, dispatcher.ErrUnavailable) {
		t.Errorf("left before the start: %v, want nothing begun", err)
	}
}

// TestALostClaimIsGivenBackAfterTheDeviceLeft: the slot of a claim that the
// ledger refused.
func TestALostClaimIsGivenBackAfterTheDeviceLeft(t *testing.T) {
	t.Parallel()
	b, ledger, semaphore := abandoning(t)
	b.pool("a", 5, minute)
	b.batch("a", nil, "d1")
	b.reconcile()
	semaphore.afterAcquire = func() {
		if _, _, err := b.store.PutPool(b.ctx, "test", "a", store.PoolSpec{Capacity: 5, Lease: minute, Paused: true}); err != nil {
			t.Error(err)
		}
	}
	ctx, leave := context.WithCancel(b.ctx)
	ledger.afterClaim = leave
	reply, err := b.HandleReport(ctx, dispatcher.Caller{Device: "d1", Via: dispatcher.ViaFleetToken}, devices.Report{Accept: true})
	if err != nil || reply.Reason != devices.ReasonPaused {
		t.Errorf("reply %+v, %v; want paused", reply, err)
	}
	b.expectHeld(0)
}

// TestAReaperThatIsStoppedFreesWhatItReaped: between the ledger and the
// semaphore.
func TestAReaperThatIsStoppedFreesWhatItReaped(t *testing.T) {
	t.Parallel()
	b, ledger, _ := abandoning(t)
	b.pool("a", 5, minute)
	b.batch("a", nil, "d1")
	b.granted("d1")
	b.lapse()
	ctx, stop := context.WithCancel(b.ctx)
	ledger.afterReap = stop
	if r, err := b.Reap(ctx); err != nil || r.Retried != 1 {
		t.Errorf("reaped %+v, %v", r, err)
	}
	b.expectHeld(0)
}

// poisonedStore cannot end one grant; its neighbours it ends.
type poisonedStore struct{ dispatcher.Store }

func (s poisonedStore) Reap(ctx context.Context, before time.Time, limit int, settle store.Settle) ([]store.Reaped, error) {
	reaped, err := s.Store.Reap(ctx, before, limit, settle)
	return reaped, errors.Join(err, errDown)
}

// TestAGrantThatCannotBeReapedKeepsNoOtherSlot: what was reaped beside it is in
// use again at once, and not when the reconciler finds it.
func TestAGrantThatCannotBeReapedKeepsNoOtherSlot(t *testing.T) {
	t.Parallel()
	b := embedded(t, func(c *dispatcher.Config) { c.Store = poisonedStore{c.Store} })
	b.pool("a", 5, minute)
	b.batch("a", nil, "d1", "d2")
	b.granted("d1")
	b.granted("d2")
	b.lapse()
	if r, err := b.Reap(b.ctx); !errors.Is(err, errDown) || r.Retried != 2 {
		t.Errorf("reaped %+v, %v; want two, and the error", r, err)
	}
	b.expectHeld(0)
}
