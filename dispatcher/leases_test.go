package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/store"
)

// testCaller returns the caller that the tests use: a program that leases slots.
func testCaller() dispatcher.Leaser { return dispatcher.Leaser{Name: "ci"} }

// createCallerPool creates pool "a" with five slots and leases of a minute, in which callers may hold at most
// maxCallerSlots slots.
func (b *testBench) createCallerPool(maxCallerSlots int) {
	b.t.Helper()
	b.putPoolA(store.PoolSpec{Capacity: 5, Lease: minute, Callers: &maxCallerSlots})
}

// putPoolA creates pool "a" or changes its settings.
func (b *testBench) putPoolA(spec store.PoolSpec) {
	b.t.Helper()
	_, _, err := b.store.PutPool(b.ctx, "test", "a", spec)
	b.must(err)
}

func (b *testBench) leases() dispatcher.Leases { return dispatcher.Leases{Dispatcher: b.Dispatcher} }

// tryAcquire requests a lease for the holder and does not wait if no slot is free.
func (b *testBench) tryAcquire(holder string) dispatcher.Lease {
	b.t.Helper()
	got, err := b.acquireWithRetries(holder)
	if err != nil {
		b.t.Fatalf("lease of %s: %v", holder, err)
	}
	return got
}

// acquireWithRetries requests a lease, and repeats the request while the dispatcher returns unavailable. On a busy machine, the dispatcher
// returns this if it claims the slot more than 3 s after Redis assigned it.
func (b *testBench) acquireWithRetries(holder string) (got dispatcher.Lease, err error) {
	for range maxRetries {
		got, err = b.leases().Acquire(b.ctx, dispatcher.LeaseRequest{Leaser: testCaller(), Pool: "a", Holder: holder})
		if !errors.Is(err, devices.ErrUnavailable) {
			break
		}
	}
	return got, err
}

// expectLease requests a lease for the holder. It must be granted at once. expectLease returns the grant.
func (b *testBench) expectLease(holder string) store.Grant {
	b.t.Helper()
	got := b.tryAcquire(holder)
	if got.Grant == nil {
		b.t.Fatalf("lease of %s: %+v", holder, got.Cause)
	}
	return *got.Grant
}

// leaseRequest is a caller's request for a lease that waits in the queue.
type leaseRequest struct {
	b          *testBench
	holder     string
	parked     chan struct{}
	disconnect context.CancelFunc
	done       chan struct{}
	got        dispatcher.Lease
	err        error
}

// startLeaseWait requests a lease for the holder. It returns as soon as the request waits in the queue.
func (b *testBench) startLeaseWait(d *dispatcher.Dispatcher, holder string, wait time.Duration) *leaseRequest {
	b.t.Helper()
	return b.startLeaseRequest(d, dispatcher.LeaseRequest{Holder: holder, Wait: wait})
}

// startLeaseRequest requests a lease in pool "a" with the fields of r. Like startLeaseWait, it returns as soon as
// the request waits.
func (b *testBench) startLeaseRequest(d *dispatcher.Dispatcher, r dispatcher.LeaseRequest) *leaseRequest {
	b.t.Helper()
	ctx, leave := context.WithCancel(b.ctx)
	a := &leaseRequest{b: b, holder: r.Holder, parked: make(chan struct{}), disconnect: leave, done: make(chan struct{})}
	if r.Name == "" {
		r.Leaser = testCaller()
	}
	r.Pool, r.OnPark = "a", sync.OnceFunc(func() { close(a.parked) })
	go func() {
		defer close(a.done)
		a.got, a.err = dispatcher.Leases{Dispatcher: d}.Acquire(ctx, r)
	}()
	select {
	case <-a.parked:
	case <-a.done:
		b.t.Fatalf("%s was answered %+v, %v", a.holder, a.got, a.err)
	}
	b.t.Cleanup(func() { leave(); <-a.done })
	return a
}

