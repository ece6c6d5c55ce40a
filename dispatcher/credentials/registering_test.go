package credentials_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/store"
)

var errBad = errors.New("bad")

// gatedLedger is a ledger whose calls wait: each call returns only after the test has sent an element to permits.
type gatedLedger struct {
	credentials.Ledger
	permits   chan struct{}
	callSizes chan int
}

func (g gatedLedger) RegisterDevices(_ context.Context, all ...store.Registration) ([]store.Registered, error) {
	<-g.permits
	g.callSizes <- len(all)
	registered := make([]store.Registered, len(all))
	for i, r := range all {
		if r.Device == "bad" {
			return nil, errBad
		}
		registered[i].ID = r.Device
	}
	return registered, nil
}

// TestFirstReportsThatComeTogetherAreOneCall checks the first reports of several new devices that arrive at the
// same time: they share calls to the ledger. If one report fails, the other reports of its call do not fail.
func TestFirstReportsThatComeTogetherAreOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ledger := gatedLedger{permits: make(chan struct{}), callSizes: make(chan int, 100)}
		r := credentials.New(credentials.Config{Ledger: ledger, FleetMode: credentials.FleetAny, Meters: meters.New(nil), Now: time.Now})
		first := func(id devices.ID) {
			admitted, err := r.Admit(t.Context(), devices.Caller{Device: id, Via: devices.ViaFleetToken}, store.DeviceView{})
			if bad := id == "bad"; bad != errors.Is(err, devices.ErrUnavailable) || !bad && admitted.Device.ID != string(id) {
				t.Errorf("%s: %+v, %v", id, admitted.Device, err)
			}
		}
		for i := range 50 {
			go first(devices.ID(fmt.Sprint(i)))
		}
		synctest.Wait()
		calls := 0
		for served := 0; served < 50; calls++ {
			ledger.permits <- struct{}{}
			served += <-ledger.callSizes
		}
		if calls > 3 { // one first call for each of the two lanes, and one for all other devices
			t.Errorf("%d calls for 50 devices", calls)
		}
		go first("0")
		synctest.Wait()
		go first("1")
		synctest.Wait()
		for _, id := range []devices.ID{"a", "bad", "c"} {
			go first(id)
		}
		synctest.Wait()
		close(ledger.permits)
		synctest.Wait()
		if calls := len(ledger.callSizes); calls != 6 { // two calls in progress, one for the three devices, and one for each of them alone
			t.Errorf("%d calls, want 6", calls)
		}
	})
}
