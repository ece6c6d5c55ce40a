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
	"github.com/fleetslots/dispatcher/store"
)

// ci returns the caller of the tests.
func ci() dispatcher.Leaser { return dispatcher.Leaser{Name: "ci"} }

// callers creates pool "a" with five slots and leases of a minute, in which callers may hold at most bound
// slots.
func (b *bench) callers(bound int) {
	b.t.Helper()
	b.putPool(store.PoolSpec{Capacity: 5, Lease: minute, Callers: &bound})
}

// putPool sets pool "a".
func (b *bench) putPool(spec store.PoolSpec) {
	b.t.Helper()
	_, _, err := b.store.PutPool(b.ctx, "test", "a", spec)
	b.must(err)
}

func (b *bench) leases() dispatcher.Leases { return dispatcher.Leases{Dispatcher: b.Dispatcher} }

// tryLease requests a lease without a wait.
func (b *bench) tryLease(holder string) dispatcher.Lease {
	b.t.Helper()
	got, err := b.acquire(holder)
	if err != nil {
		b.t.Fatalf("lease of %s: %v", holder, err)
	}
	return got
}

// acquire requests a lease, and repeats the request while the dispatcher returns unavailable. The dispatcher
// does so on a busy machine if Redis granted the slot more than 3 s ago.
func (b *bench) acquire(holder string) (got dispatcher.Lease, err error) {
	for range retries {
		got, err = b.leases().Acquire(b.ctx, dispatcher.LeaseRequest{Leaser: ci(), Pool: "a", Holder: holder})
		if !errors.Is(err, devices.ErrUnavailable) {
			break
		}
	}
	return got, err
}

// leased requests a lease, expects that it is granted at once, and returns the grant.
func (b *bench) leased(holder string) store.Grant {
	b.t.Helper()
	got := b.tryLease(holder)
	if got.Grant == nil {
		b.t.Fatalf("lease of %s: %+v", holder, got.Why)
	}
	return *got.Grant
}

// asking is a request for a lease that waits in the queue.
type asking struct {
	b      *bench
	holder string
	parked chan struct{}
	leave  context.CancelFunc
	done   chan struct{}
	got    dispatcher.Lease
	err    error
}

// inLine requests a lease, and returns when the request waits.
func (b *bench) inLine(d *dispatcher.Dispatcher, holder string, wait time.Duration) *asking {
	b.t.Helper()
	return b.inLineFor(d, dispatcher.LeaseRequest{Holder: holder, Wait: wait})
}

// inLineFor is inLine for a request in pool "a" with further fields.
func (b *bench) inLineFor(d *dispatcher.Dispatcher, r dispatcher.LeaseRequest) *asking {
	b.t.Helper()
	ctx, leave := context.WithCancel(b.ctx)
	a := &asking{b: b, holder: r.Holder, parked: make(chan struct{}), leave: leave, done: make(chan struct{})}
	if r.Name == "" {
		r.Leaser = ci()
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

// holds returns the grant with which the wait ends.
func (a *asking) holds() store.Grant {
	a.b.t.Helper()
	select {
	case <-a.done:
	case <-time.After(patience):
		a.b.t.Fatalf("%s was not answered", a.holder)
	}
	if a.err != nil || a.got.Grant == nil {
		a.b.t.Fatalf("%s: %+v, %v", a.holder, a.got.Why, a.err)
	}
	return *a.got.Grant
}

func (a *asking) waits() {
	a.b.t.Helper()
	select {
	case <-a.done:
		a.b.t.Fatalf("%s was answered %+v, %v", a.holder, a.got, a.err)
	default:
	}
}

func (b *bench) endLease(holder string, g store.Grant) {
	b.t.Helper()
	if err := b.leases().End(b.ctx, ci(), "a", g.Task, g.Token); err != nil {
		b.t.Fatalf("the end of the lease of %s: %v", holder, err)
	}
}

func TestALeaseGoesFromGrantToEnd(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("a", 2, minute)
		first := b.tryLease("job")
		g := first.Grant
		if g == nil || g.Device != "@ci/job" || g.Pool != "a" || first.Usable > 50*time.Second || first.Usable < 45*time.Second {
			b.t.Fatalf("%+v, want a lease of a minute less the margin", first)
		}
		b.expectHeld(1)
		if again := b.leased("job"); again.Task != g.Task || again.Token != g.Token || again.Slot != g.Slot {
			b.t.Errorf("asked again: %+v, want %+v", again, g)
		}
		renewed, err := b.leases().Renew(b.ctx, ci(), "a", g.Task, g.Token, 10*minute)
		if err != nil || renewed.Usable < 9*minute {
			b.t.Errorf("renewed: %+v, %v", renewed, err)
		}
		if views, err := b.store.Registered(b.ctx, []string{"@ci/job"}); err != nil || views[0].Device != nil {
			b.t.Errorf("a device was registered: %+v, %v", views[0].Device, err)
		}
		if err := b.leases().End(b.ctx, ci(), "a", g.Task, 0); !errors.Is(err, dispatcher.ErrLeaseToken) {
			b.t.Errorf("ended without a token: %v", err)
		}
		b.endLease("job", *g)
		b.endLease("job", *g) // repeated, because the response may have been lost
		b.expectHeld(0)
		b.expectState(g.Task, store.Succeeded)
		b.expectLost(*g, "ended")
	})
}

