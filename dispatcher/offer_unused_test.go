package dispatcher_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// unusedOfferCase is a case in which a device has an offer in pool b but is refused there. The device also waits in
// pool a.
type unusedOfferCase struct {
	changeBatches          func(b *testBench, inA, inB int64) // changes the batches of the device
	body                   string
	waitersInA, waitersInB int // number of waiters afterwards in each pool; in b, this includes the device that is offered the slot next
}

func unusedOfferCases() map[devices.Reason]unusedOfferCase {
	const asks = `{"id":"p"}`
	limit := func(b *testBench, _, inB int64) {
		b.changePool("", func(s *store.PoolSpec) { s.Limits = json.RawMessage(oneAnHourPerAccount) })
		b.pauseBatch(inB, "")
	}
	return map[devices.Reason]unusedOfferCase{
		devices.ReasonFull:        {func(b *testBench, _, inB int64) { b.pauseBatch(inB, "") }, asks, 1, 2},
		devices.ReasonLimited:     {limit, asks, 0, 2},
		devices.ReasonUnavailable: {limit, asks, 0, 2}, // the policies cannot be checked
		devices.ReasonPaused: {func(b *testBench, inA, inB int64) {
			b.pauseBatch(inA, "")
			b.pauseBatch(inB, "")
		}, asks, 0, 1},
		devices.ReasonWindow: {func(b *testBench, inA, inB int64) {
			b.setWindows(inA, b.closedWindows())
			b.setWindows(inB, b.closedWindows())
		}, asks, 0, 1},
		devices.ReasonDeclined: {func(*testBench, int64, int64) {}, `{"id":"p","accept":false}`, 1, 2},
		devices.ReasonBusy:     {func(*testBench, int64, int64) {}, `{"id":"p","running":[{"task":1000,"token":7}]}`, 1, 2}, // the device must first stop a task that it runs
	}
}

// TestAnUnusedOfferGoesOn checks a device that has an offer but is refused: it does not keep the offer. It stays in
// the queues of the pools in which it may still start, and leaves the other queues.
func TestAnUnusedOfferGoesOn(t *testing.T) {
	t.Parallel()
	for reason, offer := range unusedOfferCases() {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			w := &wakeRecorder{}
			b := newServerBench(t, withLongOffers(w), withLongPeriod, func(c *dispatcher.Config) {
				if reason == devices.ReasonUnavailable {
					c.Limits = nil
				}
			})
			b.expectUnusedOffer(w, offer, reason)
		})
	}
}

func (b *testBench) expectUnusedOffer(w *wakeRecorder, offer unusedOfferCase, reason devices.Reason) {
	b.t.Helper()
	b.createPool("a", 1, long)
	b.createPool("b", 1, long)
	b.reconcile()
	for device, account := range map[string]string{"one": "x", "waits": "x", "two": "y", "next": "z"} {
		b.createAccountDevice(device, account)
	}
	b.createBatch("a", nil, "one")
	b.createBatch("b", nil, "two")
	inA, inB := b.createBatch("a", nil, "waits"), b.createBatch("b", nil, "waits")
	b.createBatch("b", nil, "next")
	b.expectGrant("one")
	two := b.expectGrant("two")
	b.expectSessionReason("waits", devices.ReasonFull)
	b.expectSessionReason("next", devices.ReasonFull)
	b.sendResult("two", two, "succeeded", "", devices.OutcomeRecorded)
	b.awaitWoken(w, "waits")

	offer.changeBatches(b, inA, inB)
	report, err := devices.DecodeReport([]byte(offer.body))
	b.must(err)
	reply, err := b.HandleReport(b.ctx, devices.Caller{Device: "waits", Via: devices.ViaSession}, report)
	if err != nil || reply.Reason != reason {
		b.t.Fatalf("%s, %v; want %s", reply.Reason, err, reason)
	}
	b.awaitWoken(w, "waits", "next")
	b.awaitQueueLength("a", offer.waitersInA)
	b.awaitQueueLength("b", offer.waitersInB)
}

// TestAParkedDeviceWithoutWorkLeavesTheQueue checks a device with a parked report whose batch is cancelled. When
// the device is offered a slot, it leaves the queue.
func TestAParkedDeviceWithoutWorkLeavesTheQueue(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("b", 1, long)
		b.createBatch("b", nil, "holds")
		batch := b.createBatch("b", nil, "waits")
		b.createBatch("b", nil, "next")
		held := b.expectGrant("holds")
		waits, next := b.parkReport("waits"), b.parkReport("next")
		_, err := b.store.CancelBatch(b.ctx, "op", batch)
		b.must(err)
		b.sendResult("holds", held, "succeeded", "", devices.OutcomeRecorded)
		if a := next.awaitAnswer(); a.Reason != devices.ReasonGranted {
			b.t.Errorf("the next: %+v", a)
		}
		waits.expectStillParked()
		b.awaitQueueLength("b", 0)
	}, withLongPeriod, func(c *dispatcher.Config) { c.Offer = long })
}

// awaitQueueLength waits until the number of waiters in the queue of a pool is want.
func (b *testBench) awaitQueueLength(pool string, want int) {
	b.t.Helper()
	b.awaitCondition("queue of "+pool, func() bool {
		line, err := b.semaphore.OfferSlots(b.ctx, pool, slots.Pace{ReportPeriod: time.Hour, OfferTTL: long}, nil)
		return err == nil && line.Waiting == want
	})
}
