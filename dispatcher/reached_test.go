package dispatcher_test

import (
	"context"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/store"
)

// touchingStore is a ledger that records which devices are written, and with which reach (the way to wake them).
type touchingStore struct {
	dispatcher.Store
	mu           sync.Mutex
	writtenReach map[string]store.Reach
}

func (s *touchingStore) TouchDevices(ctx context.Context, seen map[string]store.LastReport) error {
	s.mu.Lock()
	for device, last := range seen {
		s.writtenReach[device] = last.Reach
	}
	s.mu.Unlock()
	return s.Store.TouchDevices(ctx, seen)
}

// A device reports, and a task is queued for it shortly afterwards. The search for devices must find that the device can be woken. So its
// reach (how it can be woken) must be written to the ledger soon after the report, but only if the ledger has another reach.
func TestReachIsWrittenSoon(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		touching := &touchingStore{Store: b.store, writtenReach: map[string]store.Reach{}}
		d := dispatcher.New(dispatcher.Config{Store: touching, Semaphore: b.semaphore, Waker: &wakeRecorder{}, FleetTokens: []string{"0123456789abcdef"}})
		b.Dispatcher = d
		b.registerDevices("woken")
		expect := func(want map[string]store.Reach) {
			b.t.Helper()
			b.must(d.Seen.FlushReached(b.ctx))
			if len(touching.writtenReach) != len(want) {
				b.t.Fatalf("written %v, want %v", touching.writtenReach, want)
			}
			for device, reach := range want {
				got, err := b.store.Device(b.ctx, device)
				if err != nil || got.Reach != reach || touching.writtenReach[device] != reach {
					b.t.Errorf("%s can be told by %d (%v), written %v", device, got.Reach, err, touching.writtenReach)
				}
			}
			touching.writtenReach = map[string]store.Reach{}
		}
		b.reportOverSession("woken", `{"id":"1"}`)
		b.sendReport("polls", `{}`)
		expect(map[string]store.Reach{"woken": store.ReachPush})
		b.reportOverSession("woken", `{"id":"2"}`)
		expect(nil)
		b.sendReport("woken", `{}`) // now the device polls
		expect(map[string]store.Reach{"woken": store.ReachNone})
	})
}
