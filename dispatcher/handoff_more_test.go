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

// One step offers a free slot to the first device that can use it. It passes over devices that are blocked or
// busy in another pool, and devices whose batch starts nothing.
func TestOffersPassThoseWhoCannotUseThem(t *testing.T) {
	t.Parallel()
	w := &wakes{}
	b := onServers(t, pushing(w))
	b.pool("a", 1, minute)
	b.pool("b", 9, minute)
	b.registered("holder", "blocked", "busy", "paused", "gone", "able")
	b.batch("a", nil, "holder")
	held := b.expectPushed("holder", devices.ReasonGranted)
	paused, gone := b.batch("a", func(in *store.Batch) { in.Weight = 9 }, "paused"), b.batch("a", func(in *store.Batch) { in.Weight = 9 }, "gone")
	b.batch("a", nil, "blocked", "busy", "able")
	for _, device := range []string{"blocked", "busy", "paused", "gone", "able"} {
		b.expectPushed(device, devices.ReasonFull)
	}
	b.must(b.store.SetBlocked(b.ctx, "op", "blocked", true))
	b.batch("b", func(in *store.Batch) { in.Priority = 9 }, "busy")
	elsewhere := b.expectPushed("busy", devices.ReasonGranted)
	_, err := b.store.PauseBatch(b.ctx, "op", paused, "")
	b.must(err)
	_, err = b.store.CancelBatch(b.ctx, "op", gone)
	b.must(err)

	b.pushed("holder", result(*held.Task, "succeeded", ""))
	b.eventuallyWoken(w, "able")
	next := b.expectPushed("able", devices.ReasonGranted)

	// The busy device kept its position, and is woken after it has reported again.
	line, err := b.semaphore.OfferSlots(b.ctx, "a", slots.Pace{Period: minute, Offer: minute}, nil)
	if err != nil || line.Waiting != 1 {
		t.Errorf("line %+v, %v: want who was busy, and nobody else", line, err)
	}
	b.pushed("busy", result(*elsewhere.Task, "succeeded", ""))
	b.pushed("able", result(*next.Task, "succeeded", ""))
	b.eventuallyWoken(w, "able", "busy")
}

// A device with work in several pools starts in a pool that keeps a slot for it. The slot that another pool
// keeps for it goes to the next device.
func TestADeviceStartsWhereItsSlotIsKept(t *testing.T) {
	t.Parallel()
	w := &wakes{}
	b := onServers(t, pushing(w))
	for _, pool := range []string{"a", "b"} {
		b.pool(pool, 1, minute)
	}
	b.reconcile()
	b.registered("one", "two", "waits", "next")
	b.batch("a", nil, "one", "waits")
	b.batch("b", nil, "two", "waits", "next")
	one, two := b.expectPushed("one", devices.ReasonGranted), b.expectPushed("two", devices.ReasonGranted)
	b.expectPushed("waits", devices.ReasonFull)
	b.expectPushed("next", devices.ReasonFull)

	b.pushed("two", result(*two.Task, "succeeded", ""))
	b.eventuallyWoken(w, "waits")
	b.pushed("one", result(*one.Task, "succeeded", "")) // now both pools keep a slot for the device
	b.eventuallyWoken(w, "waits", "waits")
	got := b.expectPushed("waits", devices.ReasonGranted)
	if got.Task.Pool != "a" { // the pool of the older batch
		t.Errorf("granted in %s, want a", got.Task.Pool)
	}
	b.eventuallyWoken(w, "waits", "waits", "next") // the slot of pool b is offered at once
}

// A kept slot goes before a free slot in the pool of an older batch.
func TestAKeptSlotGoesBeforeAnOlderBatch(t *testing.T) {
	t.Parallel()
	w := &wakes{}
	b := onServers(t, pushing(w))
	b.pool("a", 1, minute)
	b.pool("b", 1, minute)
	b.registered("two", "waits")
	older := b.batch("a", func(in *store.Batch) { in.Paused = true }, "waits")
	b.batch("b", nil, "two", "waits")
	two := b.expectPushed("two", devices.ReasonGranted)
	b.expectPushed("waits", devices.ReasonFull)
	b.pushed("two", result(*two.Task, "succeeded", ""))
	b.eventuallyWoken(w, "waits")
	_, err := b.store.ResumeBatch(b.ctx, "op", older)
	b.must(err)
	if got := b.expectPushed("waits", devices.ReasonGranted); got.Task.Pool != "b" {
		t.Errorf("granted in %s, want b", got.Task.Pool)
	}
}

