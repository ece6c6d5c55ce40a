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
	b := light(t)
	b.pool("a", 1, minute)
	for name, newer := range map[string]func(device string){
		"parked":         func(device string) { b.parks(device) },
		"answered":       func(device string) { b.expectReason(device, `{}`, devices.ReasonNone) },
		"reporting only": func(device string) { b.expectReason(device, `{"accept":false}`, devices.ReasonDeclined) },
	} {
		device := strings.ReplaceAll(name, " ", "-")
		older := b.parks(device)
		newer(device)
		if a := older.answered(); a.Reason != devices.ReasonNone || a.Re != device+"-waits" || a.ReportAfterMS < 1000 {
			t.Errorf("%s: the older report got %+v, want none, and no haste", name, a)
		}
	}
	b.batch("a", nil, "parked")
	wake(b.Dispatcher, "parked")
}

// A grant to an older report of a device is not lost. The newer report of the device, which was refused
// before the grant, gets the same grant.
func TestGrantToAnOlderReportReachesTheNewer(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.pool("a", 1, minute)
	older := b.parks("d1")
	b.batch("a", nil, "d1")
	var newer *waiting
	spies.before("Claim", func() {
		spies.ease()
		// The newer report is refused: the older one has the slot, but no grant yet.
		newer = b.parks("d1")
	})
	wake(b.Dispatcher, "d1")
	first := older.answered()
	if first.Task == nil {
		t.Fatalf("%+v, want a grant", first)
	}
	a := newer.answered()
	if a.Task == nil || a.Task.Token != first.Task.Token || a.Task.Redelivered != 1 {
		t.Errorf("the newer report got %+v, want the grant %d again", a, first.Task.Token)
	}
}

func TestNewestReportWinsOverReplicas(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		other := b.replica()
		b.pool("a", 1, minute)
		replicas := []*dispatcher.Dispatcher{b.Dispatcher, other}
		var older *waiting
		for n := range 6 {
			w := b.wait(replicas[n%2], fleetCaller("d1"), fmt.Sprintf(`{"id":"%d"}`, n), long)
			w.isParked()
			if older != nil {
				if a := older.answered(); a.Reason != devices.ReasonNone || a.Re != strconv.Itoa(n-1) {
					b.t.Errorf("%+v, want none for report %d", a, n-1)
				}
			}
			older = w
		}
		older.stillParked()
		b.batch("a", nil, "d1")
		wake(other, "d1")
		if a := older.answered(); a.Task == nil {
			b.t.Errorf("the newest: %+v, want a grant", a)
		}
	})
}
