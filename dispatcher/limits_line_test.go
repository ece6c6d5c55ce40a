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

// keptLong makes offers last longer than any test. If another device gets the slot, the offer was given back.
func keptLong(w *wakes) func(*dispatcher.Config) {
	return func(c *dispatcher.Config) { c.Waker, c.Offer = w, long }
}

// contested creates a pool with one slot, which "first" holds. The account of "limited" has started a task
// already, the account of "free" has not. Both devices wait, in this order.
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

// TestALimitedDeviceKeepsNoSlot checks that a slot that is offered to a limited device goes on at once when
// the device is refused. If its policies are known to refuse, the device is not offered the slot at all.
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
				if known { // the refusal of this report makes the policies known
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

// TestALimitedDeviceThatPollsHoldsNobodyUp checks that the device behind a limited device gets the slot, even
// if the limited device was to report first.
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

// TestALimitedParkedReportLetsTheNextHaveTheSlot checks that the next device gets the slot, and that the
// parked report of the limited device continues to wait.
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

// TestSleepersThatAreLimitedAreNotWoken checks that limited devices that sleep are not woken, and do not
// block the search for devices that are not limited.
func TestSleepersThatAreLimitedAreNotWoken(t *testing.T) {
	t.Parallel()
	w := &wakes{}
	b := onServers(t, keptLong(w), unhurried)
	b.limitedPool(1)
	b.reconcile()
	var names []string
	for i := range 30 { // more devices than one step of handing on passes over
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

// TestAHolderIsNotLimited checks that a running task can be renewed and redelivered and its result recorded,
// even if its policies refuse starts now.
func TestAHolderIsNotLimited(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.limitedPool(9)
		b.device("d1", "x")
		b.device("d2", "x")
		b.batch("a", nil, "d1", "d2")
		task := b.granted("d1")
		b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		again := b.report("d1", `{"id":"2"}`) // the first reply was lost
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