// awaitGrant waits until the request gets its lease and returns the grant.
func (a *leaseRequest) awaitGrant() store.Grant {
	a.b.t.Helper()
	await.Receive(a.b.t, a.done, fmt.Sprintf("%s was not answered", a.holder))
	if a.err != nil || a.got.Grant == nil {
		a.b.t.Fatalf("%s: %+v, %v", a.holder, a.got.Cause, a.err)
	}
	return *a.got.Grant
}

func (a *leaseRequest) expectWaiting() {
	a.b.t.Helper()
	select {
	case <-a.done:
		a.b.t.Fatalf("%s was answered %+v, %v", a.holder, a.got, a.err)
	default:
	}
}

func (b *testBench) endLease(holder string, g store.Grant) {
	b.t.Helper()
	if err := b.leases().End(b.ctx, testCaller(), "a", g.Task, g.Token); err != nil {
		b.t.Fatalf("the end of the lease of %s: %v", holder, err)
	}
}

func TestALeaseGoesFromGrantToEnd(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 2, minute)
		first := b.tryAcquire("job")
		g := first.Grant
		if g == nil || g.Device != "@ci/job" || g.Pool != "a" || first.Usable > 50*time.Second || first.Usable < 20*time.Second {
			b.t.Fatalf("%+v, want a lease of a minute less the margin", first)
		}
		b.expectHeld(1)
		if again := b.expectLease("job"); again.Task != g.Task || again.Token != g.Token || again.Slot != g.Slot {
			b.t.Errorf("asked again: %+v, want %+v", again, g)
		}
		renewed, err := b.leases().Renew(b.ctx, testCaller(), "a", g.Task, g.Token, 10*minute)
		if err != nil || renewed.Usable < 9*minute {
			b.t.Errorf("renewed: %+v, %v", renewed, err)
		}
		if views, err := b.store.DeviceRegistrations(b.ctx, []string{"@ci/job"}); err != nil || views[0].Device != nil {
			b.t.Errorf("a device was registered: %+v, %v", views[0].Device, err)
		}
		if err := b.leases().End(b.ctx, testCaller(), "a", g.Task, 0); !errors.Is(err, dispatcher.ErrLeaseToken) {
			b.t.Errorf("ended without a token: %v", err)
		}
		b.endLease("job", *g)
		b.endLease("job", *g) // repeated, because the response may have been lost
		b.expectHeld(0)
		b.expectState(g.Task, store.Succeeded)
		b.expectLost(*g, "ended")
	})
}

// expectLost renews a lease and then ends it. Both calls must return that the holder has lost the lease, with this
// reason.
func (b *testBench) expectLost(g store.Grant, reason string) {
	b.t.Helper()
	var lost *dispatcher.LostError
	if _, err := b.leases().Renew(b.ctx, testCaller(), "a", g.Task, g.Token, 0); !errors.As(err, &lost) || lost.Why != reason {
		b.t.Errorf("renewed: %v (%+v), want that it is %s", err, lost, reason)
	}
	err := b.leases().End(b.ctx, testCaller(), "a", g.Task, g.Token)
	if reason == "ended" {
		if err != nil {
			b.t.Errorf("ended again: %v", err)
		}
		return
	}
	if !errors.As(err, &lost) || lost.Why != reason {
		b.t.Errorf("given back: %v, want that it is %s", err, reason)
	}
}

// A holder does not renew its lease. The lease must be reaped, and its slot must be granted to the next holder. The former holder must not
// be able to change the new lease.
func TestALeaseThatIsNotRenewedIsReaped(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		g := b.expectLease("old")
		w := b.startLeaseWait(b.Dispatcher, "new", long)
		b.endAllLeases()
		b.reap()
		next := w.awaitGrant()
		if next.Slot != g.Slot || next.Token <= g.Token {
			b.t.Errorf("grant %+v after %+v", next, g)
		}
		b.expectState(g.Task, store.TimedOut)
		b.expectLost(g, "reaped")
		b.expectHeld(1)
		b.expectState(next.Task, store.Dispatched)
		if err := b.leases().End(b.ctx, testCaller(), "a", next.Task, g.Token); err == nil {
			b.t.Error("an older token ended the lease of another one")
		}
		b.expectHeld(1)
	})
}

