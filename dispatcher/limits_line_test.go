package dispatcher_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// keptLong lets offers last longer than any test: a slot that another gets was given
// back.
func keptLong(w *wakes) func(*dispatcher.Config) {
	return func(c *dispatcher.Config) { c.Waker, c.Offer = w, long }
}

// contested makes a pool of one slot, which "first" holds; "limited" is of an
// account that has started already, "free" is not, and both have work, in this order.
func (b *bench) contested(lineUp func(device string)) (held devices.Task) {
	b.t.Helper()
	b.pool("a", 1, long)
	b.reconcile()
	for device, account := range map[string]string{"before": "x", "limited": "x", "same": "x", "first": "y", "free": "z"} {
		b.device(device, account)
	}
	b.batch("a", nil, "before", "first")
	b.batch("a", nil, "limited", "free", "same")
	b.ended("before", b.granted("before"), "succeeded", "", devices.OutcomeRecorded)
	held = b.granted("first")
	lineUp("limited")
	lineUp("free")
	b.changePool("", func(p *store.PoolSpec) { p.Limits = json.RawMessage(oneAnHour) })
	return held
}

// TestALimitedDeviceKeepsNoSlot: the slot that is offered to a limited device goes on
// at once, when it says no, or without asking it where its policies are known.
func TestALimitedDeviceKeepsNoSlot(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"asked": false, "known": true} {
		for kind, backend := range map[string]func(testing.TB, ...func(*dispatcher.Config)) *bench{"embedded": embedded, "servers": onServers} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				w := &wakes{}
				b := backend(t, keptLong(w), unhurried)
				held := b.contested(func(device string) { b.expectPushed(device, devices.ReasonFull) })
				woken := []string{"free"}
				if known { // by a report that was refused
					b.expectReason("same", `{"id":"1"}`, devices.ReasonLimited)
				} else {
					woken = append(woken, "limited")
				}
				b.ended("first", held, "succeeded", "", devices.OutcomeRecorded)
				if !known {
					b.eventuallyWoken(w, "limited")
					b.expectPushed("limited", devices.ReasonLimited)
				}
				b.eventuallyWoken(w, woken...)
				b.expectPushed("free", devices.ReasonGranted)
			})
		}
	}
}

// TestALimitedDeviceThatPollsHoldsNobodyUp: the device behind it gets the slot, also
// when it was expected first.
func TestALimitedDeviceThatPollsHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		held := b.contested(func(device string) { b.expectReason(device, `{"id":"1"}`, devices.ReasonFull) })
		b.ended("first", held, "succeeded", "", devices.OutcomeRecorded)
		b.expectReason("limited", `{"id":"2"}`, devices.ReasonLimited)
		b.eventually("a grant to who stands behind", func() bool {
			return b.report("free", `{"id":"2"}`).Reason == devices.ReasonGranted
		})
	}, unhurried)
}

// TestALimitedParkedReportLetsTheNextHaveThePlace, and waits on.
func TestALimitedParkedReportLetsTheNextHaveTheSlot(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		var parked []*waiting
		held := b.contested(func(device string) { parked = append(parked, b.parks(device)) })
		b.ended("first", held, "succeeded", "", devices.OutcomeRecorded)
		if a := parked[1].answered(); a.Reason != devices.ReasonGranted {
			b.t.Errorf("who stands behind: %+v", a)
		}
		parked[0].stillParked()
	}, unhurried, func(c *dispatcher.Config) { c.Offer = long })
}

// TestSleepersThatAreLimitedAreNotWoken, and do not stand before those that are not.
func TestSleepersThatAreLimitedAreNotWoken(t *testing.T) {
	t.Parallel()
	w := &wakes{}
	b := onServers(t, keptLong(w), unhurried)
	b.limitedPool(1)
	b.reconcile()
	var names []string
	for i := range 30 { // more than one piece of handing on would pass over
		names = append(names, fmt.Sprintf("d%d", i))
		b.device(names[i], "x")
	}
	b.device("free", "z")
	names = append(names, "free")
	for _, device := range names {
		b.expectPushed(device, devices.ReasonNone)
	}
	b.must(b.Seen.Flush(b.ctx))
	b.device("before", "x")
	b.batch("a", nil, "before")
	b.ended("before", b.granted("before"), "succeeded", "", devices.OutcomeRecorded)
	if _, err := b.Policies.SettleAll(b.ctx); err != nil {
		t.Fatal(err)
	}
	b.batch("a", nil, names...)
	b.Waiters.Filler.Fill("a")
	b.eventuallyWoken(w, "free")
	line, err := b.semaphore.OfferSlots(b.ctx, "a", slots.Pace{Period: minute, Offer: minute}, nil)
	if err != nil || line.Waiting != 1 {
		t.Errorf("line: %+v, %v; want nobody in it but who was woken", line, err)
	}
}

// TestAHolderIsNotLimited: what runs goes on, is delivered again, and its result is
// taken, whatever its policies say by now.
func TestAHolderIsNotLimited(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.limitedPool(9)
		b.device("d1", "x")
		b.device("d2", "x")
		b.batch("a", nil, "d1", "d2")
		task := b.granted("d1")
		b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		again := b.report("d1", `{"id":"2"}`) // its first reply was lost
		if again.Task == nil || again.Task.ID != task.ID || again.Task.Redelivered != 1 {
			b.t.Fatalf("delivered again: %+v", again)
		}
		renewed := b.report("d1", running(*again.Task))
		if len(renewed.Renewed) != 1 {
			b.t.Errorf("while it runs: %+v", renewed)
		}
		b.ended("d1", *again.Task, "succeeded", "", devices.OutcomeRecorded)
	}, unhurried)
}
