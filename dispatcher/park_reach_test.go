package dispatcher_test

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/store"
)

// The search for devices of new tasks reads the ledger. While a report is parked, the ledger has its device
// as reachable after the next run of the pass `reached` at each replica. An older report that could not wait,
// or a broken connection, does not change this, at whichever replica it was and in whichever order the
// replicas write.
func TestTheDeviceOfAParkedReportIsReachable(t *testing.T) {
	t.Parallel()
	type replica = *dispatcher.Dispatcher
	for name, change := range map[string]func(b *bench, one, other replica) (writeInOrder []replica){
		"one replica": func(b *bench, one, other replica) []replica {
			b.polls(one, "d")
			b.parksAt(one, "d")
			return []replica{one, other}
		},
		"the older report is written last": func(b *bench, one, other replica) []replica {
			b.polls(one, "d")
			b.parksAt(other, "d")
			return []replica{other, one}
		},
		"the older report is written first": func(b *bench, one, other replica) []replica {
			b.polls(one, "d")
			b.parksAt(other, "d")
			return []replica{one, other}
		},
		"the older report was parked and its connection broke": func(b *bench, one, other replica) []replica {
			b.breaks(one, "d")
			b.parksAt(other, "d")
			return []replica{other, one}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forServers(t, func(b *bench) {
				other := b.replica()
				b.isReachable("d")
				for _, at := range change(b, b.Dispatcher, other) {
					b.must(at.Seen.FlushReached(b.ctx))
				}
				b.expectReach("d", store.ReachPark)
			})
		})
	}
}

// The connection of a report breaks while another replica reads the next report of its device, before the
// next report is announced. The departure is newer than the data that the next report has read.
func TestADepartureDuringTheNextReportLeavesItReachable(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		one := b.parking()
		other := b.parking(func(c *dispatcher.Config) {
			c.Parking = &hooked{Parking: parked.New(b.redis, b.database), before: func() { b.breaks(one, "d") }}
		})
		b.isReachable("d")
		b.parksAt(other, "d")
		b.eventually("the device is reachable", func() bool {
			b.must(other.Seen.FlushReached(b.ctx))
			b.must(one.Seen.FlushReached(b.ctx))
			device, err := b.store.Device(b.ctx, "d")
			return err == nil && device.Reach == store.ReachPark
		})
	})
}

// A parked report counts as a report in each report period. A device that waits for more than three periods
// is therefore not treated as gone.
func TestTheDeviceOfAParkedReportIsSeenInEachPeriod(t *testing.T) {
	t.Parallel()
	b := light(t, func(c *dispatcher.Config) { c.ReportPeriod = 10 * time.Millisecond })
	b.parks("d")
	first := b.Seen.At("d")
	b.eventually("three periods later", func() bool { return b.Seen.At("d").Sub(first) >= 30*time.Millisecond })
	b.must(b.Seen.Flush(b.ctx))
	b.expectReach("d", store.ReachPark)
}

// isReachable registers a device and sets its reach in the ledger to a parked report.
func (b *bench) isReachable(device string) {
	b.t.Helper()
	b.registered(device)
	d, err := b.store.Device(b.ctx, device)
	b.must(err)
	b.must(b.store.TouchDevices(b.ctx, map[string]store.Seen{device: {At: d.CreatedAt, Reach: store.ReachPark}}))
}

// polls sends a report without a wait to a replica.
func (b *bench) polls(at *dispatcher.Dispatcher, device string) {
	b.t.Helper()
	_, err := at.HandleReport(b.ctx, fleetCaller(device), devices.Report{ID: "polls", Accept: true})
	b.must(err)
}

// parksAt parks a report at a replica.
func (b *bench) parksAt(at *dispatcher.Dispatcher, device string) *waiting {
	b.t.Helper()
	w := b.wait(at, fleetCaller(device), `{"id":"waits"}`, long)
	w.isParked()
	return w
}

// breaks parks a report at a replica, breaks its connection and waits until the departure is recorded.
func (b *bench) breaks(at *dispatcher.Dispatcher, device string) {
	b.t.Helper()
	w := b.parksAt(at, device)
	w.leave()
	w.answered()
	b.must(at.Waiters.Stop(b.ctx))
}

func (b *bench) expectReach(device string, want store.Reach) {
	b.t.Helper()
	got, err := b.store.Device(b.ctx, device)
	if err != nil || got.Reach != want {
		b.t.Errorf("the ledger has reach %d of %s, want %d: %v", got.Reach, device, want, err)
	}
}
