package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// expectKeepsPosition checks how long a holder keeps its position in the queue: at most store.PositionTTL after the
// time at which it is to ask again. Until then it counts as ahead of others.
func (b *testBench) expectKeepsPosition(holder string, askAgainIn time.Duration) {
	b.t.Helper()
	task := b.readTask(b.leaseTask(holder))
	now, err := b.store.Clock(b.ctx)
	b.must(err)
	if left := task.NotAfter.Sub(now); left <= 0 || left > store.PositionTTL+askAgainIn {
		b.t.Errorf("%s keeps its position for another %s, want at most %s", holder, left, store.PositionTTL+askAgainIn)
	}
}

// A waiting caller let another caller go first, got its position back, and then disconnects. From then on it must block no other caller.
func TestACallerThatLeavesAfterItStoodAsideBlocksNobody(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createCallerPool(1)
		b.setPoolWindows(b.openWindows())
		first := b.startLeaseRequest(b.Dispatcher, tooLongRequest())
		g := b.expectLease("fits")
		b.startLeaseWait(b.Dispatcher, "second", long)
		b.setPoolWindows(nil)
		b.awaitCondition("the first caller stands before the second", func() bool { return b.callersAhead("second") == 1 })
		first.disconnect()
		<-first.done
		b.expectKeepsPosition("too-long", 0)
		b.endLease("fits", g)
	})
}

// A caller gets its response before its wait is over and does not ask again. It must block no other caller.
func TestACallerThatIsAnsweredEarlyBlocksNobody(t *testing.T) {
	t.Parallel()
	t.Run("its replica stops", func(t *testing.T) {
		t.Parallel()
		b := newLightBench(t)
		b.createCallerPool(1)
		b.expectLease("held")
		waits := b.startLeaseWait(b.Dispatcher, "waits", long)
		b.Waiters.ParkedReports.Stop()
		<-waits.done
		b.expectKeepsPosition("waits", waits.got.RetryAfter)
	})
	t.Run("its slot cannot be confirmed", func(t *testing.T) {
		t.Parallel()
		b, spies := newSpiedBench(t)
		b.createCallerPool(1)
		spies.failCalls("Acquire")
		got, err := b.leases().Acquire(b.ctx, dispatcher.LeaseRequest{Leaser: testCaller(), Pool: "a", Holder: "waits", Wait: long, OnPark: func() {}})
		if err != nil || got.Grant != nil {
			t.Fatalf("%+v, %v", got, err)
		}
		b.expectKeepsPosition("waits", got.RetryAfter)
	})
	t.Run("its token is revoked", func(t *testing.T) {
		t.Parallel()
		b := newLightBench(t)
		b.createCallerPool(1)
		b.expectLease("held")
		revoked := testCaller()
		revoked.Token = [32]byte{1} // the hash belongs to no token
		waits := b.startLeaseRequest(b.Dispatcher, dispatcher.LeaseRequest{Leaser: revoked, Holder: "waits", Wait: long})
		notifyOffer(b.Dispatcher, store.HolderDevice("ci", "waits"))
		<-waits.done
		b.expectKeepsPosition("waits", waits.got.RetryAfter)
	})
}

// A holder has sent two requests for a lease, and the connection of the first one breaks. This must not shorten the wait of the second
// request.
func TestALaterRequestKeepsItsPosition(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createCallerPool(1)
	b.expectLease("held")
	first := b.startLeaseWait(b.Dispatcher, "waits", 2*long)
	b.startLeaseWait(b.Dispatcher, "waits", long)
	<-first.done // the later request of the same holder ended the first one
	if e := b.tryAcquire("behind"); e.Cause.Code != decision.CodeCallersFull || e.Cause.Position != 2 {
		t.Errorf("%+v, want that one waits before it", e.Cause)
	}
	if left := b.readTask(b.leaseTask("waits")).NotAfter; time.Until(*left) < long {
		t.Errorf("it keeps its position until %s", left)
	}
}

// A holder waits for a lease and then sends a request without a wait. The earlier wait must end, and after that the holder must block no
// other caller.
func TestATryInsteadOfAWaitBlocksNobody(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createCallerPool(1)
	b.expectLease("held")
	first := b.startLeaseWait(b.Dispatcher, "waits", long)
	b.tryAcquire("waits")
	<-first.done
	b.expectKeepsPosition("waits", 0)
}

// acquireUnnamed requests a lease without naming a holder. Such a request cannot be repeated to get the same lease.
func (b *testBench) acquireUnnamed(ctx context.Context, wait time.Duration) (dispatcher.Lease, error) {
	return b.leases().Acquire(ctx, dispatcher.LeaseRequest{Leaser: testCaller(), Pool: "a", Wait: wait, OnPark: func() {}})
}

// The connection of a caller breaks during the commit of its grant, or before the response. If the caller named no holder, its slot must be
// freed. If it named a holder, it must get its lease when it asks again.
func TestNoSlotIsHeldForACallerThatCannotAskAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		wait  time.Duration
		after string
	}{"tried once": {0, "Claim"}, "in line": {long, "Claim"}, "all was read": {0, "Task"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, spies := newSpiedBench(t)
			b.createPool("a", 2, minute)
			ctx, breakOff := context.WithCancel(b.ctx)
			spies.runAfter(test.after, breakOff)
			_, _ = b.acquireUnnamed(ctx, test.wait)
			b.expectHeld(0)

			ctx, breakOff = context.WithCancel(b.ctx)
			spies.runAfter(test.after, breakOff)
			_, err := b.leases().Acquire(ctx, dispatcher.LeaseRequest{Leaser: testCaller(), Pool: "a", Holder: "job", Wait: test.wait, OnPark: func() {}})
			if ctx.Err() == nil {
				t.Fatalf("not claimed: %v", err)
			}
			spies.removeHooks()
			b.expectHeld(1)
			if got := b.tryAcquire("job"); got.Grant == nil || got.Grant.Redelivered == 0 {
				t.Errorf("asked again: %+v", got)
			}
		})
	}
}

// A caller that named no holder gets an error. It cannot ask for its lease again, so its slot must be freed.
func TestNoSlotIsHeldForACallerThatGotAnError(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 1, minute)
	spies.runAfter("Claim", func() {
		spies.setHook("before Task", func() error { spies.removeHooks(); return errDown })
	})
	if _, err := b.acquireUnnamed(b.ctx, 0); !errors.Is(err, devices.ErrUnavailable) {
		t.Fatalf("%v, want unavailable", err)
	}
	b.expectHeld(0)
}

// A waiting caller that named no holder disconnects. It must leave the queue at once.
func TestACallerWithoutANameLeavesTheLine(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createCallerPool(1)
	b.expectLease("held")
	waits := b.startLeaseRequest(b.Dispatcher, dispatcher.LeaseRequest{Wait: long})
	waits.disconnect()
	<-waits.done
	if e := b.tryAcquire("behind"); e.Cause.Code != decision.CodeCallersFull || e.Cause.Position != 1 {
		t.Errorf("%+v, want that nobody waits before it", e.Cause)
	}
}
