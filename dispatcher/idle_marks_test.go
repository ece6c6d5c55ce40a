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

// stoppedClock is a clock that only advances if a test calls pass.
type stoppedClock struct{ past atomic.Int64 }

func (c *stoppedClock) now() time.Time {
	return time.Unix(1_800_000_000, 0).Add(time.Duration(c.past.Load()))
}

func (c *stoppedClock) pass(d time.Duration) { c.past.Add(int64(d)) }

// marking runs a test on a bench that counts the reads of the ledger. The device "d" was admitted before.
func marking(t *testing.T, test func(b *bench, s *spies, clock *stoppedClock)) {
	t.Helper()
	for name, open := range map[string]func(testing.TB, ...func(*dispatcher.Config)) *bench{"embedded": embedded, "servers": onServers} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock, s := &stoppedClock{}, &spies{}
			b := open(t, pushing(&wakes{}), s.config, func(c *dispatcher.Config) { c.Now = clock.now })
			b.pool("a", 5, 300*time.Second)
			b.registered("d")
			b.expectReason("d", `{}`, devices.ReasonNone)
			test(b, s, clock)
		})
	}
}

// expectLooks sends a report of d, and checks the reason and whether the ledger was read for it.
func (b *bench) expectLooks(s *spies, what string, want devices.Reason, looks bool) devices.Reply {
	b.t.Helper()
	s.answers("Views")
	reply := b.expectReason("d", `{"id":"1"}`, want)
	if n := s.answers("Views"); (n > 0) != looks {
		b.t.Errorf("%s: the ledger was read %d times", what, n)
	}
	return reply
}

// TestIdleReportsSpareTheLedger checks that a report of a device that is known to have no work does not read
// the ledger, and that the next report finds a task that was queued.
func TestIdleReportsSpareTheLedger(t *testing.T) {
	t.Parallel()
	marking(t, func(b *bench, s *spies, clock *stoppedClock) {
		b.t.Helper()
		reply := b.expectLooks(s, "without work", devices.ReasonNone, false)
		if reply.Re != "1" || reply.ReportAfterMS < 20_000 || reply.ReportAfterMS > 40_000 {
			b.t.Errorf("reply %+v", reply)
		}
		if at := b.Seen.At("d"); at.IsZero() {
			b.t.Error("it was not seen")
		}
		clock.pass(1900 * time.Millisecond)
		b.expectLooks(s, "the ledger was read lately", devices.ReasonNone, false)
		clock.pass(200 * time.Millisecond)
		b.expectLooks(s, "the ledger was not read lately", devices.ReasonNone, true)
		b.followMarks()
		b.expectLooks(s, "followed again", devices.ReasonNone, false)

		b.batch("a", nil, "d")
		granted := b.expectLooks(s, "with a task", devices.ReasonGranted, true)
		b.ended("d", *granted.Task, "succeeded", "", devices.OutcomeRecorded)
		b.expectLooks(s, "done, and still marked", devices.ReasonNone, true)
		b.expectLooks(s, "looked at", devices.ReasonNone, false)
		b.batch("a", func(b *store.Batch) { b.Paused = true }, "d")
		for range 2 {
			b.expectLooks(s, "with a task that may not start", devices.ReasonPaused, true)
		}
	})
}

// A device keeps its mark until the own time of its task has come.
func TestATaskOfALaterTimeKeepsItsMark(t *testing.T) {
	t.Parallel()
	marking(t, func(b *bench, s *spies, _ *stoppedClock) {
		b.t.Helper()
		later := time.Now().Add(time.Hour)
		b.own(store.NewTask{Device: "d", NotBefore: &later})
		b.followMarks()
		for range 2 {
			b.expectLooks(s, "with a task that begins later", devices.ReasonWindow, true)
		}
	})
}

