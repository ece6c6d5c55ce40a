package waiters

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
)

// A parked report receives messages about two pools before its next Poll. Poll must return the offers of both pools.
func TestPollReturnsTheOffersOfAllMessages(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	parks := newParkedReports(1, func() time.Time { return now })
	p := NewParkedReport("d", time.Minute)
	if !parks.ReplaceOlderReport("d", p) {
		t.Fatal("not entered")
	}
	parks.wakeOwnReports([]parked.WakeMessage{{Device: "d", Pool: "a", Age: time.Second}, {Device: "d"}, {Device: "d", Pool: "a"}, {Device: "d", Pool: "b"}})
	want := WakeCall{Woken: true, Offered: []string{"a", "b"}, Pool: "b", WokenAt: now}
	if _, got := parks.Poll(p); !cmp.Equal(want, got) {
		t.Error(cmp.Diff(want, got))
	}
	if _, again := parks.Poll(p); !cmp.Equal(WakeCall{}, again) {
		t.Errorf("the second Poll: %+v", again)
	}
}
