package dispatcher_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// waitingBench is a bench on which device "h" holds the only slot of pool "one". Device "d" has two tasks in the batch with the id batch, and
// waits for the slot with the first of them.
type waitingBench struct {
	*testBench
	spies *storeSpies
	clock *stoppedClock
	batch int64
	held  devices.Task
}

func runWithWaiter(t *testing.T, test func(b *waitingBench)) {
	t.Helper()
	runWithMarks(t, func(b *testBench, s *storeSpies, clock *stoppedClock) {
		b.t.Helper()
		b.createPool("one", 1, 300*time.Second)
		w := &waitingBench{testBench: b, spies: s, clock: clock}
		b.createBatch("one", nil, "h")
		w.held = b.expectGrant("h")
		w.batch = b.createBatch("one", nil, "d", "d")
		b.expectLedgerRead(s, "the first report that finds the pool full", devices.ReasonFull, true)
		test(w)
	})
}

// expectSpared sends a report of device d, which must be refused because its pool is full, without a read of the
// ledger.
func (w *waitingBench) expectSpared(what string) devices.Reply {
	w.t.Helper()
	return w.expectLedgerRead(w.spies, what, devices.ReasonFull, false)
}

// TestWaitingReportsSpareTheLedger checks a device that waits for a slot: until the slot is free, its next reports must be answered from
// its mark and the queue, with the time of the next report.
func TestWaitingReportsSpareTheLedger(t *testing.T) {
	t.Parallel()
	runWithWaiter(t, func(w *waitingBench) {
		w.t.Helper()
		for range 3 {
			if reply := w.expectSpared("waits"); reply.Re != "1" || reply.ReportAfterMS <= 0 {
				w.t.Errorf("reply %+v", reply)
			}
		}
		w.clock.advance(3 * time.Second)
		w.expectLedgerRead(w.spies, "the ledger was not read lately", devices.ReasonFull, true)
		w.followMarks()
		w.expectSpared("followed again")
		w.sendResult("h", w.held, "succeeded", "", devices.OutcomeRecorded)
		w.expectLedgerRead(w.spies, "a free slot", devices.ReasonGranted, true)
	})
}

// TestChangesOfAWaitAreReadFromTheLedger makes every change after which a waiting device may wait for another reason.
// After each, the next report must be looked up in the ledger, and get the new reason at once.
func TestChangesOfAWaitAreReadFromTheLedger(t *testing.T) {
	t.Parallel()
	runWithWaiter(t, func(w *waitingBench) {
		w.t.Helper()
		changeBatch := func(change func(*store.Batch)) func() error {
			return func() error {
				_, err := w.store.ChangeBatch(w.ctx, "op", w.batch, func(b *store.Batch) error { change(b); return nil })
				return err
			}
		}
		changePool := func(change func(*store.PoolSpec)) func() error {
			return func() error {
				_, err := w.store.ChangePool(w.ctx, "op", "one", "", func(spec *store.PoolSpec) error { change(spec); return nil })
				return err
			}
		}
		changeProfile := func(profile string) func() error {
			return func() error {
				_, err := w.store.ChangeDevice(w.ctx, "op", "d", func(spec *store.DeviceSpec) error { spec.Profile = profile; return nil })
				return err
			}
		}
		const policies = "a device with policies"
		later := time.Now().Add(time.Hour)
		for _, c := range []struct {
			what   string
			change func() error
			want   devices.Reason
		}{
			{"a paused batch", func() error { _, err := w.store.PauseBatch(w.ctx, "op", w.batch, ""); return err }, devices.ReasonPaused},
			{"a resumed batch", func() error { _, err := w.store.ResumeBatch(w.ctx, "op", w.batch); return err }, devices.ReasonFull},
			{"another weight", changeBatch(func(b *store.Batch) { b.Weight = 3 }), devices.ReasonFull},
			{"another end", changeBatch(func(b *store.Batch) { b.NotAfter = &later }), devices.ReasonFull},
			{"a paused pool", changePool(func(spec *store.PoolSpec) { spec.Paused = true }), devices.ReasonPaused},
			{"a resumed pool", changePool(func(spec *store.PoolSpec) { spec.Paused = false }), devices.ReasonFull},
			{"a cancelled task", func() error { _, err := w.store.CancelTask(w.ctx, "op", w.taskOfDevice("d")); return err }, devices.ReasonFull},
			{"a profile", func() error {
				_, _, err := w.store.PutProfile(w.ctx, "op", store.Profile{Name: "slow", Limits: []byte(`[]`)})
				return err
			}, devices.ReasonFull},
			{policies, changeProfile("slow"), devices.ReasonFull},
			{"no policies", changeProfile(""), devices.ReasonFull},
			{"a blocked device", func() error { return w.store.SetBlocked(w.ctx, "op", "d", true, "") }, devices.ReasonBlocked},
			{"a device that is not blocked", func() error { return w.store.SetBlocked(w.ctx, "op", "d", false, "") }, devices.ReasonFull},
			{"a cancelled batch", func() error { _, err := w.store.CancelBatch(w.ctx, "op", w.batch); return err }, devices.ReasonNone},
		} {
			w.must(c.change())
			w.expectLedgerRead(w.spies, c.what, c.want, true)
			if c.want == devices.ReasonFull && c.what != policies { // which are always checked
				w.followMarks() // a change of the device marks it again
				w.expectReason("d", `{"id":"1"}`, c.want)
				w.expectSpared(c.what + ", a later report")
			}
		}
	})
}

