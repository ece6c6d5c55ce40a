package dispatcher_test

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// oneAnHourPerHolder is a policy that allows each holder one start an hour.
const oneAnHourPerHolder = `[{"name":"each","per":"device","algorithm":"sliding","windows":[{"max":1,"per_ms":3600000}]}]`

// createLimitedLeasePool creates pool "a" with these policies (limits). Its callers may hold at most maxCallerSlots
// slots. If maxCallerSlots is 0, only the capacity limits them.
func (b *testBench) createLimitedLeasePool(capacity, maxCallerSlots int, limits string) {
	b.t.Helper()
	spec := store.PoolSpec{Capacity: capacity, Lease: minute, Limits: json.RawMessage(limits)}
	if maxCallerSlots > 0 {
		spec.Callers = &maxCallerSlots
	}
	_, _, err := b.store.PutPool(b.ctx, "test", "a", spec)
	b.must(err)
}

// A holder gets a lease after a wait. The policy must count this start for the holder, and for no other holder.
func TestALeaseThatWasWaitedForIsCountedForItsHolder(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createLimitedLeasePool(1, 0, oneAnHourPerHolder)
		first := b.expectLease("first")
		w := b.startLeaseWait(b.Dispatcher, "second", long)
		b.endLease("first", first)
		b.endLease("second", w.awaitGrant())
		if got := b.tryAcquire("second"); got.Grant != nil || got.Cause.Code != decision.CodeLimited {
			b.t.Errorf("a second lease within the hour: %+v, %+v", got.Grant, got.Cause)
		}
		w = b.startLeaseWait(b.Dispatcher, "second", long)
		b.expectWhy(b.leaseTask("second"), []decision.Code{decision.CodeLimited}, "each", "@ci/second")
		w.expectWaiting()
		b.expectLease("third")
	}, withLongPeriod)
}

// A policy with the action drop refuses a lease. A request with a wait must wait. It must not be dropped. A request without a wait must be
// refused and leave no task behind.
func TestAPolicyThatDropsLetsALeaseWait(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createLimitedLeasePool(1, 0, string(withDrop(oneAnHourPerHolder)))
		b.endLease("one", b.expectLease("one"))
		got := b.tryAcquire("one")
		if got.Grant != nil || got.Cause.Code != decision.CodeLimited || strings.Contains(got.Cause.Remedy, "suppressed") {
			b.t.Errorf("a second lease within the hour: %+v, %+v", got.Grant, got.Cause)
		}
		if _, _, _, err := b.store.Task(b.ctx, got.Task.ID); !errors.Is(err, store.ErrNotFound) {
			b.t.Errorf("its task is there: %v", err)
		}
		b.startLeaseWait(b.Dispatcher, "one", long).expectWaiting()
	}, withLongPeriod)
}

// A policy keeps some callers waiting. They must not block a slot for the callers behind them.
func TestALimitedCallerLetsOthersGoFirst(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createLimitedLeasePool(5, 1, oneAnHourPerHolder)
		b.endLease("one", b.expectLease("one"))
		g := b.expectLease("two")
		waits := b.startLeaseWait(b.Dispatcher, "one", long)
		next := b.startLeaseWait(b.Dispatcher, "next", long)
		b.endLease("two", g)
		g = next.awaitGrant()
		waits.expectWaiting()
		b.endLease("next", g)
		b.endLease("last", b.expectLease("last"))
		waits.expectWaiting()
	}, withLongPeriod)
}

// A caller that blocks a slot gives up its wait. The next caller must get this slot.
func TestACallerThatGivesUpLetsTheNextOneLook(t *testing.T) {
	t.Parallel()
	b, s := newSpiedBench(t)
	b.createCallerPool(1)
	task, err := b.store.OpenLease(b.ctx, store.NewLease{Pool: "a", Holder: store.HolderDevice("ci", "away"), WaitFor: long + store.PositionTTL})
	b.must(err)
	behind := b.startLeaseWait(b.Dispatcher, "behind", long)
	called := make(chan struct{})
	s.runBefore("NextCallers", sync.OnceFunc(func() { close(called) }))
	b.must(b.leases().End(b.ctx, testCaller(), "a", task.Task, 0))
	select {
	case <-called:
	case <-time.After(patience):
		t.Error("nobody is called")
	}
	behind.awaitGrant()
}
