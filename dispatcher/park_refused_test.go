package dispatcher_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

func TestAWaitEndsWithAReason(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 0, minute)
	b.createBatch("a", nil, "d1")
	for device, want := range map[string]devices.Reason{"d1": devices.ReasonFull, "d2": devices.ReasonNone} {
		w := b.startReport(b.Dispatcher, fleetCaller(device), `{"id":"x"}`, 50*time.Millisecond)
		w.awaitParked()
		a := w.awaitAnswer()
		if a.Reason != want || a.Re != "x" || a.HeldMS < 50 || a.ReportAfterMS != 125 { // half of 250 ms, by the jitter of the tests
			t.Errorf("%s: %+v, want %s after 50 ms, and to come again in 125 ms", device, a, want)
		}
	}
}

// A report asks to wait, but waiting cannot change its result. It must not be parked: it must get its reply at once.
func TestWhatWaitingDoesNotChangeIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 1, minute)
	b.createBatch("a", nil, "d1", "d2", "d3")
	b.registerDevices("blocked")
	must.Succeed(t, b.Devices.SetBlocked(b.ctx, "test", "blocked", true, ""))
	g := b.expectGrant("d1")
	for _, test := range []struct {
		device, body string
		want         devices.Reason
	}{
		{"d1", runningReport(g), devices.ReasonBusy},
		{"d1", `{"id":"again"}`, devices.ReasonGranted}, // the task is redelivered
		{"d2", `{"accept":false}`, devices.ReasonDeclined},
		{"d2", `{"running":[{"task":1000,"token":7}]}`, devices.ReasonBusy}, // the device must first stop a task that it runs
		{"blocked", `{}`, devices.ReasonBlocked},
	} {
		w := b.startReport(b.Dispatcher, fleetCaller(test.device), test.body, long)
		a := w.awaitAnswer()
		if a.Reason != test.want || !a.wasParked || a.HeldMS != 0 {
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
	b := newLightBench(t)
	b.createPool("a", 0, minute)
	b.createBatch("a", nil, "d1")
	full, none := b.parkReport("d1"), b.parkReport("d2")
	b.Waiters.ParkedReports.Stop()
	for w, want := range map[*pendingReport]devices.Reason{full: devices.ReasonFull, none: devices.ReasonNone} {
		if a := w.awaitAnswer(); a.Reason != want || a.ReportAfterMS != 2500 { // half of 5 s, by the jitter of the tests
			t.Errorf("%s: %+v, want %s, and to come again in 2500 ms", w.caller.Device, a, want)
		}
	}
	if a := b.startReport(b.Dispatcher, fleetCaller("d3"), `{}`, long).awaitAnswer(); a.wasParked || a.Reason != devices.ReasonNone || a.ReportAfterMS < 1000 {
		t.Errorf("after the stop: %+v, want it answered at once", a)
	}
}

// A device disconnects while its report is parked. It must be granted nothing, whether the departure is known before the report is decided
// again or is detected during the decision.
func TestNothingIsGrantedToWhoHasGone(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 2, minute)
	before, during := b.parkReport("before"), b.parkReport("during")
	b.createBatch("a", nil, "before", "during")
	before.disconnect()
	before.awaitAnswer()
	notifyOffer(b.Dispatcher, "before")
	spies.runAfter("Views", during.disconnect)
	notifyOffer(b.Dispatcher, "during")
	during.awaitAnswer()
	spies.removeHooks()
	b.expectHeld(0)
	b.expectGrant("before")
	b.expectGrant("during")
}

func TestRoomForParkedReportsIsBounded(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, func(c *dispatcher.Config) { c.MaxParked = 2 })
	one := b.parkReport("d1")
	b.parkReport("d2")
	if a := b.startReport(b.Dispatcher, fleetCaller("d3"), `{}`, long).awaitAnswer(); a.wasParked || a.Reason != devices.ReasonNone || a.ReportAfterMS < 1000 {
		t.Errorf("the third: %+v, want it answered as one that does not wait", a)
	}
	b.parkReport("d1") // replaces its older report
	one.awaitAnswer()
	b.expectReason("d1", `{}`, devices.ReasonNone)
	b.parkReport("d3")
}