// taskOfDevice returns the first open task of a device.
func (w *waitingBench) taskOfDevice(device string) int64 {
	w.t.Helper()
	views, err := w.store.DeviceViews(w.ctx, []string{device})
	w.must(err)
	return views[0].Candidates[0].Task
}

// TestSomeWaitsAreAlwaysLookedUp checks devices for which the queue alone cannot decide the wait: each of their reports must be looked up
// in the ledger.
func TestSomeWaitsAreAlwaysLookedUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what   string
		pool   string
		change func(*store.Batch)
	}{
		{"an urgent batch", "one", func(b *store.Batch) { b.Lane = store.LaneUrgent }},
		{"policies", "one", func(b *store.Batch) { b.Limits = []byte(twoDuplicatesAnHour) }},
		{"two pools", "two", nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			s := &storeSpies{}
			b := newLightBench(t, s.configure)
			for _, pool := range []string{"one", "two"} {
				b.createPool(pool, 1, 300*time.Second)
				b.createBatch(pool, nil, "h"+pool)
				b.expectGrant("h" + pool)
			}
			b.registerDevices("d")
			if c.pool == "two" {
				b.createBatch("one", nil, "d")
			}
			b.createBatch(c.pool, c.change, "d")
			for range 3 {
				b.expectLedgerRead(s, c.what, devices.ReasonFull, true)
			}
		})
	}
}

// TestWaitEndsByTheClock checks a batch with an end. When the end is reached, the reports of its devices must be looked up in the ledger
// again.
func TestWaitEndsByTheClock(t *testing.T) {
	t.Parallel()
	runWithWaiter(t, func(w *waitingBench) {
		w.t.Helper()
		w.awaitCondition("a report before the end", func() bool { // a slow machine sends it after the end
			_, err := w.store.ChangeBatch(w.ctx, "op", w.batch, func(b *store.Batch) error {
				end := time.Now().Add(1500 * time.Millisecond)
				b.NotAfter = &end
				return nil
			})
			w.must(err)
			return w.sendReport("d", `{"id":"1"}`).Reason == devices.ReasonFull
		})
		w.awaitCondition("the end of the batch", func() bool {
			w.followMarks()
			return w.sendReport("d", `{"id":"1"}`).Reason == devices.ReasonNone
		})
	})
}

// TestAGrantEndsTheWait sends a second report of a device while the claim of its first report is slow. The second report is refused because
// the pool is full. The first report is then granted the task, but its reply is lost. The next report must get the grant again, and not be
// told to wait.
func TestAGrantEndsTheWait(t *testing.T) {
	t.Parallel()
	runWithWaiter(t, func(w *waitingBench) {
		w.t.Helper()
		w.createBatch("one", nil, "e1", "e2")
		w.sendResult("h", w.held, "succeeded", "", devices.OutcomeRecorded)
		w.spies.runBefore("Claim", func() {
			w.spies.removeHooks()
			w.expectReason("d", `{"id":"retry"}`, devices.ReasonFull)
		})
		lost := w.expectGrant("d")
		w.followMarks()
		if again := w.expectGrant("d"); again.Token != lost.Token || again.Redelivered == 0 {
			w.t.Errorf("granted %+v, want a redelivery of %+v", again, lost)
		}
	})
}

