package dispatcher_test

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// setPoolWindows sets the windows of pool "a", both in the ledger and in the semaphore.
func (b *testBench) setPoolWindows(windows []store.Window) {
	b.t.Helper()
	b.changePool("", func(spec *store.PoolSpec) { spec.Windows = windows })
}

// callersAhead returns how many waiting callers are ahead of this holder.
func (b *testBench) callersAhead(holder string) int {
	b.t.Helper()
	found, err := b.store.CallerBoundOf(b.ctx, "a", b.leaseTask(holder))
	b.must(err)
	return found.Ahead
}

// tooLongRequest returns a request for a lease that is too long for the window of openWindows.
func tooLongRequest() dispatcher.LeaseRequest {
	return dispatcher.LeaseRequest{Holder: "too-long", Lease: 24 * time.Hour, Wait: long}
}

// The first caller in the queue asks for a lease that does not fit into the rest of the window of pool "a". It must block no slot: the
// caller behind it gets the slot.
func TestACallerThatDoesNotFitLetsOthersGoFirst(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createCallerPool(1)
		b.setPoolWindows(b.openWindows())
		waits := b.startLeaseRequest(b.Dispatcher, tooLongRequest())
		b.expectWhy(b.leaseTask("too-long"), []decision.Code{decision.CodePoolWindow}, "less than its lease")
		g := b.expectLease("fits")
		next := b.startLeaseWait(b.Dispatcher, "next", long)
		if ahead := b.callersAhead("next"); ahead != 0 {
			b.t.Errorf("%d callers count as ahead, want none", ahead)
		}
		b.endLease("fits", g)
		b.endLease("next", next.awaitGrant())
		waits.expectWaiting()
	})
}

// The first caller asks for a lease that does not fit into the window of the batch that contains the leases. It must block no slot: the
// caller behind it gets the slot.
func TestACallerThatDoesNotFitTheBatchLetsOthersGoFirst(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createCallerPool(1)
		first := b.expectLease("first")
		b.setWindows(b.readTask(first.Task).Batch, b.openWindows())
		b.endLease("first", first)
		b.startLeaseRequest(b.Dispatcher, tooLongRequest())
		b.expectLease("fits")
	})
}

// A caller let others go first because its own lease was blocked. When its lease is no longer blocked, the caller must count again as ahead
// of the callers that came after it.
func TestACallerThatStoodAsideStandsAgain(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createCallerPool(1)
		b.setPoolWindows(b.openWindows())
		first := b.startLeaseRequest(b.Dispatcher, tooLongRequest())
		g := b.expectLease("fits")
		second := b.startLeaseWait(b.Dispatcher, "second", long)
		b.setPoolWindows(nil)
		b.awaitCondition("the first caller stands before the second", func() bool { return b.callersAhead("second") == 1 })
		b.endLease("fits", g)
		first.awaitGrant()
		second.expectWaiting()
	})
}

// Pool "a" is blocked for all callers. This must not change the order of the callers.
func TestAShutPoolKeepsTheOrderOfCallers(t *testing.T) {
	t.Parallel()
	for name, shut := range map[string]func(*testBench){
		"paused": func(b *testBench) { b.changePool("for the test", func(spec *store.PoolSpec) { spec.Paused = true }) },
		"closed": func(b *testBench) { b.setPoolWindows(b.closedWindows()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runOnServers(t, func(b *testBench) {
				b.createCallerPool(1)
				shut(b)
				first := b.startLeaseWait(b.Dispatcher, "z-first", long)
				second := b.startLeaseWait(b.Dispatcher, "second", long)
				if ahead := b.callersAhead("second"); ahead != 1 {
					b.t.Errorf("%d callers count as ahead of the second, want 1", ahead)
				}
				b.changePool("", func(spec *store.PoolSpec) { spec.Paused, spec.Windows = false, nil })
				first.awaitGrant()
				second.expectWaiting()
			})
		})
	}
}
