package dispatcher_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
)

func TestNewestReportOfADeviceWins(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 1, minute)
	for name, newer := range map[string]func(device string){
		"parked":         func(device string) { b.parkReport(device) },
		"answered":       func(device string) { b.expectReason(device, `{}`, devices.ReasonNone) },
		"reporting only": func(device string) { b.expectReason(device, `{"accept":false}`, devices.ReasonDeclined) },
	} {
		device := strings.ReplaceAll(name, " ", "-")
		older := b.parkReport(device)
		newer(device)
		if a := older.awaitAnswer(); a.Reason != devices.ReasonNone || a.Re != device+"-waits" || a.ReportAfterMS < 1000 {
			t.Errorf("%s: the older report got %+v, want none, and no haste", name, a)
		}
	}
	b.createBatch("a", nil, "parked")
	notifyOffer(b.Dispatcher, "parked")
}

// An older report of a device is granted a task after its newer report was refused. The grant must not be lost: the newer report must get
// the same grant.
func TestGrantToAnOlderReportReachesTheNewer(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 1, minute)
	older := b.parkReport("d1")
	b.createBatch("a", nil, "d1")
	var newer *pendingReport
	spies.runBefore("Claim", func() {
		spies.removeHooks()
		// The newer report is refused, because the older one has taken the slot but has no grant yet.
		newer = b.parkReport("d1")
	})
	notifyOffer(b.Dispatcher, "d1")
	first := older.awaitAnswer()
	if first.Task == nil {
		t.Fatalf("%+v, want a grant", first)
	}
	a := newer.awaitAnswer()
	if a.Task == nil || a.Task.Token != first.Task.Token || a.Task.Redelivered != 1 {
		t.Errorf("the newer report got %+v, want the grant %d again", a, first.Task.Token)
	}
}

func TestNewestReportWinsOverReplicas(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		other := b.addParkingReplica()
		b.createPool("a", 1, minute)
		replicas := []*dispatcher.Dispatcher{b.Dispatcher, other}
		var older *pendingReport
		for n := range 6 {
			w := b.startReport(replicas[n%2], fleetCaller("d1"), fmt.Sprintf(`{"id":"%d"}`, n), long)
			w.awaitParked()
			if older != nil {
				if a := older.awaitAnswer(); a.Reason != devices.ReasonNone || a.Re != strconv.Itoa(n-1) {
					b.t.Errorf("%+v, want none for report %d", a, n-1)
				}
			}
			older = w
		}
		older.expectStillParked()
		b.createBatch("a", nil, "d1")
		notifyOffer(other, "d1")
		if a := older.awaitAnswer(); a.Task == nil {
			b.t.Errorf("the newest: %+v, want a grant", a)
		}
	})
}
