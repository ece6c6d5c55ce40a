package dispatcher_test

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// Several callers wait because callers hold their maximum number of slots. As soon as slots are free, the callers must get them in the
// order of their arrival. A caller that repeats its request must keep its position.
func TestCallersWaitInTheirOrder(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createCallerPool(1)
		g := b.expectLease("first")
		second := b.startLeaseWait(b.Dispatcher, "z-second", long)
		third := b.startLeaseWait(b.Dispatcher, "third", long)
		if got := b.tryAcquire("fourth"); got.Cause.Code != decision.CodeCallersFull || got.Cause.Position != 3 {
			b.t.Errorf("%+v, want position 3", got.Cause)
		}
		second.disconnect()
		<-second.done
		second = b.startLeaseWait(b.Dispatcher, "z-second", long)
		if e := b.explainTask(b.leaseTask("z-second")); e.Causes[0].Code != decision.CodeCallersFull || e.Causes[0].Position != 1 {
			b.t.Errorf("%+v, want position 1", e.Causes)
		}
		third.expectWaiting()
		b.endLease("first", g)
		g = second.awaitGrant()
		third.expectWaiting()
		b.endLease("z-second", g)
		third.awaitGrant()
	})
}

// leaseTask returns the id of the task that stands for the open lease of the holder.
func (b *testBench) leaseTask(holder string) int64 {
	b.t.Helper()
	views, err := b.store.DeviceViews(b.ctx, []string{store.HolderDevice("ci", holder)})
	if err != nil || len(views[0].Candidates) != 1 {
		b.t.Fatalf("%s waits with %+v, %v", holder, views, err)
	}
	return views[0].Candidates[0].Task
}

// A caller frees a slot at one replica. A caller that waits at another replica must get this slot.
func TestTheNextCallerMayWaitElsewhere(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		other := b.addParkingReplica()
		b.createCallerPool(1)
		g := b.expectLease("first")
		w := b.startLeaseWait(other, "second", long)
		b.endLease("first", g)
		w.awaitGrant()
	})
}

// A holder gives up its wait for a lease. It must leave no entry in the queue, and its waiting request must get a response. Another caller
// must not be able to end this wait.
func TestWaitingIsGivenUp(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		g := b.expectLease("one")
		w := b.startLeaseWait(b.Dispatcher, "two", long)
		task := b.leaseTask("two")
		for _, name := range []string{"other", "c"} { // the name of the holder's caller, "ci", begins with "c"
			if err := b.leases().End(b.ctx, dispatcher.Leaser{Name: name}, "a", task, 0); !errors.Is(err, store.ErrNotFound) {
				b.t.Errorf("another caller, %s, ended it: %v", name, err)
			}
		}
		for range 2 {
			b.must(b.leases().End(b.ctx, testCaller(), "a", task, 0))
		}
		<-w.done
		if lost := (*dispatcher.LostError)(nil); !errors.As(w.err, &lost) {
			b.t.Errorf("answered %+v, %v", w.got, w.err)
		}
		b.expectState(task, store.Cancelled)
		b.endLease("one", g)
		b.expectHeld(0)
		b.expectLease("two")
	})
}

// A holder gives up its wait at the moment at which its lease is granted. The holder must then hold the lease, and only its token may end
// it.
func TestALeaseGrantedMeanwhileIsNotGivenUp(t *testing.T) {
	t.Parallel()
	b, s := newSpiedBench(t)
	b.createPool("a", 1, minute)
	first := b.expectLease("first")
	w := b.startLeaseWait(b.Dispatcher, "second", long)
	var g store.Grant
	s.runBefore("GiveUpLease", func() {
		b.endLease("first", first)
		g = w.awaitGrant()
	})
	if err := b.leases().End(b.ctx, testCaller(), "a", b.leaseTask("second"), 0); !errors.Is(err, dispatcher.ErrLeaseToken) {
		t.Errorf("given up: %v", err)
	}
	if _, err := b.leases().Renew(b.ctx, testCaller(), "a", g.Task, g.Token, 0); err != nil {
		t.Errorf("renewed: %v", err)
	}
	b.endLease("second", g)
	b.expectHeld(0)
}

// A waiting caller does not ask again. It must expire, and after that it must block no other caller. The metric must count the requests of
// callers, and no caller may be recorded as a device.
func TestACallerThatDoesNotComeBackExpires(t *testing.T) {
	t.Parallel()
	counts := prometheus.NewRegistry()
	b := newLightBench(t, func(c *dispatcher.Config) { c.Registerer = counts })
	b.createCallerPool(1)
	g := b.expectLease("first")
	gone := b.startLeaseWait(b.Dispatcher, "gone", time.Second)
	<-gone.done
	if gone.err != nil || gone.got.Grant != nil || gone.got.Cause.Code != decision.CodeCallersFull {
		t.Fatalf("%+v, %v", gone.got, gone.err)
	}
	task := gone.got.Task.ID
	waits, err := b.store.OpenLease(b.ctx, store.NewLease{Pool: "a", Holder: store.HolderDevice("ci", "gone")})
	if err != nil || waits.Task != task {
		t.Fatalf("%+v, %v, want task %d", waits, err, task)
	}
	b.must(b.store.SetLeaseWait(b.ctx, waits, 0))
	if n, err := b.store.Expire(b.ctx, 10); err != nil || n != 1 {
		t.Fatalf("%d expired, %v", n, err)
	}
	b.expectState(task, store.Expired)
	if got := b.tryAcquire("third"); got.Grant != nil {
		t.Errorf("%+v", got)
	}
	b.endLease("first", g)
	b.expectLease("second")
	for _, name := range []string{"first", "gone", "second"} {
		if seen := b.Seen.LastReport(store.HolderDevice("ci", name)); !seen.At.IsZero() {
			t.Errorf("%s was seen as a device at %s", name, seen.At)
		}
	}
	found, err := counts.Gather()
	b.must(err)
	got := map[string]float64{}
	for _, family := range found {
		for _, m := range family.GetMetric() {
			if family.GetName() == "dispatcher_leases_total" {
				got[m.GetLabel()[0].GetValue()+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if got["granteda"]+got["agranted"] != 2 || got["refuseda"]+got["arefused"] != 1 || got["endeda"]+got["aended"] != 1 {
		t.Errorf("counted %v", got)
	}
}
