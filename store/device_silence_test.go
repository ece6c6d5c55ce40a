package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

func TestSilent(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		if none, err := l.SilentDevices(l.Context(), store.DeviceFilter{}, time.Minute, 10); err != nil || none.ContinueAfter != "" || none.Devices != nil {
			l.Fatalf("without devices: %+v, %v", none, err)
		}
		seen := map[string]store.LastReport{}
		for i := range 8 {
			id := fmt.Sprintf("d-%d", i)
			_, err := l.EnsureDevices(l.Context(), id)
			l.must(err)
			if i != 7 { // This device was never seen.
				seen[id] = store.LastReport{At: time.Now().Add(-time.Duration(i%2) * time.Hour)}
			}
		}
		_, err := l.EnsureDevices(l.Context(), "d-8") // The QuietUntil of this device is now.
		l.must(err)
		seen["d-8"] = store.LastReport{At: time.Now().Add(-time.Hour), QuietUntil: time.Now()}
		l.must(l.TouchDevices(l.Context(), seen))
		if n, err := l.CountReporting(l.Context(), time.Minute); n != 4 || err != nil {
			l.Errorf("%d devices report, %v; want the four with even numbers", n, err)
		}
		l.must(l.SetBlocked(l.Context(), "op", "d-3", true, ""))
		no := false
		for _, c := range []struct {
			filter store.DeviceFilter
			looked int
			want   string
		}{
			{store.DeviceFilter{}, 10, "d-1 d-3 d-5 d-7, beyond "},
			{store.DeviceFilter{Limit: 2}, 10, "d-1 d-3, beyond "},
			{store.DeviceFilter{Limit: 2}, 4, "d-1 d-3, beyond "}, // The search ended after four devices.
			{store.DeviceFilter{}, 3, "d-1, beyond d-2"},
			{store.DeviceFilter{After: "d-5"}, 1, ", beyond d-6"},
			{store.DeviceFilter{After: "d-2", Blocked: &no}, 10, "d-5 d-7, beyond "},
			{store.DeviceFilter{Prefix: "d-1"}, 10, "d-1, beyond "},
			{store.DeviceFilter{Tags: map[string]string{"site": "b"}}, 10, ", beyond "},
		} {
			s, err := l.SilentDevices(l.Context(), c.filter, time.Minute, c.looked)
			l.must(err)
			var ids []string
			for _, d := range s.Devices {
				ids = append(ids, d.ID)
			}
			if got := strings.Join(ids, " ") + ", beyond " + s.ContinueAfter; got != c.want {
				l.Errorf("%+v, %d looked at: %q, want %q", c.filter, c.looked, got, c.want)
			}
		}
	})
}

// TestDevicesAreFoundByTheirRegistration checks the search by registrant and by the time of the registration, alone and together with other
// filters. A search must read a limited number of devices.
func TestDevicesAreFoundByTheirRegistration(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		register := func(by string, ids ...string) {
			for _, id := range ids {
				_, err := l.RegisterDevices(l.Context(), store.Registration{Device: id, Registrant: by})
				l.must(err)
			}
		}
		register("fleet:1", "d-1", "d-3", "e-1")
		register("fleet:2", "d-2", "d-4")
		l.exec(`UPDATE devices SET created_at = created_at - 3600000 * {ms} WHERE id IN ('d-1', 'd-2')`)
		l.must(l.SetBlocked(l.Context(), "op", "d-3", true, ""))
		yes, halfAnHourAgo := true, time.Now().Add(-30*time.Minute)
		for _, c := range []struct {
			filter store.DeviceFilter
			looked int
			want   string
		}{
			{store.DeviceFilter{RegisteredBy: "fleet:1"}, 10, "d-1 d-3 e-1, beyond "},
			{store.DeviceFilter{RegisteredBy: "fleet:1", Prefix: "d-"}, 10, "d-1 d-3, beyond "},
			{store.DeviceFilter{RegisteredBy: "fleet:1", Blocked: &yes}, 10, "d-3, beyond "},
			{store.DeviceFilter{CreatedSince: halfAnHourAgo}, 10, "d-3 d-4 e-1, beyond "},
			{store.DeviceFilter{CreatedSince: halfAnHourAgo, RegisteredBy: "fleet:2"}, 10, "d-4, beyond "},
			{store.DeviceFilter{RegisteredBy: "fleet:2", Limit: 1}, 10, "d-2, beyond "},
			{store.DeviceFilter{RegisteredBy: "fleet:2"}, 3, "d-2, beyond d-3"},
			{store.DeviceFilter{RegisteredBy: "fleet:3"}, 10, ", beyond "},
		} {
			s, err := l.SearchDevices(l.Context(), c.filter, c.looked)
			l.must(err)
			var ids []string
			for _, d := range s.Devices {
				ids = append(ids, d.ID)
			}
			if got := strings.Join(ids, " ") + ", beyond " + s.ContinueAfter; got != c.want {
				l.Errorf("%+v, %d looked at: %q, want %q", c.filter, c.looked, got, c.want)
			}
		}
		silent, err := l.SilentDevices(l.Context(), store.DeviceFilter{RegisteredBy: "fleet:2", CreatedSince: halfAnHourAgo}, time.Minute, 10)
		if err != nil || len(silent.Devices) != 1 || silent.Devices[0].ID != "d-4" {
			l.Errorf("silent devices: %+v, %v, want d-4", silent.Devices, err)
		}
	})
}
