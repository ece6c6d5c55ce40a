package dispatcher_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// A step of the pass "hand on" offers a free slot to the first device that can use it. It must pass over devices that are blocked, devices that
// are busy in another pool, and devices whose batch may start nothing.
func TestOffersPassThoseWhoCannotUseThem(t *testing.T) {
	t.Parallel()
	w := &wakeRecorder{}
	b := newServerBench(t, withWaker(w))
	b.createPool("a", 1, minute)
	b.createPool("b", 9, minute)
	b.registerDevices("holder", "blocked", "busy", "paused", "gone", "able")
	b.createBatch("a", nil, "holder")
	held := b.expectSessionReason("holder", devices.ReasonGranted)
	paused, gone := b.createBatch("a", func(in *store.Batch) { in.Weight = 9 }, "paused"), b.createBatch("a", func(in *store.Batch) { in.Weight = 9 }, "gone")
	b.createBatch("a", nil, "blocked", "busy", "able")
	for _, device := range []string{"blocked", "busy", "paused", "gone", "able"} {
		b.expectSessionReason(device, devices.ReasonFull)
	}
	b.must(b.store.SetBlocked(b.ctx, "op", "blocked", true, ""))
	b.createBatch("b", func(in *store.Batch) { in.Priority = 9 }, "busy")
	elsewhere := b.expectSessionReason("busy", devices.ReasonGranted)
	_, err := b.store.PauseBatch(b.ctx, "op", paused, "")
	b.must(err)
	_, err = b.store.CancelBatch(b.ctx, "op", gone)
	b.must(err)

	b.reportOverSession("holder", resultReport(*held.Task, "succeeded", ""))
	b.awaitWoken(w, "able")
	next := b.expectSessionReason("able", devices.ReasonGranted)

	// The busy device has kept its position in the queue. After it has reported again, it is woken.
	line, err := b.semaphore.OfferSlots(b.ctx, "a", slots.Pace{ReportPeriod: minute, OfferTTL: minute}, nil)
	if err != nil || line.Waiting != 1 {
		t.Errorf("line %+v, %v: want who was busy, and nobody else", line, err)
	}
	b.reportOverSession("busy", resultReport(*elsewhere.Task, "succeeded", ""))
	b.reportOverSession("able", resultReport(*next.Task, "succeeded", ""))
	b.awaitWoken(w, "able", "busy")
}

// A device has work in two pools, and a slot of each is reserved for it. It starts in one of the pools. The slot of the other pool must go
// to the next device.
func TestADeviceStartsWhereItsSlotIsKept(t *testing.T) {
	t.Parallel()
	w := &wakeRecorder{}
	b := newServerBench(t, withWaker(w))
	for _, pool := range []string{"a", "b"} {
		b.createPool(pool, 1, minute)
	}
	b.reconcile()
	b.registerDevices("one", "two", "waits", "next")
	b.createBatch("a", nil, "one", "waits")
	b.createBatch("b", nil, "two", "waits", "next")
	one, two := b.expectSessionReason("one", devices.ReasonGranted), b.expectSessionReason("two", devices.ReasonGranted)
	b.expectSessionReason("waits", devices.ReasonFull)
	b.expectSessionReason("next", devices.ReasonFull)

	b.reportOverSession("two", resultReport(*two.Task, "succeeded", ""))
	b.awaitWoken(w, "waits")
	b.reportOverSession("one", resultReport(*one.Task, "succeeded", "")) // now both pools keep a slot for the device
	b.awaitWoken(w, "waits", "waits")
	got := b.expectSessionReason("waits", devices.ReasonGranted)
	if got.Task.Pool != "a" { // pool a, because its batch is older
		t.Errorf("granted in %s, want a", got.Task.Pool)
	}
	b.awaitWoken(w, "waits", "waits", "next") // the slot of pool b is offered at once
}

// A device has tasks in two pools. In one pool a slot is reserved for it. The other pool, with the older batch, has a free slot. The device
// must get the reserved slot.
func TestAKeptSlotGoesBeforeAnOlderBatch(t *testing.T) {
	t.Parallel()
	w := &wakeRecorder{}
	b := newServerBench(t, withWaker(w))
	b.createPool("a", 1, minute)
	b.createPool("b", 1, minute)
	b.registerDevices("two", "waits")
	older := b.createBatch("a", func(in *store.Batch) { in.Paused = true }, "waits")
	b.createBatch("b", nil, "two", "waits")
	two := b.expectSessionReason("two", devices.ReasonGranted)
	b.expectSessionReason("waits", devices.ReasonFull)
	b.reportOverSession("two", resultReport(*two.Task, "succeeded", ""))
	b.awaitWoken(w, "waits")
	_, err := b.store.ResumeBatch(b.ctx, "op", older)
	b.must(err)
	if got := b.expectSessionReason("waits", devices.ReasonGranted); got.Task.Pool != "b" {
		t.Errorf("granted in %s, want b", got.Task.Pool)
	}
}

