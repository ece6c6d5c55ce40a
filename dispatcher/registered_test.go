package dispatcher_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/store"
)

// TestARegistrationIsCountedAndRecorded checks that the registration of a device by a fleet token is counted once, and that its event names
// the token and the address of the sender.
func TestARegistrationIsCountedAndRecorded(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	b := newLightBench(t, func(c *dispatcher.Config) { c.Registerer = metrics })
	caller, err := b.Authenticate(b.ctx, "d1", fleetToken)
	b.must(err)
	for _, address := range []string{"192.0.2.7", "192.0.2.8"} {
		caller.From = netip.MustParseAddr(address)
		_, err := b.HandleReport(b.ctx, caller, devices.Report{Accept: true})
		b.must(err)
	}
	if _, isLast := b.Devices.ReachAtAdmission(devices.Caller{Device: "d1", Via: caller.Via, Token: caller.Token}); !isLast {
		t.Error("the admission of a device depends on its address")
	}
	_, err = b.reportOverBroker("d2", "r")
	b.must(err)
	const fleet = "fleet:1dbfcd3a" // printf %s fleet-token-of-the-tests | sha256sum
	events, err := b.store.Events(b.ctx, store.EventFilter{Kind: "device.created"})
	b.must(err)
	if len(events) != 2 || events[0].Actor != fleet || events[0].Detail != "from=192.0.2.7" || events[1].Actor != "session" {
		t.Errorf("events: %+v", events)
	}
	families, err := metrics.Gather()
	b.must(err)
	counts := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "dispatcher_devices_registered_total" {
				counts[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if diff := cmp.Diff(map[string]float64{fleet: 1, "session": 1}, counts); diff != "" {
		t.Error(diff)
	}
}
