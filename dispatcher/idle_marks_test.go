package dispatcher_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/store"
)

// stoppedClock is a clock that advances only if the test calls advance.
type stoppedClock struct{ elapsed atomic.Int64 }

func (c *stoppedClock) now() time.Time {
	return time.Unix(1_800_000_000, 0).Add(time.Duration(c.elapsed.Load()))
}

func (c *stoppedClock) advance(d time.Duration) { c.elapsed.Add(int64(d)) }

// runWithMarks runs a test on a bench that counts the reads of the ledger. The device "d" has already reported
// once.
func runWithMarks(t *testing.T, test func(b *testBench, s *storeSpies, clock *stoppedClock)) {
	t.Helper()
	for name, open := range map[string]func(testing.TB, ...func(*dispatcher.Config)) *testBench{"embedded": newEmbeddedBench, "servers": newServerBench} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock, s := &stoppedClock{}, &storeSpies{}
			b := open(t, withWaker(&wakeRecorder{}), s.configure, func(c *dispatcher.Config) { c.Now = clock.now })
			b.createPool("a", 5, 300*time.Second)
			b.registerDevices("d")
			b.expectReason("d", `{}`, devices.ReasonNone)
			test(b, s, clock)
		})
	}
}

// expectLedgerRead sends a report of device d. It checks the reason in the reply, and whether the ledger was read
// for this report.
func (b *testBench) expectLedgerRead(s *storeSpies, what string, want devices.Reason, wantRead bool) devices.Reply {
	b.t.Helper()
	s.takeCallCount("Views")
	reply := b.expectReason("d", `{"id":"1"}`, want)
	if n := s.takeCallCount("Views"); (n > 0) != wantRead {
		b.t.Errorf("%s: the ledger was read %d times", what, n)
	}
	return reply
}

// TestIdleReportsSpareTheLedger checks a device without a mark, which is known to have no work. Its report is
// answered without a read of the ledger. When a task is queued for it, its next report finds the task.
func TestIdleReportsSpareTheLedger(t *testing.T) {
	t.Parallel()
	runWithMarks(t, func(b *testBench, s *storeSpies, clock *stoppedClock) {
		b.t.Helper()
		reply := b.expectLedgerRead(s, "without work", devices.ReasonNone, false)
		if reply.Re != "1" || reply.ReportAfterMS < 20_000 || reply.ReportAfterMS > 40_000 {
			b.t.Errorf("reply %+v", reply)
		}
		if last := b.Seen.LastReport("d"); last.At.IsZero() {
			b.t.Error("it was not seen")
		}
		clock.advance(1900 * time.Millisecond)
		b.expectLedgerRead(s, "the ledger was read lately", devices.ReasonNone, false)
		clock.advance(200 * time.Millisecond)
		b.expectLedgerRead(s, "the ledger was not read lately", devices.ReasonNone, true)
		b.followMarks()
		b.expectLedgerRead(s, "followed again", devices.ReasonNone, false)

		b.createBatch("a", nil, "d")
		granted := b.expectLedgerRead(s, "with a task", devices.ReasonGranted, true)
		b.sendResult("d", *granted.Task, "succeeded", "", devices.OutcomeRecorded)
		b.expectLedgerRead(s, "done, and still marked", devices.ReasonNone, true)
		b.expectLedgerRead(s, "looked at", devices.ReasonNone, false)
		b.createBatch("a", func(b *store.Batch) { b.Paused = true }, "d")
		for range 2 {
			b.expectLedgerRead(s, "with a task that may not start", devices.ReasonPaused, true)
		}
	})
}

// The task of a device may start only at a later time. Until then the device must keep its mark.
func TestATaskOfALaterTimeKeepsItsMark(t *testing.T) {
	t.Parallel()
	runWithMarks(t, func(b *testBench, s *storeSpies, _ *stoppedClock) {
		b.t.Helper()
		later := time.Now().Add(time.Hour)
		b.queueTimedTask(store.NewTask{Device: "d", NotBefore: &later})
		b.followMarks()
		for range 2 {
			b.expectLedgerRead(s, "with a task that begins later", devices.ReasonWindow, true)
		}
	})
}

// The task of a device may start only at a later time. The device must be asked to report soon after this time. It must start the task
// then, and never earlier.
func TestATaskStartsAtItsOwnTime(t *testing.T) {
	t.Parallel()
	runWithMarks(t, func(b *testBench, _ *storeSpies, _ *stoppedClock) {
		b.t.Helper()
		soon := time.Now().Add(2 * time.Second)
		task := b.queueTimedTask(store.NewTask{Device: "d", NotBefore: &soon})
		b.followMarks()
		b.awaitCondition("start", func() bool {
			reply := b.sendReport("d", `{"id":"2"}`)
			if reply.Task == nil && (reply.Reason != devices.ReasonWindow || reply.ReportAfterMS > 2600) {
				b.t.Errorf("%s, and it comes %d ms later", reply.Reason, reply.ReportAfterMS)
			}
			return reply.Task != nil && reply.Task.ID == task
		})
		if early := time.Until(soon); early > 0 {
			b.t.Errorf("it started %s too early", early)
		}
	})
}

