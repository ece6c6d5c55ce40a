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

// An offer goes on, in the same step, to the first who can use it: past the
// blocked, those who are busy elsewhere, and those of whose batch nothing starts.
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

	// The busy device kept its turn, and is told once it asked again.
	line, err := b.semaphore.OfferSlots(b.ctx, "a", slots.Pace{Period: minute, Offer: minute}, nil)
	if err != nil || line.Waiting != 1 {
		t.Errorf("line %+v, %v: want who was busy, and nobody else", line, err)
	}
	b.pushed("busy", result(*elsewhere.Task, "succeeded", ""))
	b.pushed("able", result(*next.Task, "succeeded", ""))
	b.eventuallyWoken(w, "able", "busy")
}

// A device with work in several pools starts where a slot is kept for it, and
// keeps no second slot waiting.
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
	b.pushed("one", result(*one.Task, "succeeded", "")) // now both pools keep one
	b.eventuallyWoken(w, "waits", "waits")
	got := b.expectPushed("waits", devices.ReasonGranted)
	if got.Task.Pool != "a" { // of the older batch
		t.Errorf("granted in %s, want a", got.Task.Pool)
	}
	b.eventuallyWoken(w, "waits", "waits", "next") // the other slot at once
}

// Where a slot is kept goes before the pool of an older batch, that has room.
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

// lossySemaphore loses offers: its replica ends between a release and the waking.
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

// A Redis that lost everything: the line is as it was after the next reports,
// whoever comes first, for its order is that of the tasks.
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

// A device that does not come is passed over, and the slot goes to the next.
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

// When a network is down, its devices do not each keep a slot idle for as long as
// one that is only slow.
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

// A batch that is paused leaves the line at once.
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
