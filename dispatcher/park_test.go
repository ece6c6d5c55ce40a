package dispatcher_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/store"
)

// The report of a device is parked because the pool is full. Another device frees its slot. The parked report must be granted this slot.
func TestParkedReportIsGrantedWhatIsLeft(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		b.createBatch("a", nil, "d1", "d2")
		first := b.expectGrant("d1")
		w := b.parkReport("d2")
		b.sendResult("d1", first, "succeeded", "", devices.OutcomeRecorded)
		a := b.awaitGrant(w)
		if a.Re != "d2-waits" || !a.wasParked || a.HeldMS < 0 {
			b.t.Fatalf("%+v, want a grant", a)
		}
		b.expectHeld(1)
		b.sendResult("d2", *a.Task, "succeeded", "", devices.OutcomeRecorded)
	}, withMinuteOffers)
}

// A report is parked at one replica, and another replica frees a slot. The parked report must be granted this slot.
func TestParkedReportElsewhereIsGrantedWhatIsLeft(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		other := b.addParkingReplica()
		b.createPool("a", 1, minute)
		b.createBatch("a", nil, "d1", "d2")
		first := b.expectGrant("d1")
		w := b.startReport(other, fleetCaller("d2"), `{"id":"x"}`, long)
		w.awaitParked()
		b.sendResult("d1", first, "succeeded", "", devices.OutcomeRecorded)
		if a := b.awaitGrant(w); a.Re != "x" {
			b.t.Errorf("%+v, want the answer to x", a)
		}
	})
}

// A parked report also contains results. They must be recorded before the wait, and the reply must acknowledge them.
func TestParkedReportKeepsItsAcks(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 1, minute)
	b.createBatch("a", nil, "d1")
	g := b.expectGrant("d1")
	w := b.startReport(b.Dispatcher, fleetCaller("d1"), resultReport(g, "succeeded", ""), long)
	w.awaitParked()
	b.expectState(g.ID, store.Succeeded)
	b.expectHeld(0)
	b.createBatch("a", nil, "d1")
	notifyOffer(b.Dispatcher, "d1")
	a := b.awaitGrant(w)
	if len(a.Acks) != 1 || a.Acks[0].Outcome != devices.OutcomeRecorded || a.Acks[0].Token != g.Token || a.Task.ID == g.ID {
		t.Errorf("%+v, want the result acknowledged and the next task", a)
	}
}

func TestParkedReportWaitsOnWithoutAGrant(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 1, minute)
	b.createBatch("a", nil, "d1", "d2")
	first := b.expectGrant("d1")
	w := b.parkReport("d2")
	for range 3 { // three times another device gets the slot first
		spies.takeCallCount("Acquire")
		notifyOffer(b.Dispatcher, "d2")
		b.awaitCondition("look", func() bool { return spies.takeCallCount("Acquire") > 0 })
		w.expectStillParked()
	}
	b.sendResult("d1", first, "succeeded", "", devices.OutcomeRecorded)
	notifyOffer(b.Dispatcher, "d2")
	b.awaitGrant(w)
}

// The queue removes a device that does not report within a report period. It must not remove a device whose report is parked.
func TestLineExpectsAParkedReportAfterItsWait(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t, func(c *dispatcher.Config) { c.ReportPeriod = time.Second })
	b.createPool("a", 0, minute)
	b.createBatch("a", nil, "d1")
	b.expectReason("d1", `{}`, devices.ReasonFull)
	if got := time.Duration(spies.lastPeriod.Load()); got != time.Second {
		t.Errorf("a report that does not wait: again within %s, want 1 s", got)
	}
	b.parkReport("d1")
	if got := time.Duration(spies.lastPeriod.Load()); got != long {
		t.Errorf("a parked report: again within %s, want %s", got, long)
	}
}

// A device is woken after its report was decided and before the report is parked. This wake-up must not be lost.
func TestWakeBeforeTheWaitIsNotLost(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	other := *b // another replica: slots of this replica would wait for the call that is in progress
	other.Dispatcher = b.newParkingReplica()
	b.createPool("a", 1, minute)
	b.createBatch("a", nil, "d1", "d2")
	first := b.expectGrant("d1")
	spies.runAfter("Acquire", func() {
		spies.removeHooks()
		other.sendResult("d1", first, "succeeded", "", devices.OutcomeRecorded)
		notifyOffer(b.Dispatcher, "d2")
	})
	w := b.startReport(b.Dispatcher, fleetCaller("d2"), `{"id":"x"}`, long)
	b.awaitGrant(w)
}

// A device counts its lease from the time at which it sent the report, plus held_ms. So held_ms must end when the claim begins, however
// long the claim takes.
func TestHeldTimeIsOverBeforeTheLeaseBegins(t *testing.T) {
	t.Parallel()
	var elapsed atomic.Int64
	start := time.Now()
	b, spies := newSpiedBench(t, func(c *dispatcher.Config) {
		c.Now = func() time.Time { return start.Add(time.Duration(elapsed.Load())) }
	})
	b.createPool("a", 1, minute)
	w := b.parkReport("d1")
	b.createBatch("a", nil, "d1")
	elapsed.Store(int64(7 * time.Second))
	spies.runBefore("Claim", func() { elapsed.Add(int64(2 * time.Second)) })
	notifyOffer(b.Dispatcher, "d1")
	if a := w.awaitAnswer(); a.Task == nil || a.HeldMS != 7000 {
		t.Errorf("%+v, want a grant after 7000 ms", a)
	}
}

func TestLostAnswerOfAParkedReportIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		w := b.parkReport("d1")
		b.createBatch("a", nil, "d1")
		notifyOffer(b.Dispatcher, "d1")
		lost := w.awaitAnswer()
		again := b.startReport(b.Dispatcher, fleetCaller("d1"), `{"id":"again"}`, long).awaitAnswer()
		if lost.Task == nil || again.Task == nil || again.Task.Token != lost.Task.Token || again.Task.Redelivered != 1 || again.Re != "again" {
			b.t.Errorf("%+v after %+v, want the same grant", again, lost)
		}
		b.expectHeld(1)
	})
}

// A parked device gets a slot. Meanwhile another slot is offered to it. The offered slot must go to the next waiter at once.
func TestAnOfferDuringAGrantGoesOn(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t, withLongPeriod, func(c *dispatcher.Config) { c.Offer = long })
	other := *b // another replica, because slots of this one would be coalesced with the call in progress
	other.Dispatcher = b.newParkingReplica()
	b.createPool("a", 1, long)
	b.createPool("b", 1, long)
	b.createBatch("a", nil, "one", "both")
	b.createBatch("b", nil, "two", "both", "next")
	one, two := b.expectGrant("one"), b.expectGrant("two")
	both, next := b.parkReport("both"), b.parkReport("next")
	spies.runBefore("Claim", func() {
		spies.removeHooks()
		other.sendResult("two", two, "succeeded", "", devices.OutcomeRecorded)
		b.Waiters.ParkedReports.OnWake([]parked.WakeMessage{{Device: "both", Pool: "b"}})
	})
	b.sendResult("one", one, "succeeded", "", devices.OutcomeRecorded)
	if a := both.awaitAnswer(); a.Task == nil || a.Task.Pool != "a" {
		t.Fatalf("%+v, want a grant of pool a", a)
	}
	if a := next.awaitAnswer(); a.Task == nil || a.Task.Pool != "b" {
		t.Errorf("%+v, want a grant of pool b", a)
	}
}