// TestAMarkStaysForWhatWasQueuedDuringTheLook checks a report that finds no work in the ledger while a task is
// being queued. The read did not include the task, so the mark of the device must not be deleted.
func TestAMarkStaysForWhatWasQueuedDuringTheLook(t *testing.T) {
	t.Parallel()
	runWithMarks(t, func(b *testBench, s *storeSpies, _ *stoppedClock) {
		b.t.Helper()
		id := b.createBatch("a", nil, "d")
		_, err := b.store.CancelBatch(b.ctx, "test", id)
		b.must(err)
		s.runAfter("Views", func() {
			s.removeHooks()
			b.createBatch("a", nil, "d")
		})
		b.expectLedgerRead(s, "queued during the look", devices.ReasonNone, true)
		b.expectLedgerRead(s, "after it", devices.ReasonGranted, true)
	})
}

// TestWhoMayReportIsLookedAtAgain checks an idle device without a mark. After a change of who may report for the device, its next report
// must read the ledger again.
func TestWhoMayReportIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(b *testBench) error{
		"blocked": func(b *testBench) error { return b.store.SetBlocked(b.ctx, "test", "d", true, "") },
		"its own": func(b *testBench) error { return b.store.MarkOwnTokens(b.ctx, "d") },
		"deleted": func(b *testBench) error { _, err := b.store.DeleteDevice(b.ctx, "test", "d", true); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runWithMarks(t, func(b *testBench, s *storeSpies, _ *stoppedClock) {
				b.t.Helper()
				b.must(change(b))
				b.followMarks()
				s.takeCallCount("Views")
				_, _ = b.tryReport("d", `{}`)
				if s.takeCallCount("Views") == 0 {
					b.t.Error("answered by its mark")
				}
			})
		})
	}
}

// TestLostMarksAreMadeAgain checks a Redis that has lost the marks. They are restored, and until then a missing
// mark is not trusted.
func TestLostMarksAreMadeAgain(t *testing.T) {
	t.Parallel()
	runWithMarks(t, func(b *testBench, s *storeSpies, _ *stoppedClock) {
		b.t.Helper()
		b.createBatch("a", nil, "d")
		b.must(b.redis.FlushDB(b.ctx).Err())
		b.expectLedgerRead(s, "with a lost mark", devices.ReasonGranted, true)
		b.createBatch("a", nil, "e")
		b.must(b.redis.FlushDB(b.ctx).Err())
		b.followMarks()
		b.expectReason("e", `{}`, devices.ReasonGranted)
	})
}

// TestLooksWithoutMarksHaveALane checks a fleet whose marks are lost, so that every report needs the ledger. These reports cannot use up all
// reads of the ledger. The refused devices are asked to report again at times that are distributed over a whole report period.
func TestLooksWithoutMarksHaveALane(t *testing.T) {
	t.Parallel()
	runWithMarks(t, func(b *testBench, s *storeSpies, clock *stoppedClock) {
		b.t.Helper()
		clock.advance(time.Minute)
		s.failCalls("Views")
		for range 2 {
			if _, err := b.tryReport("d", `{}`); err == nil {
				b.t.Error("answered without the ledger")
			}
			clock.advance(3 * time.Second)
		}
		inside, release := make(chan struct{}, 100), make(chan struct{})
		s.runBefore("Views", func() { inside <- struct{}{}; <-release })
		answers := make(chan devices.Reply, 100)
		older := waiters.NewParkedReport("d", time.Minute)
		b.Waiters.ParkedReports.ReplaceOlderReport("d", older)
		for range 20 {
			go func() {
				reply, err := b.tryReport("d", `{}`)
				if err == nil {
					answers <- reply
				}
			}()
		}
		<-inside
		for range 12 {
			if reply := <-answers; reply.Reason != devices.ReasonUnavailable || reply.ReportAfterMS < 10_000 || reply.ReportAfterMS > 30_000 {
				b.t.Errorf("put off: %+v", reply)
			}
		}
		if ending, _ := b.Waiters.ParkedReports.Poll(older); ending != waiters.Parked {
			b.t.Errorf("a report that was put off ended one that waits: %v", ending)
		}
		close(release)
		for range 8 {
			if reply := <-answers; reply.Reason != devices.ReasonNone {
				b.t.Errorf("looked up: %+v", reply)
			}
		}
	})
}