// A request without a wait is refused. It must leave no task, no waiter and no held slot behind.
func TestATryLeavesNothing(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		g := b.expectLease("one")
		got := b.tryAcquire("two")
		if got.Grant != nil || got.Cause.Code != decision.CodeFull || got.RetryAfter <= 0 {
			b.t.Fatalf("%+v, want that the pool is full", got)
		}
		if _, _, _, err := b.store.Task(b.ctx, got.Task.ID); !errors.Is(err, store.ErrNotFound) {
			b.t.Errorf("its task is there: %v", err)
		}
		b.awaitQueueLength("a", 0)
		b.endLease("one", g)
		b.expectHeld(0)
	})
}

// Callers and devices share a pool. Together they must never hold more slots than the capacity, and the callers must never hold more than
// their maximum.
func TestCallersAndDevicesShareTheCap(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		const capacity, bound, each = 5, 3, 20
		b.createCallerPool(bound)
		names := make([]string, each)
		for i := range names {
			names[i] = fmt.Sprintf("d%d", i)
		}
		b.createBatch("a", nil, names...)
		var all sync.WaitGroup
		var callers, fleet atomic.Int64
		for i, name := range names {
			all.Go(func() {
				if got := b.sendReport(name, `{"id":"x"}`); got.Task != nil {
					fleet.Add(1)
				}
			})
			all.Go(func() {
				got, err := b.acquireWithRetries(fmt.Sprint(i))
				if err != nil {
					b.t.Error(err)
				}
				if got.Grant != nil {
					callers.Add(1)
				}
			})
		}
		all.Wait()
		if callers.Load() > bound || callers.Load()+fleet.Load() > capacity {
			b.t.Errorf("%d callers and %d devices", callers.Load(), fleet.Load())
		}
		for _, name := range names { // the remaining slots go to devices
			b.sendReport(name, `{"id":"x"}`)
		}
		b.expectHeld(capacity)
		if got := b.tryAcquire("last"); got.Grant != nil {
			b.t.Error("a sixth holder")
		}
	})
}

// A holder sends several requests for a lease at the same time. All of them must get the same lease.
func TestRequestsOfAHolderAtOnceGetOneLease(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 9, minute)
		var all sync.WaitGroup
		tokens := make([]int64, 9)
		for i := range tokens {
			all.Go(func() {
				ask := func() (dispatcher.Lease, error) {
					return b.leases().Acquire(b.ctx, dispatcher.LeaseRequest{Leaser: testCaller(), Pool: "a", Holder: "job", Wait: time.Duration(i%2) * long})
				}
				got, err := ask()
				for errors.Is(err, devices.ErrUnavailable) || err == nil && got.Cause.Code == decision.CodeNextReport { // unknown to Redis
					got, err = ask()
				}
				if err != nil || got.Grant == nil {
					b.t.Errorf("%+v, %v", got.Cause, err)
					return
				}
				tokens[i] = got.Grant.Token
			})
		}
		all.Wait()
		for _, token := range tokens {
			if token != tokens[0] {
				b.t.Fatalf("tokens %v", tokens)
			}
		}
		b.expectHeld(1)
	})
}

// A request without a wait gets a slot in Redis that the ledger cannot confirm. The result must be an error and not a refusal, and nothing
// may be left behind.
func TestATryThatCannotBeConfirmed(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 1, minute)
	spies.failCalls("Acquire")
	_, err := b.leases().Acquire(b.ctx, dispatcher.LeaseRequest{Leaser: testCaller(), Pool: "a", Holder: "job"})
	if !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("%v, want unavailable", err)
	}
	if tasks, err := b.store.Tasks(b.ctx, store.TaskFilter{Pool: "a"}); err != nil || len(tasks) != 0 {
		t.Errorf("%v, %v is left", tasks, err)
	}
}

