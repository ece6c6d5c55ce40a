package dispatcher_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/store"
)

func TestAWaitEndsWithAReason(t *testing.T) {
	t.Parallel()
	b := light(t)
	b.pool("a", 0, minute)
	b.batch("a", nil, "d1")
	for device, want := range map[string]devices.Reason{"d1": devices.ReasonFull, "d2": devices.ReasonNone} {
		w := b.wait(b.Dispatcher, fleetCaller(device), `{"id":"x"}`, 50*time.Millisecond)
		w.isParked()
		a := w.answered()
		if a.Reason != want || a.Re != "x" || a.HeldMS < 50 || a.ReportAfterMS != 125 { // half of 250 ms, by the jitter of the tests
			t.Errorf("%s: %+v, want %s after 50 ms, and to come again in 125 ms", device, a, want)
		}
	}
}

// A report whose result cannot change by waiting gets its reply at once.
func TestWhatWaitingDoesNotChangeIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	b := light(t)
	b.pool("a", 1, minute)
	b.batch("a", nil, "d1", "d2", "d3")
	_, err := b.store.EnsureDevices(b.ctx, "blocked")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Devices.SetBlocked(b.ctx, "test", "blocked", true); err != nil {
		t.Fatal(err)
	}
	g := b.granted("d1")
	for _, test := range []struct {
		device, body string
		want         devices.Reason
	}{
		{"d1", running(g), devices.ReasonBusy},
		{"d1", `{"id":"again"}`, devices.ReasonGranted}, // redelivered
		{"d2", `{"accept":false}`, devices.ReasonDeclined},
		{"d2", `{"running":[{"task":1000,"token":7}]}`, devices.ReasonBusy}, // it must stop first
		{"blocked", `{}`, devices.ReasonBlocked},
	} {
		w := b.wait(b.Dispatcher, fleetCaller(test.device), test.body, long)
		a := w.answered()
		if a.Reason != test.want || !a.held || a.HeldMS != 0 {
			t.Errorf("%s %s: %+v, want %s", test.device, test.body, a, test.want)
		}
		select {
		case <-w.parked:
			t.Errorf("%s %s: it was parked", test.device, test.body)
		default:
		}
	}
}

func TestStopAnswersAllThatWait(t *testing.T) {
	t.Parallel()
	b := light(t)
	b.pool("a", 0, minute)
	b.batch("a", nil, "d1")
	full, none := b.parks("d1"), b.parks("d2")
	b.Waiters.Parks.Stop()
	for w, want := range map[*waiting]devices.Reason{full: devices.ReasonFull, none: devices.ReasonNone} {
		if a := w.answered(); a.Reason != want || a.ReportAfterMS != 2500 { // half of 5 s, by the jitter of the tests
			t.Errorf("%s: %+v, want %s, and to come again in 2500 ms", w.caller.Device, a, want)
		}
	}
	if a := b.wait(b.Dispatcher, fleetCaller("d3"), `{}`, long).answered(); a.held || a.Reason != devices.ReasonNone || a.ReportAfterMS < 1000 {
		t.Errorf("after the stop: %+v, want it answered at once", a)
	}
}

// A device that has disconnected is granted nothing. This holds if the departure is known before the report
// is decided again, and if it is detected during that.
func TestNothingIsGrantedToWhoHasGone(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.pool("a", 2, minute)
	before, during := b.parks("before"), b.parks("during")
	b.batch("a", nil, "before", "during")
	before.leave()
	before.answered()
	wake(b.Dispatcher, "before")
	spies.after("Views", during.leave)
	wake(b.Dispatcher, "during")
	during.answered()
	spies.ease()
	b.expectHeld(0)
	b.granted("before")
	b.granted("during")
}

func TestRoomForParkedReportsIsBounded(t *testing.T) {
	t.Parallel()
	b := light(t, func(c *dispatcher.Config) { c.MaxParked = 2 })
	one := b.parks("d1")
	b.parks("d2")
	if a := b.wait(b.Dispatcher, fleetCaller("d3"), `{}`, long).answered(); a.held || a.Reason != devices.ReasonNone || a.ReportAfterMS < 1000 {
		t.Errorf("the third: %+v, want it answered as one that does not wait", a)
	}
	b.parks("d1") // replaces its older report
	one.answered()
	b.expectReason("d1", `{}`, devices.ReasonNone)
	b.parks("d3")
}

// A parked report is granted nothing if its device may no longer report.
func TestParkedReportOfWhoMayNotReportAnyMore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(b *bench) error
		want devices.Reason
	}{
		"token revoked": {func(b *bench) error {
			_, _, err := b.Devices.RotateToken(b.ctx, "test", "d1", 0)
			return err
		}, devices.ReasonNone},
		"blocked": {func(b *bench) error { return b.Devices.SetBlocked(b.ctx, "test", "d1", true) }, devices.ReasonBlocked},
		"deleted": {func(b *bench) error {
			_, err := b.Devices.DeleteDevice(b.ctx, "test", "d1", true)
			return err
		}, devices.ReasonNone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var elapsed atomic.Int64
			start := time.Now()
			b := light(t, func(c *dispatcher.Config) {
				c.Now = func() time.Time { return start.Add(time.Duration(elapsed.Load())) }
			})
			b.pool("a", 1, minute)
			_, token, err := b.Devices.CreateDevice(b.ctx, "test", "d1", store.DeviceSpec{})
			if err != nil {
				t.Fatal(err)
			}
			caller, err := b.Authenticate(b.ctx, "d1", token)
			if err != nil {
				t.Fatal(err)
			}
			w := b.wait(b.Dispatcher, caller, `{}`, long)
			w.isParked()
			if err := test.end(b); err != nil {
				t.Fatal(err)
			}
			b.batch("a", nil, "d1")
			elapsed.Store(int64(time.Minute)) // tokens in memory are no longer trusted
			wake(b.Dispatcher, "d1")
			if a := w.answered(); a.Reason != test.want || a.Task != nil {
				t.Errorf("%+v, want %s", a, test.want)
			}
			b.expectHeld(0)
		})
	}
}

// If the ledger fails while a parked report is decided again, the reply is unavailable, and nothing is
// granted.
func TestParkedReportWhenTheLedgerIsAway(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	w := b.parks("d1")
	spies.down("Views")
	wake(b.Dispatcher, "d1")
	if a := w.answered(); a.Reason != devices.ReasonUnavailable || a.Re != "d1-waits" {
		t.Errorf("%+v, want unavailable", a)
	}
}

// lostBoard is a message board whose Redis does not answer.
type lostBoard struct{}

func (lostBoard) Newest(context.Context, string, time.Duration) (int64, bool, error) {
	return 0, false, errDown
}

func (lostBoard) Gone(context.Context, []parked.Report) ([]parked.Report, error) { return nil, errDown }

func (lostBoard) Wake(context.Context, []parked.Call) error { return errDown }

// A report is not parked if older reports of its device cannot be ended.
func TestNothingIsParkedWithoutTheOtherReplicas(t *testing.T) {
	t.Parallel()
	b := light(t, func(c *dispatcher.Config) { c.Parking = lostBoard{} })
	a := b.wait(b.Dispatcher, fleetCaller("d1"), `{}`, long).answered()
	if a.held || a.Reason != devices.ReasonNone || a.ReportAfterMS < 1000 {
		t.Errorf("%+v, want it answered as one that does not wait", a)
	}
}
