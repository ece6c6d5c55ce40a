package dispatcher_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/store"
)

// A slot that a device frees is granted to the next device, whose report is parked.
func TestParkedReportIsGrantedWhatIsLeft(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("a", 1, minute)
		b.batch("a", nil, "d1", "d2")
		first := b.granted("d1")
		w := b.parks("d2")
		b.ended("d1", first, "succeeded", "", devices.OutcomeRecorded)
		a := w.answered()
		if a.Reason != devices.ReasonGranted || a.Task == nil || a.Re != "d2-waits" || !a.held || a.HeldMS < 0 {
			b.t.Fatalf("%+v, want a grant", a)
		}
		b.expectHeld(1)
		b.ended("d2", *a.Task, "succeeded", "", devices.OutcomeRecorded)
	}, keepingOffers)
}

// The same holds if the report is parked at another replica than the one that frees the slot.
func TestParkedReportElsewhereIsGrantedWhatIsLeft(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		other := b.replica()
		b.pool("a", 1, minute)
		b.batch("a", nil, "d1", "d2")
		first := b.granted("d1")
		w := b.wait(other, fleetCaller("d2"), `{"id":"x"}`, long)
		w.isParked()
		b.ended("d1", first, "succeeded", "", devices.OutcomeRecorded)
		if a := w.answered(); a.Task == nil || a.Re != "x" {
			b.t.Errorf("%+v, want a grant", a)
		}
	})
}

// Results are recorded before the wait, and acknowledged in the reply.
func TestParkedReportKeepsItsAcks(t *testing.T) {
	t.Parallel()
	b := light(t)
	b.pool("a", 1, minute)
	b.batch("a", nil, "d1")
	g := b.granted("d1")
	w := b.wait(b.Dispatcher, fleetCaller("d1"), result(g, "succeeded", ""), long)
	w.isParked()
	b.expectState(g.ID, store.Succeeded)
	b.expectHeld(0)
	b.batch("a", nil, "d1")
	wake(b.Dispatcher, "d1")
	a := w.answered()
	if len(a.Acks) != 1 || a.Acks[0].Outcome != devices.OutcomeRecorded || a.Acks[0].Token != g.Token || a.Task == nil || a.Task.ID == g.ID {
		t.Errorf("%+v, want the result acknowledged and the next task", a)
	}
}

func TestParkedReportWaitsOnWithoutAGrant(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.pool("a", 1, minute)
	b.batch("a", nil, "d1", "d2")
	first := b.granted("d1")
	w := b.parks("d2")
	for range 3 { // each time another device was faster
		spies.answers("Acquire")
		wake(b.Dispatcher, "d2")
		b.eventually("look", func() bool { return spies.answers("Acquire") > 0 })
		w.stillParked()
	}
	b.ended("d1", first, "succeeded", "", devices.OutcomeRecorded)
	wake(b.Dispatcher, "d2")
	if a := w.answered(); a.Task == nil {
		t.Errorf("%+v, want the grant at last", a)
	}
}

// The queue removes a device that does not report within a report period, but not a device with a parked
// report.
func TestLineExpectsAParkedReportAfterItsWait(t *testing.T) {
	t.Parallel()
	b, spies := spied(t, func(c *dispatcher.Config) { c.ReportPeriod = time.Second })
	b.pool("a", 0, minute)
	b.batch("a", nil, "d1")
	b.expectReason("d1", `{}`, devices.ReasonFull)
	if got := time.Duration(spies.longest.Load()); got != time.Second {
		t.Errorf("a report that does not wait: again within %s, want 1 s", got)
	}
	b.parks("d1")
	if got := time.Duration(spies.longest.Load()); got != long {
		t.Errorf("a parked report: again within %s, want %s", got, long)
	}
}

// A wake-up between the decision and the beginning of the wait is not lost.
func TestWakeBeforeTheWaitIsNotLost(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	other := *b // another replica, because slots of this one would be coalesced with the call in progress
	other.Dispatcher = b.parking()
	b.pool("a", 1, minute)
	b.batch("a", nil, "d1", "d2")
	first := b.granted("d1")
	spies.after("Acquire", func() {
		spies.ease()
		other.ended("d1", first, "succeeded", "", devices.OutcomeRecorded)
		wake(b.Dispatcher, "d2")
	})
	w := b.wait(b.Dispatcher, fleetCaller("d2"), `{"id":"x"}`, long)
	if a := w.answered(); a.Task == nil {
		t.Errorf("%+v, want a grant", a)
	}
}

// The device counts the lease from the sending of its report plus held_ms. So held_ms is the time until the
// claim begins, however long the claim takes.
func TestHeldTimeIsOverBeforeTheLeaseBegins(t *testing.T) {
	t.Parallel()
	var elapsed atomic.Int64
	start := time.Now()
	b, spies := spied(t, func(c *dispatcher.Config) {
		c.Now = func() time.Time { return start.Add(time.Duration(elapsed.Load())) }
	})
	b.pool("a", 1, minute)
	w := b.parks("d1")
	b.batch("a", nil, "d1")
	elapsed.Store(int64(7 * time.Second))
	spies.before("Claim", func() { elapsed.Add(int64(2 * time.Second)) })
	wake(b.Dispatcher, "d1")
	if a := w.answered(); a.Task == nil || a.HeldMS != 7000 {
		t.Errorf("%+v, want a grant after 7000 ms", a)
	}
}

func TestLostAnswerOfAParkedReportIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.pool("a", 1, minute)
		w := b.parks("d1")
		b.batch("a", nil, "d1")
		wake(b.Dispatcher, "d1")
		lost := w.answered()
		again := b.wait(b.Dispatcher, fleetCaller("d1"), `{"id":"again"}`, long).answered()
		if lost.Task == nil || again.Task == nil || again.Task.Token != lost.Task.Token || again.Task.Redelivered != 1 || again.Re != "again" {
			b.t.Errorf("%+v after %+v, want the same grant", again, lost)
		}
		b.expectHeld(1)
	})
}