// lossySemaphore loses offers, as if its replica ended between the release and the wake-up.
type lossySemaphore struct {
	dispatcher.Semaphore
	lost atomic.Int64
}

func (s *lossySemaphore) Serve(ctx context.Context, calls []slots.Call) []slots.Served {
	served := s.Semaphore.Serve(ctx, calls)
	for i, c := range calls {
		if len(c.Leases) > 0 {
			s.lost.Add(int64(len(served[i].Offers)))
			served[i].Offers = nil
		}
	}
	return served
}

// If Redis loses all data, the next reports restore the queue in its previous order, because the order
// depends on the tasks and not on the order of the reports.
func TestTheLineComesBackInItsOrder(t *testing.T) {
	t.Parallel()
	w := &wakes{}
	b := onServers(t, pushing(w))
	b.pool("a", 1, minute)
	b.registered("first", "old", "young")
	b.batch("a", nil, "first", "old", "young")
	held := b.expectPushed("first", devices.ReasonGranted)
	b.expectPushed("old", devices.ReasonFull)
	b.expectPushed("young", devices.ReasonFull)
	b.must(b.redis.FlushDB(b.ctx).Err())
	b.expectPushed("young", devices.ReasonFull)
	b.expectPushed("old", devices.ReasonFull)
	b.pushed("first", result(*held.Task, "succeeded", ""))
	b.eventuallyWoken(w, "old")
	b.expectHeld(0)
}

// If a device does not report after its offer, the slot goes to the next device.
func TestAnOfferLapses(t *testing.T) {
	t.Parallel()
	w := &wakes{}
	b := onServers(t, pushing(w), func(c *dispatcher.Config) { c.Offer = 100 * time.Millisecond })
	b.pool("a", 1, minute)
	b.reconcile()
	b.registered("first", "silent", "next")
	b.batch("a", nil, "first", "silent", "next")
	held := b.expectPushed("first", devices.ReasonGranted)
	b.expectPushed("silent", devices.ReasonFull)
	b.expectPushed("next", devices.ReasonFull)
	b.passing()
	b.pushed("first", result(*held.Task, "succeeded", ""))
	b.eventuallyWoken(w, "silent", "next")
}

// If many devices are unreachable, their offers lapse sooner than the offer for a device that is only slow.
func TestOffersOfDevicesThatAreGoneLapseSooner(t *testing.T) {
	t.Parallel()
	w, least := &wakes{}, 600*time.Millisecond
	b := onServers(t, pushing(w), func(c *dispatcher.Config) { c.Offer = least })
	b.pool("a", 4, minute)
	var held, gone []string
	for i := range 24 {
		gone = append(gone, fmt.Sprint("gone", i))
	}
	held = []string{"held0", "held1", "held2", "held3"}
	b.registered(append(held, gone...)...)
	b.batch("a", nil, append(held, gone...)...)
	var tasks []devices.Task
	for _, device := range held {
		tasks = append(tasks, *b.expectPushed(device, devices.ReasonGranted).Task)
	}
	for _, device := range gone {
		b.expectPushed(device, devices.ReasonFull)
	}
	b.passing()
	for i, device := range held {
		b.pushed(device, result(tasks[i], "succeeded", ""))
	}
	b.eventually("short offer", func() bool { return len(w.woken()) > 0 && w.shortest() < least/2 })
	if n := len(w.woken()); n <= 10 {
		t.Errorf("after %d offers in vain", n)
	}
}

// The waiters of a paused batch are removed from the queue at once.
func TestABatchLeavesTheLine(t *testing.T) {
	t.Parallel()
	b := onServers(t, pushing(&wakes{}))
	b.pool("a", 1, minute)
	b.registered("first", "stays", "leaves")
	b.batch("a", nil, "first", "stays")
	leaving := b.batch("a", nil, "leaves")
	b.expectPushed("first", devices.ReasonGranted)
	b.expectPushed("stays", devices.ReasonFull)
	b.expectPushed("leaves", devices.ReasonFull)
	b.Waiters.Offers.RemoveBatch("a", leaving)
	b.eventually("line of one", func() bool {
		line, err := b.semaphore.OfferSlots(b.ctx, "a", slots.Pace{Period: minute}, nil)
		return err == nil && line.Waiting == 1
	})
}
