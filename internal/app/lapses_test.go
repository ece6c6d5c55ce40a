package app

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestSlotsAreTakenBackWhenTheirLeaseEnds checks a replica whose pass for ended leases runs only once an hour.
// Nevertheless each slot must be reaped when its lease ends, even if the lease was granted after an earlier lease had
// ended.
func TestSlotsAreTakenBackWhenTheirLeaseEnds(t *testing.T) {
	t.Parallel()
	d, err := NewDev(t.Context(), devOptions(t.TempDir()))
	must.Succeed(t, err)
	for _, p := range d.app.passes.all {
		if p.name == "reap" {
			p.every = time.Hour
		}
	}
	i := startInstance(t, instance{url: d.URL, admin: d.AdminToken, fleet: d.FleetToken}, d.Run)
	i.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":1,"lease_ms":3000}`)
	i.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","max_attempts":1,"devices":["d1","d2","d3"]}`)
	for n := 1; n <= 3; n++ {
		await.True(t, "a slot for the next one", func() bool {
			return i.sendReport(t, fmt.Sprintf("d%d", n), `{"id":"x"}`).Reason == devices.ReasonGranted
		})
	}
}

// TestALeaseThatIsOverIsLookedAtAgain checks a lease that is over but could not be reaped on time: the replica soon
// tries again.
func TestALeaseThatIsOverIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]struct {
		wait time.Duration
		ends bool
	}{
		time.Hour:              {time.Second, false},
		time.Second:            {1050 * time.Millisecond, true},
		-10 * time.Millisecond: {50 * time.Millisecond, true},
		-time.Hour:             {time.Second, true},
	} {
		if wait, ends := waitForLeaseEnd(left); wait != want.wait || ends != want.ends {
			t.Errorf("%s left: wait %s, %t; want %s, %t", left, wait, ends, want.wait, want.ends)
		}
	}
}