// TestWaitsKnowTheTasksThatAreNotShown checks a recorded wait of a device with two tasks in a batch. The task with the higher priority may
// not start yet when the wait is recorded. At the time at which it may start, the ledger must be read again.
func TestWaitsKnowTheTasksThatAreNotShown(t *testing.T) {
	t.Parallel()
	runWithWaiter(t, func(w *waitingBench) {
		w.t.Helper()
		var soon time.Time
		w.awaitCondition("a wait that is recorded before the start", func() bool { // a slow machine records it after the start
			start, high := time.Now().Add(1500*time.Millisecond), 10
			w.queueTasks("one", nil, func(yield func(store.NewTask, error) bool) {
				_ = yield(store.NewTask{Device: "d"}, nil) && yield(store.NewTask{Device: "d", NotBefore: &start, Priority: &high}, nil)
			})
			w.expectLedgerRead(w.spies, "another batch", devices.ReasonFull, true)
			soon = start
			return time.Now().Before(start)
		})
		w.awaitCondition("the start of the other task", func() bool { return time.Now().After(soon) })
		w.followMarks()
		w.expectLedgerRead(w.spies, "the other task may start", devices.ReasonFull, true)
	})
}

// TestALateSuccessEndsTheWait records a late success of the task for which the device waits. The wait must end: the next report gets the
// reason none.
func TestALateSuccessEndsTheWait(t *testing.T) {
	t.Parallel()
	s := &storeSpies{}
	b := newLightBench(t, s.configure, func(c *dispatcher.Config) { c.Now = (&stoppedClock{}).now })
	b.createPool("a", 1, minute)
	b.createBatch("a", nil, "d")
	g := b.expectGrant("d")
	b.endAllLeases()
	b.reap()
	b.createBatch("a", nil, "h")
	b.expectGrant("h")
	b.followMarks()
	b.expectReason("d", `{"id":"1"}`, devices.ReasonFull)
	b.sendResult("d", g, "succeeded", "", devices.OutcomeLate)
	b.expectReason("d", `{"id":"1"}`, devices.ReasonNone)
}

// TestAnAuditedLongPollIsParked audits the wait of a device with a long poll. The report must still be parked, and be granted the slot when
// it is free.
func TestAnAuditedLongPollIsParked(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, func(c *dispatcher.Config) { c.Now = (&stoppedClock{}).now })
	b.createPool("a", 1, minute)
	b.createBatch("a", nil, "h")
	held := b.expectGrant("h")
	b.createBatch("a", nil, "d")
	b.parkReport("d")
	b.followMarks()
	b.AuditNextReport()
	parked := b.parkReport("d")
	b.sendResult("h", held, "succeeded", "", devices.OutcomeRecorded)
	if answer := parked.awaitAnswer(); answer.Reason != devices.ReasonGranted {
		t.Errorf("answered %+v, want a grant", answer)
	}
}

// TestWrongWaitsAreCounted pauses the batch of a waiting device without writing news, as a bug would. The audit of one in 256 reports must
// find the wrong wait.
func TestWrongWaitsAreCounted(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	b := newLightBench(t, func(c *dispatcher.Config) { c.Now, c.Registerer = (&stoppedClock{}).now, metrics })
	b.createPool("one", 1, 300*time.Second)
	b.createBatch("one", nil, "h")
	b.expectGrant("h")
	b.createBatch("one", nil, "d")
	b.followMarks()
	b.expectReason("d", `{"id":"1"}`, devices.ReasonFull)
	b.runSQL(`UPDATE batches SET paused = true`)
	reports := 1
	for b.sendReport("d", `{"id":"1"}`).Reason == devices.ReasonFull && reports < 300 {
		reports++
	}
	if reports != 256 {
		t.Errorf("%d reports until the audit", reports)
	}
	if n := counterValue(t, metrics, "dispatcher_waits_wrong_total"); n != 1 {
		t.Errorf("%v wrong waits are counted", n)
	}
	if n := counterValue(t, metrics, "dispatcher_waits_refreshed_total"); n != 255 {
		t.Errorf("%v refreshed waits are counted", n)
	}
}

// counterValue returns the sum of all series of a counter, which must have at least one.
func counterValue(t *testing.T, metrics *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := metrics.Gather()
	must.Succeed(t, err)
	for _, f := range families {
		if f.GetName() == name {
			for _, series := range f.GetMetric() {
				sum += series.GetCounter().GetValue()
			}
			return sum
		}
	}
	t.Errorf("no metric %s", name)
	return 0
}
