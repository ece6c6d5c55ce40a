package dispatcher_test

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/store"
)

// The search for devices of new tasks reads from the ledger which devices can be woken. While a device has a parked report, the ledger must
// list the device as reachable after the next run of the pass `reached` at each replica. There may also be an older report that could not
// wait, or a connection that broke, at any of the replicas. This must not change the result, in whichever order the replicas write.
func TestTheDeviceOfAParkedReportIsReachable(t *testing.T) {
	t.Parallel()
	type replica = *dispatcher.Dispatcher
	for name, change := range map[string]func(b *testBench, one, other replica) (writeInOrder []replica){
		"one replica": func(b *testBench, one, other replica) []replica {
			b.sendPoll(one, "d")
			b.parkReportAt(one, "d")
			return []replica{one, other}
		},
		"the older report is written last": func(b *testBench, one, other replica) []replica {
			b.sendPoll(one, "d")
			b.parkReportAt(other, "d")
			return []replica{other, one}
		},
		"the older report is written first": func(b *testBench, one, other replica) []replica {
			b.sendPoll(one, "d")
			b.parkReportAt(other, "d")
			return []replica{one, other}
		},
		"the older report was parked and its connection broke": func(b *testBench, one, other replica) []replica {
			b.breakParkedReport(one, "d")
			b.parkReportAt(other, "d")
			return []replica{other, one}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runOnServers(t, func(b *testBench) {
				other := b.addParkingReplica()
				b.makeReachable("d")
				for _, at := range change(b, b.Dispatcher, other) {
					b.must(at.Seen.FlushReached(b.ctx))
				}
				b.expectReach("d", store.ReachPark)
			})
		})
	}
}

// A device's connection breaks while another replica handles the device's next report. This replica has read the device, and has not announced
// the report yet. So the departure is newer than the data on which the report is decided. The device must stay reachable.
func TestADepartureDuringTheNextReportLeavesItReachable(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		one := b.newParkingReplica()
		other := b.newParkingReplica(func(c *dispatcher.Config) {
			c.Parking = &hookedParking{Parking: parked.New(b.redis, b.redisDatabase), beforeNewest: func() { b.breakParkedReport(one, "d") }}
		})
		b.makeReachable("d")
		b.parkReportAt(other, "d")
		b.awaitCondition("the device is reachable", func() bool {
			b.must(other.Seen.FlushReached(b.ctx))
			b.must(one.Seen.FlushReached(b.ctx))
			device, err := b.store.Device(b.ctx, "d")
			return err == nil && device.Reach == store.ReachPark
		})
	})
}

// A device has a parked report and waits for more than three report periods. In each period, the parked report must count as a report, so
// that the device is not treated as gone.
func TestTheDeviceOfAParkedReportIsSeenInEachPeriod(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, func(c *dispatcher.Config) { c.ReportPeriod = 10 * time.Millisecond })
	b.parkReport("d")
	first := b.Seen.LastReport("d").At
	b.awaitCondition("three periods later", func() bool { return b.Seen.LastReport("d").At.Sub(first) >= 30*time.Millisecond })
	b.must(b.Seen.Flush(b.ctx))
	b.expectReach("d", store.ReachPark)
}

// makeReachable registers a device and stores in the ledger that it can be woken by a parked report.
func (b *testBench) makeReachable(device string) {
	b.t.Helper()
	b.registerDevices(device)
	d, err := b.store.Device(b.ctx, device)
	b.must(err)
	b.must(b.store.TouchDevices(b.ctx, map[string]store.LastReport{device: {At: d.CreatedAt, Reach: store.ReachPark}}))
}

// sendPoll sends a report to this replica that does not wait.
func (b *testBench) sendPoll(replica *dispatcher.Dispatcher, device string) {
	b.t.Helper()
	_, err := replica.HandleReport(b.ctx, fleetCaller(device), devices.Report{ID: "polls", Accept: true})
	b.must(err)
}

// parkReportAt sends a report of the device to this replica and waits until it is parked.
func (b *testBench) parkReportAt(replica *dispatcher.Dispatcher, device string) *pendingReport {
	b.t.Helper()
	w := b.startReport(replica, fleetCaller(device), `{"id":"waits"}`, long)
	w.awaitParked()
	return w
}

// breakParkedReport parks a report of the device at this replica and breaks its connection. It waits until the
// replica has recorded the departure.
func (b *testBench) breakParkedReport(replica *dispatcher.Dispatcher, device string) {
	b.t.Helper()
	w := b.parkReportAt(replica, device)
	w.disconnect()
	w.awaitAnswer()
	b.must(replica.Waiters.Stop(b.ctx))
}

func (b *testBench) expectReach(device string, want store.Reach) {
	b.t.Helper()
	got, err := b.store.Device(b.ctx, device)
	if err != nil || got.Reach != want {
		b.t.Errorf("the ledger has reach %d of %s, want %d: %v", got.Reach, device, want, err)
	}
}
