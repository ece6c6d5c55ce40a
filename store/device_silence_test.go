package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

func TestSilent(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(l *ledger) {
		if none, err := l.Silent(l.Context(), store.DeviceFilter{}, time.Minute, 10); err != nil || none.Looked != 0 || none.Last != "" || none.Devices != nil {
			l.Fatalf("without devices: %+v, %v", none, err)
		}
		seen := map[string]store.Seen{}
		for i := range 8 {
			id := fmt.Sprintf("d-%d", i)
			_, err := l.EnsureDevices(l.Context(), id)
			l.must(err)
			if i != 7 { // never seen
				seen[id] = store.Seen{At: time.Now().Add(-time.Duration(i%2) * time.Hour)}
			}
		}
		l.must(l.TouchDevices(l.Context(), seen))
		l.must(l.SetBlocked(l.Context(), "op", "d-3", true))
		no := false
		for _, c := range []struct {
			filter store.DeviceFilter
			shown  int
			want   string
		}{
			{store.DeviceFilter{}, 10, "8 to d-7: d-1 d-3 d-5 d-7"},
			{store.DeviceFilter{}, 2, "8 to d-7: d-1 d-3"},
			{store.DeviceFilter{Limit: 3}, 10, "3 to d-2: d-1"},
			{store.DeviceFilter{After: "d-5", Limit: 1}, 10, "1 to d-6:"},
			{store.DeviceFilter{After: "d-2", Blocked: &no}, 10, "4 to d-7: d-5 d-7"},
			{store.DeviceFilter{Prefix: "d-1"}, 10, "1 to d-1: d-1"},
			{store.DeviceFilter{Tags: map[string]string{"site": "b"}}, 10, "0 to :"},
		} {
			s, err := l.Silent(l.Context(), c.filter, time.Minute, c.shown)
			l.must(err)
			got := fmt.Sprintf("%d to %s:", s.Looked, s.Last)
			for _, d := range s.Devices {
				got += " " + d.ID
			}
			if got != c.want {
				l.Errorf("%+v, %d shown: %q, want %q", c.filter, c.shown, got, c.want)
			}
		}
	})
}