// A device loses the right to report while its report is parked. The report must be granted nothing.
func TestParkedReportOfWhoMayNotReportAnyMore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(b *testBench) error
		want devices.Reason
	}{
		"token revoked": {func(b *testBench) error {
			_, _, err := b.Devices.RotateToken(b.ctx, "test", "d1", 0, "")
			return err
		}, devices.ReasonNone},
		"blocked": {func(b *testBench) error { return b.Devices.SetBlocked(b.ctx, "test", "d1", true, "") }, devices.ReasonBlocked},
		"deleted": {func(b *testBench) error {
			_, err := b.Devices.DeleteDevice(b.ctx, "test", "d1", true)
			return err
		}, devices.ReasonNone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var elapsed atomic.Int64
			start := time.Now()
			b := newLightBench(t, func(c *dispatcher.Config) {
				c.Now = func() time.Time { return start.Add(time.Duration(elapsed.Load())) }
			})
			b.createPool("a", 1, minute)
			_, token, err := b.Devices.CreateDevice(b.ctx, "test", "d1", store.DeviceSpec{}, "")
			must.Succeed(t, err)
			caller, err := b.Authenticate(b.ctx, "d1", token)
			must.Succeed(t, err)
			w := b.startReport(b.Dispatcher, caller, `{}`, long)
			w.awaitParked()
			must.Succeed(t, test.end(b))
			b.createBatch("a", nil, "d1")
			elapsed.Store(int64(time.Minute)) // tokens in memory are no longer trusted
			notifyOffer(b.Dispatcher, "d1")
			if a := w.awaitAnswer(); a.Reason != test.want || a.Task != nil {
				t.Errorf("%+v, want %s", a, test.want)
			}
			b.expectHeld(0)
		})
	}
}

// The ledger fails while a parked report is decided again. The device must get the reason unavailable, nothing may be granted, and the reply
// must be counted as a denial in the pool of the device.
func TestParkedReportWhenTheLedgerIsAway(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	b, spies := newSpiedBench(t, func(c *dispatcher.Config) { c.Registerer = metrics })
	b.createPool("a", 0, minute)
	b.createBatch("a", nil, "d1")
	w := b.parkReport("d1")
	spies.failCalls("Views")
	notifyOffer(b.Dispatcher, "d1")
	if a := w.awaitAnswer(); a.Reason != devices.ReasonUnavailable || a.Re != "d1-waits" {
		t.Errorf("%+v, want unavailable", a)
	}
	if n := counterValue(t, metrics, "dispatcher_slot_denials_total"); n != 1 {
		t.Errorf("%v denials are counted", n)
	}
}

// The only task of a device is cancelled while its report is parked, and the report is decided again. Its reply must not be counted as a denial.
func TestAParkedReportThatLostItsWorkIsNotDenied(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	b, spies := newSpiedBench(t, func(c *dispatcher.Config) { c.Registerer = metrics })
	b.createPool("a", 0, minute)
	b.createBatch("a", nil, "d1", "d2")
	w := b.parkReport("d1")
	_, err := b.store.CancelTask(b.ctx, "test", b.deviceTaskIDs("d1")[0])
	b.must(err)
	spies.takeCallCount("Views")
	notifyOffer(b.Dispatcher, "d1")
	b.awaitCondition("look", func() bool { return spies.takeCallCount("Views") > 0 })
	b.expectReason("d1", `{"id":"newer"}`, devices.ReasonNone)
	if a := w.awaitAnswer(); a.Reason != devices.ReasonNone {
		t.Errorf("%+v, want none", a)
	}
	b.expectReason("d2", `{"id":"1"}`, devices.ReasonFull)
	if n := counterValue(t, metrics, "dispatcher_slot_denials_total"); n != 1 {
		t.Errorf("%v denials are counted, want only that of d2", n)
	}
}

// failingBoard is a board of parked reports whose Redis does not answer.
type failingBoard struct{}

func (failingBoard) RegisterNewestReport(context.Context, string, time.Duration) (int64, bool, error) {
	return 0, false, errDown
}

func (failingBoard) RecordClosedConnections(context.Context, []parked.Report) ([]parked.Report, error) {
	return nil, errDown
}

func (failingBoard) Wake(context.Context, []parked.WakeMessage) error { return errDown }

// A replica cannot end the older parked reports of a device, because Redis does not answer. Then it must not park the new report of this
// device.
func TestNothingIsParkedWithoutTheOtherReplicas(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, func(c *dispatcher.Config) { c.Parking = failingBoard{} })
	a := b.startReport(b.Dispatcher, fleetCaller("d1"), `{}`, long).awaitAnswer()
	if a.wasParked || a.Reason != devices.ReasonNone || a.ReportAfterMS < 1000 {
		t.Errorf("%+v, want it answered as one that does not wait", a)
	}
}
