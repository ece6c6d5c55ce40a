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

// wakes records the devices that were woken.
type wakes struct {
	mu  sync.Mutex
	all []string
	low time.Duration // shortest hold time of an offer

	offers []string                 // like all, but without repeated wake-ups for the same offer
	kept   map[string]time.Duration // hold time of the last offer of each device
}

// resend is the time after which Redis returns an offer again if the update OfferSent has not arrived. On a
// busy machine the update can be late, and then a device is woken twice for one offer.
const resend = 500 * time.Millisecond

// Wake records a wake-up.
func (w *wakes) Wake(device devices.ID, hold time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, string(device))
	if before, known := w.kept[string(device)]; !known || hold > before-resend {
		w.offers = append(w.offers, string(device))
	}
	if w.kept == nil {
		w.kept = map[string]time.Duration{}
	}
	w.kept[string(device)] = hold
	if w.low == 0 || hold < w.low {
		w.low = hold
	}
}

// offered returns the woken devices, each device once for each offer.
func (w *wakes) offered() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.offers)
}

// woken returns the devices of all wake-ups.
func (w *wakes) woken() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}

func (w *wakes) shortest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.low
}

// pushing configures a dispatcher that reaches devices by push.
func pushing(w *wakes) func(*dispatcher.Config) {
	// Offers last for a minute, so that no offer lapses because the machine stalls.
	return func(c *dispatcher.Config) { c.Waker, c.Offer = w, minute }
}

// pushed sends a report of a session at the broker.
func (b *bench) pushed(device, body string) devices.Reply {
	b.t.Helper()
	report, err := devices.DecodeReport([]byte(body))
	if err != nil {
		b.t.Fatal(err)
	}
	for try := 0; ; try++ {
		reply, err := b.HandleReport(b.ctx, devices.Caller{Device: devices.ID(device), Via: devices.ViaSession}, report)
		if err == nil && !undecided(reply, nil) {
			return reply
		}
		if try == retries {
			b.t.Fatalf("report of %s: %s, %v", device, reply.Reason, err)
		}
	}
}

func (b *bench) expectPushed(device string, want devices.Reason) devices.Reply {
	b.t.Helper()
	reply := b.pushed(device, `{"id":"p"}`)
	if reply.Reason != want {
		b.t.Fatalf("%s: %s, want %s", device, reply.Reason, want)
	}
	return reply
}

// registered registers devices that report by a session at the broker.
func (b *bench) registered(names ...string) {
	b.t.Helper()
	for _, name := range names {
		if _, err := b.store.EnsureDevices(b.ctx, name); err != nil {
			b.t.Fatal(err)
		}
	}
}

// eventuallyWoken waits until exactly these devices were woken. A device is named once for each offer.
func (b *bench) eventuallyWoken(w *wakes, want ...string) {
	b.t.Helper()
	slices.Sort(want)
	b.eventually(fmt.Sprintf("waking of %q", want), func() bool { return len(w.offered()) >= len(want) })
	got := w.offered()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		b.t.Fatalf("woken %q, want %q", got, want)
	}
}

// passing runs the pass `hand on` repeatedly, as a replica does.
func (b *bench) passing() {
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
				_ = b.Waiters.Filler.FillAll(context.Background())
			}
		}
	})
}

// A free slot is kept for the first device in the queue, which is woken. Another device that reports in the
// meantime does not get the slot.
func TestAFreedSlotIsHandedOn(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]func(testing.TB, ...func(*dispatcher.Config)) *bench{"embedded": embedded, "servers": onServers} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &wakes{}
			b := backend(t, pushing(w))
			b.pool("a", 1, minute)
			b.registered("first", "second", "third")
			b.batch("a", nil, "first", "second", "third", "polls")
			held := b.expectPushed("first", devices.ReasonGranted)
			b.expectPushed("third", devices.ReasonFull)
			b.expectPushed("second", devices.ReasonFull)
			b.pushed("first", result(*held.Task, "succeeded", ""))
			b.eventuallyWoken(w, "second")
			if w.low <= 0 || w.low > minute {
				t.Errorf("kept for %s", w.low)
			}
			b.expectReason("polls", `{}`, devices.ReasonFull)
			b.expectPushed("third", devices.ReasonFull)
			held = b.expectPushed("second", devices.ReasonGranted)
			b.pushed("second", result(*held.Task, "succeeded", ""))
			b.eventuallyWoken(w, "second", "third")
		})
	}
}

// Devices that sleep, and are in no queue, are found in the ledger: immediately by the replica that took the
// change, and by the pass.
func TestSleepersAreFound(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]func(b *bench){
		"at once":     func(b *bench) { b.Waiters.Filler.Fill("a") },
		"by the pass": func(b *bench) { b.passing() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &wakes{}
			test := func(b *bench) {
				b.pool("a", 2, minute)
				b.reconcile()
				b.registered("d1", "d2", "d3", "unseen")
				for _, device := range []string{"d1", "d2", "d3"} {
					b.expectPushed(device, devices.ReasonNone)
				}
				b.must(b.Seen.Flush(b.ctx))
				priority := -5
				b.batch("a", func(in *store.Batch) { in.Priority = priority }, "unseen", "d3", "d1", "d2")
				look(b)
				b.eventuallyWoken(w, "d3", "d1")
				b.expectPushed("d2", devices.ReasonFull)
				b.expectPushed("d3", devices.ReasonGranted)
				b.expectPushed("d1", devices.ReasonGranted)
			}
			test(onServers(t, pushing(w)))
		})
	}
}