// lossySemaphore is a semaphore that loses offers, as if the replica died between the release of a slot and the
// wake-up.
type lossySemaphore struct {
	dispatcher.Semaphore
	lostOffers atomic.Int64
}

func (s *lossySemaphore) Serve(ctx context.Context, calls []slots.Call) []slots.ExchangeResult {
	served := s.Semaphore.Serve(ctx, calls)
	for i, c := range calls {
		if len(c.Leases) > 0 {
			s.lostOffers.Add(int64(len(served[i].Offers)))
			served[i].Offers = nil
		}
	}
	return served
}

// Redis loses all data, including the queue. The next reports must restore the queue in its previous order, because the order depends on
// the tasks and not on the order of the reports.
func TestTheLineComesBackInItsOrder(t *testing.T) {
	t.Parallel()
	w := &wakeRecorder{}
	b := newServerBench(t, withWaker(w))
	b.createPool("a", 1, minute)
	b.registerDevices("first", "old", "young")
	b.createBatch("a", nil, "first", "old", "young")
	held := b.expectSessionReason("first", devices.ReasonGranted)
	b.expectSessionReason("old", devices.ReasonFull)
	b.expectSessionReason("young", devices.ReasonFull)
	b.must(b.redis.FlushDB(b.ctx).Err())
	b.expectSessionReason("young", devices.ReasonFull)
	b.expectSessionReason("old", devices.ReasonFull)
	b.reportOverSession("first", resultReport(*held.Task, "succeeded", ""))
	b.awaitWoken(w, "old")
	b.expectHeld(0)
}

// A device does not report after its offer. The slot must go to the next device.
func TestAnOfferLapses(t *testing.T) {
	t.Parallel()
	w := &wakeRecorder{}
	b := newServerBench(t, withWaker(w), func(c *dispatcher.Config) { c.Offer = 100 * time.Millisecond })
	b.createPool("a", 1, minute)
	b.reconcile()
	b.registerDevices("first", "silent", "next")
	b.createBatch("a", nil, "first", "silent", "next")
	held := b.expectSessionReason("first", devices.ReasonGranted)
	b.expectSessionReason("silent", devices.ReasonFull)
	b.expectSessionReason("next", devices.ReasonFull)
	b.runFillPasses()
	b.reportOverSession("first", resultReport(*held.Task, "succeeded", ""))
	b.awaitWoken(w, "silent", "next")
}

// Many devices that cannot be reached have offers. Their offers must lapse sooner than the offer of one device that is only slow.
func TestOffersOfDevicesThatAreGoneLapseSooner(t *testing.T) {
	t.Parallel()
	w, least := &wakeRecorder{}, 600*time.Millisecond
	b := newServerBench(t, withWaker(w), func(c *dispatcher.Config) { c.Offer = least })
	b.createPool("a", 4, minute)
	var held, gone []string
	for i := range 24 {
		gone = append(gone, fmt.Sprint("gone", i))
	}
	held = []string{"held0", "held1", "held2", "held3"}
	b.registerDevices(append(held, gone...)...)
	b.createBatch("a", nil, append(held, gone...)...)
	var tasks []devices.Task
	for _, device := range held {
		tasks = append(tasks, *b.expectSessionReason(device, devices.ReasonGranted).Task)
	}
	for _, device := range gone {
		b.expectSessionReason(device, devices.ReasonFull)
	}
	b.runFillPasses()
	for i, device := range held {
		b.reportOverSession(device, resultReport(tasks[i], "succeeded", ""))
	}
	b.awaitCondition("short offer", func() bool { return len(w.wokenDevices()) > 0 && w.shortestHold() < least/2 })
	if n := len(w.wokenDevices()); n <= 10 {
		t.Errorf("after %d offers in vain", n)
	}
}

// A batch is paused. Its waiters must be removed from the queue at once.
func TestABatchLeavesTheLine(t *testing.T) {
	t.Parallel()
	b := newServerBench(t, withWaker(&wakeRecorder{}))
	b.createPool("a", 1, minute)
	b.registerDevices("first", "stays", "leaves")
	b.createBatch("a", nil, "first", "stays")
	leaving := b.createBatch("a", nil, "leaves")
	b.expectSessionReason("first", devices.ReasonGranted)
	b.expectSessionReason("stays", devices.ReasonFull)
	b.expectSessionReason("leaves", devices.ReasonFull)
	b.Waiters.Offers.RemoveWaitersOfBatch("a", leaving)
	b.awaitCondition("line of one", func() bool {
		line, err := b.semaphore.OfferSlots(b.ctx, "a", slots.Pace{ReportPeriod: minute}, nil)
		return err == nil && line.Waiting == 1
	})
}