// expectLost renews a lease and ends it, and checks that both calls return that the holder has lost it.
func (b *bench) expectLost(g store.Grant, why string) {
	b.t.Helper()
	var lost *dispatcher.LostError
	if _, err := b.leases().Renew(b.ctx, ci(), "a", g.Task, g.Token, 0); !errors.As(err, &lost) || lost.Why != why {
		b.t.Errorf("renewed: %v (%+v), want that it is %s", err, lost, why)
	}
	err := b.leases().End(b.ctx, ci(), "a", g.Task, g.Token)
	if why == "ended" {
		if err != nil {
			b.t.Errorf("ended again: %v", err)
		}
		return
	}
	if !errors.As(err, &lost) || lost.Why != why {
		b.t.Errorf("given back: %v, want that it is %s", err, why)
	}
}

// A lease that is not renewed is reaped, and its slot is granted to the next holder. The former holder cannot
// change the new lease.
func TestALeaseThatIsNotRenewedIsReaped(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("a", 1, minute)
		g := b.leased("old")
		w := b.inLine(b.Dispatcher, "new", long)
		b.lapse()
		b.reap()
		next := w.holds()
		if next.Slot != g.Slot || next.Token <= g.Token {
			b.t.Errorf("grant %+v after %+v", next, g)
		}
		b.expectState(g.Task, store.TimedOut)
		b.expectLost(g, "reaped")
		b.expectHeld(1)
		b.expectState(next.Task, store.Dispatched)
		if err := b.leases().End(b.ctx, ci(), "a", next.Task, g.Token); err == nil {
			b.t.Error("an older token ended the lease of another one")
		}
		b.expectHeld(1)
	})
}

// A request without a wait that is refused leaves no task, no waiter and no slot behind.
func TestATryLeavesNothing(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("a", 1, minute)
		g := b.leased("one")
		got := b.tryLease("two")
		if got.Grant != nil || got.Why.Code != decision.CodeFull || got.After <= 0 {
			b.t.Fatalf("%+v, want that the pool is full", got)
		}
		if _, _, _, err := b.store.Task(b.ctx, got.Task.ID); !errors.Is(err, store.ErrNotFound) {
			b.t.Errorf("its task is there: %v", err)
		}
		b.expectWaiting("a", 0)
		b.endLease("one", g)
		b.expectHeld(0)
	})
}

// Callers and devices together never hold more slots than the capacity, and callers never more than their
// maximum.
func TestCallersAndDevicesShareTheCap(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		const capacity, bound, each = 5, 3, 20
		b.callers(bound)
		names := make([]string, each)
		for i := range names {
			names[i] = fmt.Sprintf("d%d", i)
		}
		b.batch("a", nil, names...)
		var all sync.WaitGroup
		var callers, fleet atomic.Int64
		for i, name := range names {
			all.Go(func() {
				if got := b.report(name, `{"id":"x"}`); got.Task != nil {
					fleet.Add(1)
				}
			})
			all.Go(func() {
				got, err := b.acquire(fmt.Sprint(i))
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
			b.report(name, `{"id":"x"}`)
		}
		b.expectHeld(capacity)
		if got := b.tryLease("last"); got.Grant != nil {
			b.t.Error("a sixth holder")
		}
	})
}

