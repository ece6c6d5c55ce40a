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

// oneEach allows each holder one start an hour.
const oneEach = `[{"name":"each","per":"device","algorithm":"sliding","windows":[{"max":1,"per_ms":3600000}]}]`

// limitedLeases creates pool "a" with policies. Its callers hold at most bound slots; if bound is 0, only the
// capacity limits them.
func (b *bench) limitedLeases(capacity, bound int, limits string) {
	b.t.Helper()
	spec := store.PoolSpec{Capacity: capacity, Lease: minute, Limits: json.RawMessage(limits)}
	if bound > 0 {
		spec.Callers = &bound
	}
	_, _, err := b.store.PutPool(b.ctx, "test", "a", spec)
	b.must(err)
}

// A lease that was granted after a wait is counted for its holder, and for no other holder.
func TestALeaseThatWasWaitedForIsCountedForItsHolder(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.limitedLeases(1, 0, oneEach)
		first := b.leased("first")
		w := b.inLine(b.Dispatcher, "second", long)
		b.endLease("first", first)
		b.endLease("second", w.holds())
		if got := b.tryLease("second"); got.Grant != nil || got.Why.Code != decision.CodeLimited {
			b.t.Errorf("a second lease within the hour: %+v, %+v", got.Grant, got.Why)
		}
		w = b.inLine(b.Dispatcher, "second", long)
		b.expectWhy(b.leaseTask("second"), []decision.Code{decision.CodeLimited}, "each", "@ci/second")
		w.waits()
		b.leased("third")
	}, unhurried)
}

// If a policy with the action drop refuses a lease, the request waits and is not dropped. A request without a
// wait leaves no task behind.
func TestAPolicyThatDropsLetsALeaseWait(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.limitedLeases(1, 0, string(dropping(oneEach)))
		b.endLease("one", b.leased("one"))
		got := b.tryLease("one")
		if got.Grant != nil || got.Why.Code != decision.CodeLimited || strings.Contains(got.Why.Remedy, "suppressed") {
			b.t.Errorf("a second lease within the hour: %+v, %+v", got.Grant, got.Why)
		}
		if _, _, _, err := b.store.Task(b.ctx, got.Task.ID); !errors.Is(err, store.ErrNotFound) {
			b.t.Errorf("its task is there: %v", err)
		}
		b.inLine(b.Dispatcher, "one", long).waits()
	}, unhurried)
}

// Callers that wait because of a policy do not block a slot for the callers behind them.
func TestALimitedCallerLetsOthersGoFirst(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.limitedLeases(5, 1, oneEach)
		b.endLease("one", b.leased("one"))
		g := b.leased("two")
		waits := b.inLine(b.Dispatcher, "one", long)
		next := b.inLine(b.Dispatcher, "next", long)
		b.endLease("two", g)
		g = next.holds()
		waits.waits()
		b.endLease("next", g)
		b.endLease("last", b.leased("last"))
		waits.waits()
	}, unhurried)
}

// If a caller gives up its wait, the next caller gets the slot that it blocked.
func TestACallerThatGivesUpLetsTheNextOneLook(t *testing.T) {
	t.Parallel()
	b, s := spied(t)
	b.callers(1)
	task, err := b.store.OpenLease(b.ctx, store.NewLease{Pool: "a", Holder: store.Holder("ci", "away"), Stay: long + store.Stay})
	b.must(err)
	behind := b.inLine(b.Dispatcher, "behind", long)
	called := make(chan struct{})
	s.before("NextCallers", sync.OnceFunc(func() { close(called) }))
	b.must(b.leases().End(b.ctx, ci(), "a", task.Task, 0))
	select {
	case <-called:
	case <-time.After(patience):
		t.Error("nobody is called")
	}
	behind.holds()
}
