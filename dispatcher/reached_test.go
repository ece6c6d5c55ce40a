package dispatcher_test

import (
	"context"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/store"
)

// touchingStore records the devices that are written and their reach.
type touchingStore struct {
	dispatcher.Store
	mu      sync.Mutex
	touched map[string]store.Reach
}

func (s *touchingStore) TouchDevices(ctx context.Context, seen map[string]store.Seen) error {
	s.mu.Lock()
	for device, last := range seen {
		s.touched[device] = last.Reach
	}
	s.mu.Unlock()
	return s.Store.TouchDevices(ctx, seen)
}

// A task that is queued shortly after a report must find the device. The reach of the device is therefore
// written soon, but only if the ledger has another reach.
func TestReachIsWrittenSoon(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		touching := &touchingStore{Store: b.store, touched: map[string]store.Reach{}}
		d := dispatcher.New(dispatcher.Config{Store: touching, Semaphore: b.semaphore, Waker: &wakes{}, FleetTokens: []string{"0123456789abcdef"}})
		b.Dispatcher = d
		b.registered("woken")
		expect := func(want map[string]store.Reach) {
			b.t.Helper()
			b.must(d.Seen.FlushReached(b.ctx))
			if len(touching.touched) != len(want) {
				b.t.Fatalf("written %v, want %v", touching.touched, want)
			}
			for device, reach := range want {
				got, err := b.store.Device(b.ctx, device)
				if err != nil || got.Reach != reach || touching.touched[device] != reach {
					b.t.Errorf("%s can be told by %d (%v), written %v", device, got.Reach, err, touching.touched)
				}
			}
			touching.touched = map[string]store.Reach{}
		}
		b.pushed("woken", `{"id":"1"}`)
		b.report("polls", `{}`)
		expect(map[string]store.Reach{"woken": store.ReachPush})
		b.pushed("woken", `{"id":"2"}`)
		expect(nil)
		b.report("woken", `{}`) // now the device polls
		expect(map[string]store.Reach{"woken": store.ReachNone})
	})
}
