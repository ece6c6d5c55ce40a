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
		_, err := l.EnsureDevices(l.Context(), "d-8") // This device was asked not to report until now.
		l.must(err)
		seen["d-8"] = store.LastReport{At: time.Now().Add(-time.Hour), QuietUntil: time.Now()}
		l.must(l.TouchDevices(l.Context(), seen))
		if n, err := l.CountReporting(l.Context(), time.Minute); n != 4 || err != nil {
			l.Errorf("%d devices report, %v; want the four with even numbers", n, err)
		}
		l.must(l.SetBlocked(l.Context(), "op", "d-3", true))
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
