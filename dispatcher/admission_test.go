package dispatcher_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// expectResultReads sends the result of task in a report of device d. It checks the reason in the reply, and how often the registration
// and the view of the device were read for the report.
func (b *testBench) expectResultReads(s *storeSpies, task devices.Task, report string, want devices.Reason, registrations, views int) devices.Reply {
	b.t.Helper()
	s.takeCallCount("Registrations")
	s.takeCallCount("Views")
	result := fmt.Sprintf(`{"id":"r","results":[{"task":%d,"token":%d,"status":"succeeded"}]%s}`, task.ID, task.Token, report)
	reply := b.expectReason("d", result, want)
	if r, v := s.takeCallCount("Registrations"), s.takeCallCount("Views"); r != registrations || v != views {
		b.t.Errorf("%s: %d registrations and %d views were read, want %d and %d", report, r, v, registrations, views)
	}
	if len(reply.Acks) != 1 || reply.Acks[0].Outcome != devices.OutcomeRecorded {
		b.t.Errorf("%s: acknowledged %+v", report, reply.Acks)
	}
	return reply
}

// grantTask queues a task for device d, and lets the device get it.
func (b *testBench) grantTask() devices.Task {
	b.t.Helper()
	b.createBatch("a", nil, "d")
	return *b.expectReason("d", `{"id":"g"}`, devices.ReasonGranted).Task
}

// TestResultOfTheLastTaskReadsNothing checks the report with the result of the only open task of its device. Neither the registration nor
// the tasks of the device are read for the report.
func TestResultOfTheLastTaskReadsNothing(t *testing.T) {
	t.Parallel()
	runWithMarks(t, func(b *testBench, s *storeSpies, clock *stoppedClock) {
		b.t.Helper()
		b.expectResultReads(s, b.grantTask(), ``, devices.ReasonNone, 0, 0)
		b.expectResultReads(s, b.grantTask(), `,"accept":false`, devices.ReasonDeclined, 0, 0)

		first := b.grantTask()
		b.createBatch("a", nil, "d")
		b.followMarks()
		second := b.expectResultReads(s, first, ``, devices.ReasonGranted, 0, 1)
		b.expectResultReads(s, *second.Task, `,"attributes":{"x":"1"}`, devices.ReasonNone, 1, 1)

		last := b.grantTask()
		clock.advance(3 * time.Second) // the news were not read lately
		b.expectResultReads(s, last, ``, devices.ReasonNone, 1, 0)
	})
}

// A device has one task. The task fails and is to be tried again, so it is still an open task. The reply must give the reason of this task
// and not the reason none.
func TestResultOfATaskThatIsTriedAgainIsNotTheLast(t *testing.T) {
	t.Parallel()
	runWithMarks(t, func(b *testBench, _ *storeSpies, _ *stoppedClock) {
		b.t.Helper()
		b.createBatch("a", func(batch *store.Batch) {
			batch.MaxAttempts, batch.RetryOn, batch.RetryBackoff = 2, []string{"failed"}, time.Hour
		}, "d")
		task := b.expectReason("d", `{"id":"g"}`, devices.ReasonGranted).Task
		b.expectReason("d", fmt.Sprintf(`{"id":"r","results":[{"task":%d,"token":%d,"status":"failed"}]}`, task.ID, task.Token), devices.ReasonWindow)
	})
}

// TestBlockedDeviceIsReadAgain checks a device that was admitted and then blocked. The news of the block must end the admission, so the
// next report reads the registration from the ledger.
func TestBlockedDeviceIsReadAgain(t *testing.T) {
	t.Parallel()
	runWithMarks(t, func(b *testBench, s *storeSpies, _ *stoppedClock) {
		b.t.Helper()
		task := b.grantTask()
		b.must(b.store.SetBlocked(b.ctx, "test", "d", true, ""))
		b.followMarks()
		b.expectResultReads(s, task, ``, devices.ReasonBlocked, 1, 1)
	})
}

// Over MQTT, the results of a blocked or deleted device must change nothing. So each report over MQTT must read the registration of its
// device.
func TestResultOverMQTTReadsTheRegistration(t *testing.T) {
	t.Parallel()
	runWithMarks(t, func(b *testBench, s *storeSpies, _ *stoppedClock) {
		b.t.Helper()
		b.createBatch("a", nil, "d")
		session := devices.Caller{Device: "d", Via: devices.ViaSession}
		granted, err := b.HandleReport(b.ctx, session, devices.Report{ID: "g", Accept: true})
		if err != nil || granted.Task == nil {
			b.t.Fatalf("%+v, %v", granted, err)
		}
		s.takeCallCount("Registrations")
		result := devices.Result{Task: granted.Task.ID, Token: granted.Task.Token, Status: devices.StatusSucceeded}
		_, err = b.HandleReport(b.ctx, session, devices.Report{ID: "r", Accept: true, Results: []devices.Result{result}})
		b.must(err)
		if n := s.takeCallCount("Registrations"); n != 1 {
			b.t.Errorf("%d registrations were read, want 1", n)
		}
	})
}
