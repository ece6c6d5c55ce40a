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

// unusedOffer is a case in which a device is refused after an offer in pool b. The device also waits in pool
// a.
type unusedOffer struct {
	set  func(b *bench, inA, inB int64) // changes the batches of the device
	body string
	a, b int // number of waiters afterwards in each pool; in b, this includes the device that is offered the slot next
}

func unusedOffers() map[devices.Reason]unusedOffer {
	const asks = `{"id":"p"}`
	limit := func(b *bench, _, inB int64) {
		b.changePool("", func(s *store.PoolSpec) { s.Limits = json.RawMessage(oneAnHour) })
		b.pauseBatch(inB, "")
	}
	return map[devices.Reason]unusedOffer{
		devices.ReasonFull:        {func(b *bench, _, inB int64) { b.pauseBatch(inB, "") }, asks, 1, 2},
		devices.ReasonLimited:     {limit, asks, 0, 2},
		devices.ReasonUnavailable: {limit, asks, 0, 2}, // policies cannot be checked
		devices.ReasonPaused: {func(b *bench, inA, inB int64) {
			b.pauseBatch(inA, "")
			b.pauseBatch(inB, "")
		}, asks, 0, 1},
		devices.ReasonWindow: {func(b *bench, inA, inB int64) {
			b.setWindows(inA, b.shut())
			b.setWindows(inB, b.shut())
		}, asks, 0, 1},
		devices.ReasonDeclined: {func(*bench, int64, int64) {}, `{"id":"p","accept":false}`, 1, 2},
		devices.ReasonBusy:     {func(*bench, int64, int64) {}, `{"id":"p","running":[{"task":1000,"token":7}]}`, 1, 2}, // it must stop first
	}
}

// TestAnUnusedOfferGoesOn checks that a device that is refused keeps no offer. It stays in the queues in
// which it may still start, and leaves the other queues.
func TestAnUnusedOfferGoesOn(t *testing.T) {
	t.Parallel()
	for reason, offer := range unusedOffers() {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			w := &wakes{}
			b := onServers(t, keptLong(w), unhurried, func(c *dispatcher.Config) {
				if reason == devices.ReasonUnavailable {
					c.Limits = nil
				}
			})
			b.expectUnused(w, offer, reason)
		})
	}
}

func (b *bench) expectUnused(w *wakes, offer unusedOffer, reason devices.Reason) {
	b.t.Helper()
	b.pool("a", 1, long)
	b.pool("b", 1, long)
	b.reconcile()
	for device, account := range map[string]string{"one": "x", "waits": "x", "two": "y", "next": "z"} {
		b.device(device, account)
	}
	b.batch("a", nil, "one")
	b.batch("b", nil, "two")
	inA, inB := b.batch("a", nil, "waits"), b.batch("b", nil, "waits")
	b.batch("b", nil, "next")
	b.granted("one")
	two := b.granted("two")
	b.expectPushed("waits", devices.ReasonFull)
	b.expectPushed("next", devices.ReasonFull)
	b.ended("two", two, "succeeded", "", devices.OutcomeRecorded)
	b.eventuallyWoken(w, "waits")

	offer.set(b, inA, inB)
	report, err := devices.DecodeReport([]byte(offer.body))
	b.must(err)
	reply, err := b.HandleReport(b.ctx, devices.Caller{Device: "waits", Via: devices.ViaSession}, report)
	if err != nil || reply.Reason != reason {
		b.t.Fatalf("%s, %v; want %s", reply.Reason, err, reason)
	}
	b.eventuallyWoken(w, "waits", "next")
	b.expectWaiting("a", offer.a)
	b.expectWaiting("b", offer.b)
}

// TestAParkedDeviceWithoutWorkLeavesTheQueue checks that a parked device leaves the queue if its batch is
// cancelled and it is then offered a slot.
func TestAParkedDeviceWithoutWorkLeavesTheQueue(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.pool("b", 1, long)
		b.batch("b", nil, "holds")
		batch := b.batch("b", nil, "waits")
		b.batch("b", nil, "next")
		held := b.granted("holds")
		waits, next := b.parks("waits"), b.parks("next")
		_, err := b.store.CancelBatch(b.ctx, "op", batch)
		b.must(err)
		b.ended("holds", held, "succeeded", "", devices.OutcomeRecorded)
		if a := next.answered(); a.Reason != devices.ReasonGranted {
			b.t.Errorf("the next: %+v", a)
		}
		waits.stillParked()
		b.expectWaiting("b", 0)
	}, unhurried, func(c *dispatcher.Config) { c.Offer = long })
}

// expectWaiting waits until the queue of a pool has want waiters.
func (b *bench) expectWaiting(pool string, want int) {
	b.t.Helper()
	b.eventually("queue of "+pool, func() bool {
		line, err := b.semaphore.OfferSlots(b.ctx, pool, slots.Pace{Period: time.Hour, Offer: long}, nil)
		return err == nil && line.Waiting == want
	})
}