// The number of slots that callers hold cannot be read. Then no caller may be granted a slot, but devices must still get slots.
func TestNoCallerIsGrantedASlotWithoutTheBound(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createCallerPool(1)
	spies.failCalls("CallerBoundOf")
	if _, err := b.leases().Acquire(b.ctx, dispatcher.LeaseRequest{Leaser: testCaller(), Pool: "a", Holder: "job"}); !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("%v, want unavailable", err)
	}
	b.createBatch("a", nil, "d1")
	b.expectGrant("d1")
	b.expectHeld(1)
}

// A request without a wait is refused. Before the reason is read, another request of the same holder gets a slot. The first request must
// then return the lease of the other request.
func TestATryGetsWhatItsHolderGotMeanwhile(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 1, minute)
	g := b.expectLease("other")
	var got store.Grant
	spies.runAfter("Task", func() {
		spies.removeHooks()
		b.endLease("other", g)
		got = b.expectLease("job")
	})
	if lease := b.tryAcquire("job"); lease.Grant == nil || lease.Grant.Token != got.Token {
		t.Errorf("%+v, want %+v", lease, got)
	}
}

// Redis loses all its data while leases are held. No lease may end, and no slot may be granted twice.
func TestLeasesOutliveRedis(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 2, minute)
		one, two := b.expectLease("one"), b.expectLease("two")
		b.must(b.redis.FlushDB(b.ctx).Err())
		if got := b.tryAcquire("three"); got.Grant != nil {
			b.t.Errorf("a third lease: %+v", got.Grant)
		}
		if again := b.expectLease("one"); again.Token != one.Token {
			b.t.Errorf("another lease: %+v", again)
		}
		if _, err := b.leases().Renew(b.ctx, testCaller(), "a", two.Task, two.Token, 0); err != nil {
			b.t.Errorf("renewed: %v", err)
		}
		b.expectHeld(2)
		b.endLease("one", one)
		b.expectLease("three")
		b.expectHeld(2)
	})
}

// An operator releases the slot of a holder by force: the holder must lose the lease. If the operator only asks for the release, the next
// renewal must tell the holder to end the lease.
func TestLeasesAreReleasedByForce(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 2, minute)
		g := b.expectLease("one")
		_, err := b.ForceRelease(b.ctx, "a", g.Slot, store.ForcedRelease{Actor: "ops", Reason: "test"})
		b.must(err)
		var lost *dispatcher.LostError
		if _, err := b.leases().Renew(b.ctx, testCaller(), "a", g.Task, g.Token, 0); !errors.As(err, &lost) || lost.Why != devices.CancelCancelled || !lost.Cancel {
			b.t.Errorf("renewed: %+v", lost)
		}
		_, err = b.ForceRelease(b.ctx, "a", g.Slot, store.ForcedRelease{Actor: "ops", Reason: "test", AtOnce: true})
		b.must(err)
		b.expectLost(g, "released")
		b.expectHeld(0)
	})
}

// openWindows returns a daily window that opened a minute ago and closes in almost one hour.
func (b *testBench) openWindows() []store.Window {
	b.t.Helper()
	now, err := b.store.Clock(b.ctx)
	b.must(err)
	from := now.Add(-time.Minute)
	return []store.Window{{Cron: fmt.Sprintf("%d %d * * *", from.Minute(), from.Hour()), Duration: "1h", Timezone: "UTC"}}
}

// Only part of the window of pool "a" is left, too little for a lease of the usual length. A caller that asks for a shorter lease must get
// it.
func TestALeaseOfItsOwnLengthFitsTheWindow(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.putPoolA(store.PoolSpec{Capacity: 1, Lease: 2 * time.Hour, Windows: b.openWindows()})
		got, err := b.leases().Acquire(b.ctx, dispatcher.LeaseRequest{Leaser: testCaller(), Pool: "a", Holder: "short", Lease: minute})
		if err != nil || got.Grant == nil {
			b.t.Errorf("a lease of a minute in a window of an hour: %+v, %v", got.Cause, err)
		}
	})
}