// A device is asked to report soon after the own time of its task. It starts the task then, and never
// earlier.
func TestATaskStartsAtItsOwnTime(t *testing.T) {
	t.Parallel()
	marking(t, func(b *bench, _ *spies, _ *stoppedClock) {
		b.t.Helper()
		soon := time.Now().Add(2 * time.Second)
		task := b.own(store.NewTask{Device: "d", NotBefore: &soon})
		b.followMarks()
		b.eventually("start", func() bool {
			reply := b.report("d", `{"id":"2"}`)
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

// TestAMarkStaysForWhatWasQueuedDuringTheLook checks that a mark is not deleted if a task was queued during
// the read of the ledger, which did not include the task.
func TestAMarkStaysForWhatWasQueuedDuringTheLook(t *testing.T) {
	t.Parallel()
	marking(t, func(b *bench, s *spies, _ *stoppedClock) {
		b.t.Helper()
		id := b.batch("a", nil, "d")
		if _, err := b.store.CancelBatch(b.ctx, "test", id); err != nil {
			b.t.Fatal(err)
		}
		s.after("Views", func() {
			s.ease()
			b.batch("a", nil, "d")
		})
		b.expectLooks(s, "queued during the look", devices.ReasonNone, true)
		b.expectLooks(s, "after it", devices.ReasonGranted, true)
	})
}

// TestWhoMayReportIsLookedAtAgain checks that the ledger is read again after a change of who may report for a
// device.
func TestWhoMayReportIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(b *bench) error{
		"blocked": func(b *bench) error { return b.store.SetBlocked(b.ctx, "test", "d", true) },
		"its own": func(b *bench) error { return b.store.MarkOwnTokens(b.ctx, "d") },
		"deleted": func(b *bench) error { _, err := b.store.DeleteDevice(b.ctx, "test", "d", true); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			marking(t, func(b *bench, s *spies, _ *stoppedClock) {
				b.t.Helper()
				if err := change(b); err != nil {
					b.t.Fatal(err)
				}
				b.followMarks()
				s.answers("Views")
				_, _ = b.tryReport("d", `{}`)
				if s.answers("Views") == 0 {
					b.t.Error("answered by its mark")
				}
			})
		})
	}
}

// TestLostMarksAreMadeAgain checks that marks are restored after Redis lost them, and that no missing mark is
// trusted before.
func TestLostMarksAreMadeAgain(t *testing.T) {
	t.Parallel()
	marking(t, func(b *bench, s *spies, _ *stoppedClock) {
		b.t.Helper()
		b.batch("a", nil, "d")
		if err := b.redis.FlushDB(b.ctx).Err(); err != nil {
			b.t.Fatal(err)
		}
		b.expectLooks(s, "with a lost mark", devices.ReasonGranted, true)
		b.batch("a", nil, "e")
		if err := b.redis.FlushDB(b.ctx).Err(); err != nil {
			b.t.Fatal(err)
		}
		b.followMarks()
		b.expectReason("e", `{}`, devices.ReasonGranted)
	})
}

// TestLooksWithoutMarksHaveALane checks that the reports of a fleet without marks cannot use all reads of the
// ledger. The reports that are refused are asked to come again distributed over a whole report period.
func TestLooksWithoutMarksHaveALane(t *testing.T) {
	t.Parallel()
	marking(t, func(b *bench, s *spies, clock *stoppedClock) {
		b.t.Helper()
		clock.pass(time.Minute)
		s.down("Views")
		for range 2 {
			if _, err := b.tryReport("d", `{}`); err == nil {
				b.t.Error("answered without the ledger")
			}
			clock.pass(3 * time.Second)
		}
		inside, release := make(chan struct{}, 100), make(chan struct{})
		s.before("Views", func() { inside <- struct{}{}; <-release })
		answers := make(chan devices.Reply, 100)
		older := waiters.NewPark("d", time.Minute)
		b.Waiters.Parks.Arrive("d", older)
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
		if ending, _ := b.Waiters.Parks.Look(older); ending != waiters.Parked {
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