// Concurrent requests of one holder get the same lease.
func TestRequestsOfAHolderAtOnceGetOneLease(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("a", 9, minute)
		var all sync.WaitGroup
		tokens := make([]int64, 9)
		for i := range tokens {
			all.Go(func() {
				ask := func() (dispatcher.Lease, error) {
					return b.leases().Acquire(b.ctx, dispatcher.LeaseRequest{Leaser: ci(), Pool: "a", Holder: "job", Wait: time.Duration(i%2) * long})
				}
				got, err := ask()
				for errors.Is(err, devices.ErrUnavailable) || err == nil && got.Why.Code == decision.CodeNextReport { // unknown to Redis
					got, err = ask()
				}
				if err != nil || got.Grant == nil {
					b.t.Errorf("%+v, %v", got.Why, err)
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

// If the slot for a request without a wait cannot be confirmed, the result is an error and not a refusal, and
// nothing is left behind.
func TestATryThatCannotBeConfirmed(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.pool("a", 1, minute)
	spies.down("Acquire")
	_, err := b.leases().Acquire(b.ctx, dispatcher.LeaseRequest{Leaser: ci(), Pool: "a", Holder: "job"})
	if !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("%v, want unavailable", err)
	}
	if tasks, err := b.store.Tasks(b.ctx, store.TaskFilter{Pool: "a"}); err != nil || len(tasks) != 0 {
		t.Errorf("%v, %v is left", tasks, err)
	}
}

// If the number of slots that callers hold cannot be read, no caller is granted a slot, but devices are.
func TestNoCallerIsGrantedASlotWithoutTheBound(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.callers(1)
	spies.down("CallersBefore")
	if _, err := b.leases().Acquire(b.ctx, dispatcher.LeaseRequest{Leaser: ci(), Pool: "a", Holder: "job"}); !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("%v, want unavailable", err)
	}
	b.batch("a", nil, "d1")
	b.granted("d1")
	b.expectHeld(1)
}

// If a request without a wait is refused, and another request of the holder gets a slot before the reason is
// read, the first request returns that lease.
func TestATryGetsWhatItsHolderGotMeanwhile(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.pool("a", 1, minute)
	g := b.leased("other")
	var got store.Grant
	spies.after("Task", func() {
		spies.ease()
		b.endLease("other", g)
		got = b.leased("job")
	})
	if lease := b.tryLease("job"); lease.Grant == nil || lease.Grant.Token != got.Token {
		t.Errorf("%+v, want %+v", lease, got)
	}
}

// If Redis loses all its data, no lease ends and no slot is granted twice.
func TestLeasesOutliveRedis(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("a", 2, minute)
		one, two := b.leased("one"), b.leased("two")
		if err := b.redis.FlushDB(b.ctx).Err(); err != nil {
			b.t.Fatal(err)
		}
		if got := b.tryLease("three"); got.Grant != nil {
			b.t.Errorf("a third lease: %+v", got.Grant)
		}
		if again := b.leased("one"); again.Token != one.Token {
			b.t.Errorf("another lease: %+v", again)
		}
		if _, err := b.leases().Renew(b.ctx, ci(), "a", two.Task, two.Token, 0); err != nil {
			b.t.Errorf("renewed: %v", err)
		}
		b.expectHeld(2)
		b.endLease("one", one)
		b.leased("three")
		b.expectHeld(2)
	})
}

// A holder loses a slot that is released by force. If a release is only requested, the next renewal returns
// that the holder should end the lease.
func TestLeasesAreReleasedByForce(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("a", 2, minute)
		g := b.leased("one")
		if _, err := b.ForceRelease(b.ctx, "a", g.Slot, store.Force{Actor: "ops", Reason: "test"}); err != nil {
			b.t.Fatal(err)
		}
		var lost *dispatcher.LostError
		if _, err := b.leases().Renew(b.ctx, ci(), "a", g.Task, g.Token, 0); !errors.As(err, &lost) || lost.Why != devices.CancelCancelled || !lost.Cancel {
			b.t.Errorf("renewed: %+v", lost)
		}
		if _, err := b.ForceRelease(b.ctx, "a", g.Slot, store.Force{Actor: "ops", Reason: "test", Now: true}); err != nil {
			b.t.Fatal(err)
		}
		b.expectLost(g, "released")
		b.expectHeld(0)
	})
}

// openForAnHour returns a daily window that opened a minute ago and stays open for almost one more hour.
func (b *bench) openForAnHour() []store.Window {
	b.t.Helper()
	now, err := b.store.Clock(b.ctx)
	b.must(err)
	from := now.Add(-time.Minute)
	return []store.Window{{Cron: fmt.Sprintf("%d %d * * *", from.Minute(), from.Hour()), Duration: "1h", Timezone: "UTC"}}
}

// A caller with a short lease of its own starts while a lease of the length of the pool no longer fits into
// the window.
func TestALeaseOfItsOwnLengthFitsTheWindow(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.putPool(store.PoolSpec{Capacity: 1, Lease: 2 * time.Hour, Windows: b.openForAnHour()})
		got, err := b.leases().Acquire(b.ctx, dispatcher.LeaseRequest{Leaser: ci(), Pool: "a", Holder: "short", Lease: minute})
		if err != nil || got.Grant == nil {
			b.t.Errorf("a lease of a minute in a window of an hour: %+v, %v", got.Why, err)
		}
	})
}
