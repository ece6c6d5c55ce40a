package dispatcher_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// withLongOffers makes offers last longer than any test. So an offered slot reaches another device only if the offer was given back, and
// not because it lapsed.
func withLongOffers(w *wakeRecorder) func(*dispatcher.Config) {
	return func(c *dispatcher.Config) { c.Waker, c.Offer = w, long }
}

// createContestedPool creates a pool with one slot, which the device "first" holds. The account of the device
// "limited" has used up its policy. The account of the device "free" has not. Both devices wait in the queue, in
// this order.
func (b *testBench) createContestedPool(enqueue func(device string)) (held devices.Task) {
	b.t.Helper()
	b.createPool("a", 1, long)
	b.reconcile()
	for device, account := range map[string]string{"before": "x", "limited": "x", "same": "x", "first": "y", "free": "z"} {
		b.createAccountDevice(device, account)
	}
	b.createBatch("a", nil, "before", "first")
	b.createBatch("a", nil, "limited", "free", "same")
	b.sendResult("before", b.expectGrant("before"), "succeeded", "", devices.OutcomeRecorded)
	held = b.expectGrant("first")
	enqueue("limited")
	enqueue("free")
	b.changePool("", func(p *store.PoolSpec) { p.Limits = json.RawMessage(oneAnHourPerAccount) })
	return held
}

// TestALimitedDeviceKeepsNoSlot checks a slot that is offered to the device "limited", which its policy refuses. When the device is
// refused, the slot must go at once to the next device. If this replica already knows that the pool has policies, the slot must not be
// offered to the device at all.
func TestALimitedDeviceKeepsNoSlot(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"asked": false, "known": true} {
		for kind, backend := range map[string]func(testing.TB, ...func(*dispatcher.Config)) *testBench{"embedded": newEmbeddedBench, "servers": newServerBench} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				w := &wakeRecorder{}
				b := backend(t, withLongOffers(w), withLongPeriod)
				held := b.createContestedPool(func(device string) { b.expectSessionReason(device, devices.ReasonFull) })
				woken := []string{"free"}
				if known { // the refusal of this report makes the policies known
					b.expectReason("same", `{"id":"1"}`, devices.ReasonLimited)
				} else {
					woken = append(woken, "limited")
				}
				b.sendResult("first", held, "succeeded", "", devices.OutcomeRecorded)
				if !known {
					b.awaitWoken(w, "limited")
					b.expectSessionReason("limited", devices.ReasonLimited)
				}
				b.awaitWoken(w, woken...)
				b.expectSessionReason("free", devices.ReasonGranted)
			})
		}
	}
}

// TestALimitedDeviceThatPollsHoldsNobodyUp checks that the device behind the device "limited" gets the slot, even
// if "limited" polls and was to report first.
func TestALimitedDeviceThatPollsHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		held := b.createContestedPool(func(device string) { b.expectReason(device, `{"id":"1"}`, devices.ReasonFull) })
		b.sendResult("first", held, "succeeded", "", devices.OutcomeRecorded)
		b.expectReason("limited", `{"id":"2"}`, devices.ReasonLimited)
		b.awaitCondition("a grant to who stands behind", func() bool {
			return b.sendReport("free", `{"id":"2"}`).Reason == devices.ReasonGranted
		})
	}, withLongPeriod)
}

// TestALimitedParkedReportLetsTheNextHaveTheSlot checks a device with a parked report that its policy refuses: the
// next device gets the slot, and the parked report continues to wait.
func TestALimitedParkedReportLetsTheNextHaveTheSlot(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		var parked []*pendingReport
		held := b.createContestedPool(func(device string) { parked = append(parked, b.parkReport(device)) })
		b.sendResult("first", held, "succeeded", "", devices.OutcomeRecorded)
		if a := parked[1].awaitAnswer(); a.Reason != devices.ReasonGranted {
			b.t.Errorf("who stands behind: %+v", a)
		}
		parked[0].expectStillParked()
	}, withLongPeriod, func(c *dispatcher.Config) { c.Offer = long })
}

// TestSleepersThatAreLimitedAreNotWoken checks sleeping devices whose policies refuse a start: they are not woken,
// and they do not block the search for other sleeping devices.
func TestSleepersThatAreLimitedAreNotWoken(t *testing.T) {
	t.Parallel()
	w := &wakeRecorder{}
	b := newServerBench(t, withLongOffers(w), withLongPeriod)
	b.createLimitedPool(1)
	b.reconcile()
	var names []string
	for i := range 30 { // more devices than one step of handing on passes over
		names = append(names, fmt.Sprintf("d%d", i))
		b.createAccountDevice(names[i], "x")
	}
	b.createAccountDevice("free", "z")
	names = append(names, "free")
	for _, device := range names {
		b.expectSessionReason(device, devices.ReasonNone)
	}
	b.must(b.Seen.Flush(b.ctx))
	b.createAccountDevice("before", "x")
	b.createBatch("a", nil, "before")
	b.sendResult("before", b.expectGrant("before"), "succeeded", "", devices.OutcomeRecorded)
	_, err := b.Policies.SettleAllReservations(b.ctx)
	must.Succeed(t, err)
	b.createBatch("a", nil, names...)
	b.Waiters.Filler.FillPool("a")
	b.awaitWoken(w, "free")
	line, err := b.semaphore.OfferSlots(b.ctx, "a", slots.Pace{ReportPeriod: minute, OfferTTL: minute}, nil)
	if err != nil || line.Waiting != 1 {
		t.Errorf("line: %+v, %v; want nobody in it but who was woken", line, err)
	}
}

// TestAHolderIsNotLimited checks a device with a running task whose policies would refuse a start now: the task can
// be renewed and redelivered, and its result is recorded.
func TestAHolderIsNotLimited(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createLimitedPool(9)
		b.createAccountDevice("d1", "x")
		b.createAccountDevice("d2", "x")
		b.createBatch("a", nil, "d1", "d2")
		task := b.expectGrant("d1")
		b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		again := b.sendReport("d1", `{"id":"2"}`) // the first reply was lost
		if again.Task == nil || again.Task.ID != task.ID || again.Task.Redelivered != 1 {
			b.t.Fatalf("delivered again: %+v", again)
		}
		renewed := b.sendReport("d1", runningReport(*again.Task))
		if len(renewed.Renewed) != 1 {
			b.t.Errorf("while it runs: %+v", renewed)
		}
		b.sendResult("d1", *again.Task, "succeeded", "", devices.OutcomeRecorded)
	}, withLongPeriod)
}
