package dispatcher_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/store"
)

// wakeRecorder records the devices that were woken.
type wakeRecorder struct {
	mu      sync.Mutex
	wakeUps []string
	minHold time.Duration // shortest hold time of an offer

	offers    []string                 // like wakeUps, but without repeated wake-ups for the same offer
	lastHolds map[string]time.Duration // hold time of the last offer of each device
}

// resendAfter is the time after which Redis returns an offer again if it has not received the update OfferSent. On
// a busy machine this update can be late. Then a device is woken twice for one offer.
const resendAfter = 500 * time.Millisecond

// Wake records that the device was woken for an offer, and how long the slot is held for it.
func (w *wakeRecorder) Wake(device devices.ID, hold time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakeUps = append(w.wakeUps, string(device))
	if before, known := w.lastHolds[string(device)]; !known || hold > before-resendAfter {
		w.offers = append(w.offers, string(device))
	}
	if w.lastHolds == nil {
		w.lastHolds = map[string]time.Duration{}
	}
	w.lastHolds[string(device)] = hold
	if w.minHold == 0 || hold < w.minHold {
		w.minHold = hold
	}
}

// offeredDevices returns the devices that were woken, each device once for each of its offers.
func (w *wakeRecorder) offeredDevices() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.offers)
}

// wokenDevices returns the device of each wake-up, also if it was woken twice for one offer.
func (w *wakeRecorder) wokenDevices() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.wakeUps)
}

func (w *wakeRecorder) shortestHold() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.minHold
}

// withWaker configures a dispatcher that can wake devices by a push. w records the wake-ups.
func withWaker(w *wakeRecorder) func(*dispatcher.Config) {
	// Offers last for a minute, so that no offer lapses because the machine stalls.
	return func(c *dispatcher.Config) { c.Waker, c.Offer = w, minute }
}

// reportOverSession sends a report of the device over its session at the broker.
func (b *testBench) reportOverSession(device, body string) devices.Reply {
	b.t.Helper()
	report, err := devices.DecodeReport([]byte(body))
	b.must(err)
	for try := 0; ; try++ {
		reply, err := b.HandleReport(b.ctx, devices.Caller{Device: devices.ID(device), Via: devices.ViaSession}, report)
		if err == nil && !isUndecided(reply, nil) {
			return reply
		}
		if try == maxRetries {
			b.t.Fatalf("report of %s: %s, %v", device, reply.Reason, err)
		}
	}
}

func (b *testBench) expectSessionReason(device string, want devices.Reason) devices.Reply {
	b.t.Helper()
	reply := b.reportOverSession(device, `{"id":"p"}`)
	if reply.Reason != want {
		b.t.Fatalf("%s: %s, want %s", device, reply.Reason, want)
	}
	return reply
}

// registerDevices registers devices that report over a session at the broker.
func (b *testBench) registerDevices(names ...string) {
	b.t.Helper()
	all := make([]store.Registration, len(names))
	for i, name := range names {
		all[i] = store.Registration{Device: name, Registrant: "fleet:test"}
	}
	_, err := b.store.RegisterDevices(b.ctx, all...)
	b.must(err)
}

// awaitWoken waits until exactly these devices were woken. A device is listed once for each of its offers.
func (b *testBench) awaitWoken(w *wakeRecorder, want ...string) {
	b.t.Helper()
	slices.Sort(want)
	b.awaitCondition(fmt.Sprintf("waking of %q", want), func() bool { return len(w.offeredDevices()) >= len(want) })
	got := w.offeredDevices()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		b.t.Fatalf("woken %q, want %q", got, want)
	}
}

// runFillPasses runs the pass `hand on` again and again until the test ends, as a replica does.
func (b *testBench) runFillPasses() {
	done := make(chan struct{})
	var wait sync.WaitGroup
	b.t.Cleanup(func() {
		close(done)
		wait.Wait()
	})
	wait.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				_ = b.Waiters.Filler.FillAllPools(context.Background())
			}
		}
	})
}

// A device frees its slot. The slot must be reserved for the first device in the queue, and this device must be woken. Another device that
// reports in the meantime must not get the slot.
func TestAFreedSlotIsHandedOn(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]func(testing.TB, ...func(*dispatcher.Config)) *testBench{"embedded": newEmbeddedBench, "servers": newServerBench} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &wakeRecorder{}
			b := backend(t, withWaker(w))
			b.createPool("a", 1, minute)
			b.registerDevices("first", "second", "third")
			b.createBatch("a", nil, "first", "second", "third", "polls")
			held := b.expectSessionReason("first", devices.ReasonGranted)
			b.expectSessionReason("third", devices.ReasonFull)
			b.expectSessionReason("second", devices.ReasonFull)
			b.reportOverSession("first", resultReport(*held.Task, "succeeded", ""))
			b.awaitWoken(w, "second")
			if w.minHold <= 0 || w.minHold > minute {
				t.Errorf("kept for %s", w.minHold)
			}
			b.expectReason("polls", `{}`, devices.ReasonFull)
			b.expectSessionReason("third", devices.ReasonFull)
			held = b.expectSessionReason("second", devices.ReasonGranted)
			b.reportOverSession("second", resultReport(*held.Task, "succeeded", ""))
			b.awaitWoken(w, "second", "third")
		})
	}
}

// A task is queued for each of several devices that sleep: they are in no queue. The replica that queued the tasks must find the devices at
// once. At any other replica, the pass "hand on" must find them.
func TestSleepersAreFound(t *testing.T) {
	t.Parallel()
	for name, findSleepers := range map[string]func(b *testBench){
		"at once":     func(b *testBench) { b.Waiters.Filler.FillPool("a") },
		"by the pass": func(b *testBench) { b.runFillPasses() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &wakeRecorder{}
			test := func(b *testBench) {
				b.createPool("a", 2, minute)
				b.reconcile()
				b.registerDevices("d1", "d2", "d3", "unseen")
				for _, device := range []string{"d1", "d2", "d3"} {
					b.expectSessionReason(device, devices.ReasonNone)
				}
				b.must(b.Seen.Flush(b.ctx))
				priority := -5
				b.createBatch("a", func(in *store.Batch) { in.Priority = priority }, "unseen", "d3", "d1", "d2")
				findSleepers(b)
				b.awaitWoken(w, "d3", "d1")
				b.expectSessionReason("d2", devices.ReasonFull)
				b.expectSessionReason("d3", devices.ReasonGranted)
				b.expectSessionReason("d1", devices.ReasonGranted)
			}
			test(newServerBench(t, withWaker(w)))
		})
	}
}
