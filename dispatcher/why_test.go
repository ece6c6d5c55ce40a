package dispatcher_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// obstacleCase is one thing that keeps the task of device d1 in pool a waiting. The function set creates the
// obstacle, and lift removes it.
type obstacleCase struct {
	name      string
	set, lift func(b *testBench, batch int64)
	wantedReasons
}

// wantedReasons has the reason that the device must get in its reply, and the codes and words that the operator
// must get from `why`.
type wantedReasons struct {
	reason devices.Reason
	codes  []decision.Code
	words  []string
}

// obstacleCases returns obstacles of many kinds. They are created by changes of the pool, the batch or the device,
// or by another device ("other").
func obstacleCases() []obstacleCase {
	pool := func(reason string, change func(*store.PoolSpec)) func(*testBench, int64) {
		return func(b *testBench, _ int64) { b.changePool(reason, change) }
	}
	paused := func(s *store.PoolSpec) { s.Paused = true }
	resumed := func(s *store.PoolSpec) { s.Paused, s.Capacity = false, 1 }
	slowly := func(s *store.PoolSpec) {
		s.Limits = json.RawMessage(`[{"name":"slowly","per":"pool","algorithm":"fixed","per_ms":86400000,"max":1}]`)
	}
	type codes = []decision.Code
	return []obstacleCase{
		{
			"blocked", func(b *testBench, _ int64) { b.must(b.store.SetBlocked(b.ctx, "ann", "d1", true, "")) },
			func(b *testBench, _ int64) { b.must(b.store.SetBlocked(b.ctx, "ann", "d1", false, "")) },
			wantedReasons{devices.ReasonBlocked, codes{decision.CodeBlocked}, []string{"dispatcher devices unblock d1"}},
		}, {
			"pool paused", pool("too slow", paused), pool("", resumed),
			wantedReasons{devices.ReasonPaused, codes{decision.CodePoolPaused}, []string{"by ann since 20", "because: too slow", "dispatcher pools resume a"}},
		}, {
			"batch paused", func(b *testBench, batch int64) { b.pauseBatch(batch, "the server is ill") }, (*testBench).resumeBatch,
			wantedReasons{devices.ReasonPaused, codes{decision.CodeBatchPaused}, []string{"by bob since 20", "because: the server is ill", "dispatcher batches resume"}},
		}, {
			"both paused, and no slot", func(b *testBench, batch int64) {
				b.pauseBatch(batch, "")
				b.changePool("", func(s *store.PoolSpec) { s.Paused, s.Capacity = true, 0 })
			}, func(b *testBench, batch int64) {
				b.resumeBatch(batch)
				b.changePool("", resumed)
			},
			wantedReasons{devices.ReasonPaused, codes{decision.CodePoolPaused, decision.CodeBatchPaused, decision.CodeFull}, []string{"0 of 0 slots"}},
		}, {
			"batch's window", func(b *testBench, batch int64) { b.setWindows(batch, b.closedWindows()) }, func(b *testBench, batch int64) { b.setWindows(batch, nil) },
			wantedReasons{devices.ReasonWindow, codes{decision.CodeBatchWindow}, []string{"closed until 20"}},
		}, {
			"pool's window", func(b *testBench, _ int64) {
				closed := b.closedWindows()
				b.changePool("", func(s *store.PoolSpec) { s.Windows = closed })
			}, pool("", func(s *store.PoolSpec) { s.Windows = nil }),
			wantedReasons{devices.ReasonWindow, codes{decision.CodePoolWindow}, []string{"closed until 20"}},
		}, {
			"limited", func(b *testBench, _ int64) {
				b.startOther()
				b.endOther()
				b.changePool("", slowly)
			}, pool("", func(s *store.PoolSpec) { s.Limits = nil }),
			wantedReasons{devices.ReasonLimited, codes{decision.CodeLimited}, []string{"policy slowly of pool a allows 1 per 24h0m0s for pool=a", "the next start is allowed at 20"}},
		}, {
			"waited too long", func(b *testBench, batch int64) { b.setMaxWait(batch, time.Millisecond) }, func(b *testBench, batch int64) { b.setMaxWait(batch, time.Hour) },
			wantedReasons{devices.ReasonNone, codes{decision.CodeExpiring}, []string{"waited longer than max_wait", "dispatcher batches set"}},
		}, {
			"full", func(b *testBench, _ int64) { b.startOther() }, func(b *testBench, _ int64) { b.endOther() },
			wantedReasons{devices.ReasonFull, codes{decision.CodeFull}, []string{"1 of 1 slots", "at position 1"}},
		},
	}
}

func TestWhyAgreesWithTheReport(t *testing.T) {
	t.Parallel()
	for _, o := range obstacleCases() {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			runOnServers(t, func(b *testBench) { b.expectObstacle(o) }, withLongPeriod)
		})
	}
}

// expectObstacle creates an obstacle, checks the reply to the device and the explanation of `why`, and removes the
// obstacle. Then the task must be granted.
func (b *testBench) expectObstacle(o obstacleCase) {
	b.t.Helper()
	b.createPool("a", 1, minute)
	b.expectReason("d1", `{"id":"x"}`, devices.ReasonNone) // registers the device
	batch := b.createBatch("a", nil, "d1")
	task := b.deviceTaskIDs("d1")[0]
	if e := b.expectWhy(task, []decision.Code{decision.CodeNextReport}); e.Causes[0].EstimatedStart.IsZero() {
		b.t.Error("it is known when the device asks again")
	}
	o.set(b, batch)
	reply := b.expectReason("d1", `{"id":"x"}`, o.reason)
	e := b.expectWhy(task, o.codes, o.words...)
	if e.State != store.Pending || (o.reason == devices.ReasonWindow || o.reason == devices.ReasonLimited) == e.Causes[0].Until.IsZero() {
		b.t.Errorf("%+v", e)
	}
	if o.reason != devices.ReasonFull && !e.Causes[0].EstimatedStart.IsZero() {
		b.t.Errorf("estimated start %s", e.Causes[0].EstimatedStart)
	}
	o.lift(b, batch)
	b.expectWhy(task, []decision.Code{decision.CodeNextReport})
	if g := b.expectGrant("d1"); g.ID != task {
		b.t.Errorf("granted %+v after %+v", g, reply)
	}
	b.expectWhy(task, []decision.Code{decision.CodeRunning}, "slot 0 of pool a", "attempt 1 of 3")
}

// Some obstacles end by themselves at a known time. `why` must name this time.
func TestWhySaysWhenATimeIsOver(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 2, minute)
		now, err := b.store.Clock(b.ctx)
		b.must(err)
		hour := now.Add(time.Hour).Truncate(time.Millisecond)
		b.createBatch("a", func(in *store.Batch) { in.NotBefore = &hour }, "later")
		b.expectReason("later", `{"id":"x"}`, devices.ReasonWindow)
		e := b.expectWhy(b.deviceTaskIDs("later")[0], []decision.Code{decision.CodeNotBefore})
		if !e.Causes[0].Until.Equal(hour) {
			b.t.Errorf("until %s, want %s", e.Causes[0].Until, hour)
		}
		own := b.queueTimedTask(store.NewTask{Device: "own", NotBefore: &hour})
		b.expectReason("own", `{"id":"x"}`, devices.ReasonWindow)
		e = b.expectWhy(own, []decision.Code{decision.CodeNotBefore}, fmt.Sprintf("task %d does not start before", own))
		if !e.Causes[0].Until.Equal(hour) {
			b.t.Errorf("until %s, want %s", e.Causes[0].Until, hour)
		}
		b.createBatch("a", func(in *store.Batch) { in.RetryBackoff = time.Hour }, "fails")
		g := b.expectGrant("fails")
		b.sendResult("fails", g, "failed", `,"error":"no route"`, devices.OutcomeRecorded)
		b.expectReason("fails", `{"id":"x"}`, devices.ReasonWindow)
		e = b.expectWhy(g.ID, []decision.Code{decision.CodeBackoff}, "attempt 1 of 3 failed at", "no route")
		if e.Causes[0].Until.Before(now.Add(29 * time.Minute)) {
			b.t.Errorf("until %s", e.Causes[0].Until)
		}
		// After a restore of the ledger nothing is granted, but tasks that run are explained as usual.
		b.createBatch("a", nil, "idle", "runs")
		b.expectReason("idle", `{"id":"x","accept":false}`, devices.ReasonDeclined)
		runs := b.expectGrant("runs")
		until, err := b.store.ProtectAfterRestore(b.ctx, "ann", 0)
		b.must(err)
		b.reconcile()
		b.expectReason("idle", `{"id":"x"}`, devices.ReasonUnavailable)
		e = b.expectWhy(b.deviceTaskIDs("idle")[0], []decision.Code{decision.CodeStandstill})
		if !e.Causes[0].Until.Equal(until) {
			b.t.Errorf("until %s, want %s", e.Causes[0].Until, until)
		}
		b.expectWhy(runs.ID, []decision.Code{decision.CodeRunning})
	}, withLongPeriod)
}

func TestWhySaysWhichTaskGoesFirst(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 2, minute)
		b.createPool("other", 2, minute)
		b.expectReason("d1", `{"id":"x"}`, devices.ReasonNone)
		b.createBatch("a", nil, "d1", "d1")
		b.createBatch("other", nil, "d1")
		tasks := b.deviceTaskIDs("d1")
		b.expectWhy(tasks[0], []decision.Code{decision.CodeNextReport})
		b.expectWhy(tasks[1], []decision.Code{decision.CodeOtherFirst}, fmt.Sprintf("given task %d", tasks[0]))
		b.expectWhy(tasks[2], []decision.Code{decision.CodeOtherFirst})
		g := b.expectGrant("d1")
		b.expectReason("d1", runningReport(g), devices.ReasonBusy)
		for _, task := range tasks[1:] {
			e := b.explainTask(task)
			if e.Causes[0].Code != decision.CodeBusy || e.Causes[0].Until.IsZero() || !strings.Contains(e.Causes[0].Detail, fmt.Sprintf("task %d on slot 0 of pool a", g.ID)) {
				b.t.Errorf("%+v", e)
			}
		}
		b.sendResult("d1", g, "succeeded", "", devices.OutcomeRecorded)
		b.expectWhy(g.ID, []decision.Code{"succeeded"}, "attempt 1 of 3 succeeded")
	}, withLongPeriod)
}

// A device has tasks in several batches of one pool. The semaphore chooses the batch whose task goes first. `why` must name this batch.
func TestWhySaysWhichBatchGoesFirst(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 9, minute)
		b.createBatch("a", nil, "x", "y")
		b.expectGrant("x")
		b.expectGrant("y") // the first batch holds two slots
		b.expectReason("d1", `{"id":"x"}`, devices.ReasonNone)
		for range 4 {
			b.createBatch("a", nil, "d1")
		}
		next := func() (found []int64) {
			for _, task := range b.deviceTaskIDs("d1") {
				if e := b.explainTask(task); e.State == store.Pending && e.Causes[0].Code == decision.CodeNextReport {
					found = append(found, task)
				}
			}
			return found
		}
		for range 4 {
			found := next()
			g := b.expectGrant("d1")
			if len(found) != 1 || found[0] != g.ID {
				b.t.Errorf("next was %v, granted %d", found, g.ID)
			}
			b.sendReport("d1", fmt.Sprintf(`{"id":"r","accept":false,"results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, g.ID, g.Token))
		}
	}, withLongPeriod)
}

// A task waits because its pool is full. `why` must show its position and, as soon as the hold time of the pool is known, an estimated
// start.
func TestWhySaysThePositionInLine(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		b.createBatch("a", nil, "d0", "d1", "d2", "d3")
		b.expectGrant("d0")
		for before, device := range []string{"d1", "d2", "d3"} {
			b.expectReason(device, `{"id":"x"}`, devices.ReasonFull)
			r := b.expectWhy(b.deviceTaskIDs(device)[0], []decision.Code{decision.CodeFull}).Causes[0]
			if r.Position != before+1 || !r.EstimatedStart.IsZero() {
				b.t.Errorf("%s: %+v, want position %d and no estimate", device, r, before+1)
			}
		}
		b.Waiters.Pools.RecordHoldTime("a", "", 20*time.Minute)
		g := b.expectGrant("d0")
		b.sendReport("d0", fmt.Sprintf(`{"id":"r","accept":false,"results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, g.ID, g.Token))
		b.expectGrant("d1")
		e := b.explainTask(b.deviceTaskIDs("d3")[0])
		if r, wait := e.Causes[0], e.Causes[0].EstimatedStart.Sub(e.At); r.Position != 2 || wait < 36*time.Minute || wait > 40*time.Minute {
			b.t.Errorf("%+v in %s, want position 2 in twice 19 min", r, wait)
		}
		b.changePool("", func(s *store.PoolSpec) { s.Paused = true })
		for _, r := range b.expectWhy(b.deviceTaskIDs("d3")[0], []decision.Code{decision.CodePoolPaused, decision.CodeFull}).Causes {
			if !r.EstimatedStart.IsZero() {
				b.t.Errorf("an estimate in a paused pool: %+v", r)
			}
		}
	}, withLongPeriod)
}

func TestWhyWithoutRedisSaysUnavailable(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t, withLongPeriod)
	b.createPool("a", 1, minute)
	b.expectReason("d1", `{"id":"x"}`, devices.ReasonNone)
	b.createBatch("a", nil, "d1")
	task := b.deviceTaskIDs("d1")[0]
	// A pool that Redis does not know is no obstacle, because the next report restores it. So `why` says that the
	// next report tries the task.
	b.expectWhy(task, []decision.Code{decision.CodeNextReport})
	spies.failCalls("Acquire", "ReadQueuePlaces")
	b.expectReason("d1", `{"id":"x"}`, devices.ReasonUnavailable)
	b.expectWhy(task, []decision.Code{decision.CodeUnavailable})
	b.changePoolInLedger(func(s *store.PoolSpec) { s.Paused = true })
	b.expectReason("d1", `{"id":"x"}`, devices.ReasonPaused)
	b.expectWhy(task, []decision.Code{decision.CodePoolPaused, decision.CodeUnavailable})
	spies.removeHooks()
	b.expectWhy(task, []decision.Code{decision.CodePoolPaused})
}

func TestWhySaysWhyADeviceDoesNotCome(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 9, minute)
		for _, id := range []string{"registered", "silent", "quiet", "sleeps", "noisy", "deleted"} {
			_, _, err := b.Devices.CreateDevice(b.ctx, "ann", devices.ID(id), store.DeviceSpec{}, "")
			b.must(err)
		}
		_, err := b.Devices.DeleteDevice(b.ctx, "ann", "deleted", false)
		b.must(err)
		b.registerDevices("revoked")
		b.createBatch("a", nil, "unknown", "registered", "silent", "revoked", "quiet", "sleeps", "noisy", "deleted")
		now, err := b.store.Clock(b.ctx)
		b.must(err)
		b.must(b.store.TouchDevices(b.ctx, map[string]store.LastReport{
			"silent": {At: now.Add(-3*time.Hour - minute)}, "quiet": {At: now.Add(-30 * time.Second)}, "revoked": {At: now},
			"sleeps": {At: now.Add(-3*time.Hour - minute), QuietUntil: now}, "noisy": {At: now},
		}))
		_, err = b.store.RecordNoisy(b.ctx, "noisy", "rate=900/s")
		b.must(err)
		b.must(b.store.MarkOwnTokens(b.ctx, "revoked"))
		for device, want := range map[string]struct {
			code decision.Code
			word string
		}{
			"unknown":    {decision.CodeDeviceUnknown, "device unknown is not registered: it was never created or imported"},
			"registered": {decision.CodeDeviceUnseen, "never reported"},
			"silent":     {decision.CodeDeviceSilent, "last reported 3 h ago"},
			"quiet":      {decision.CodeNextReport, "next report of device quiet"},
			"sleeps":     {decision.CodeNextReport, "next report of device sleeps"},
			"noisy":      {decision.CodeDeviceNoisy, "reports far too often"},
			"deleted":    {decision.CodeDeviceDeleted, "was deleted"},
			"revoked":    {decision.CodeRevoked, "no valid token"},
		} {
			b.expectWhy(b.deviceTaskIDs(device)[0], []decision.Code{want.code}, want.word)
		}
		unknown := b.explainTask(b.deviceTaskIDs("unknown")[0]).Causes[0]
		for _, want := range []string{"check the name", "dispatcher devices create unknown", "dispatcher tasks cancel "} {
			if !strings.Contains(unknown.Remedy, want) {
				b.t.Errorf("a device that was never imported: %q does not say %q", unknown.Remedy, want)
			}
		}
		// The report of the device "silent" counts for `why` even if this replica has not written it to the ledger
		// yet.
		b.expectReason("silent", `{"id":"x","accept":false}`, devices.ReasonDeclined)
		b.expectWhy(b.deviceTaskIDs("silent")[0], []decision.Code{decision.CodeNextReport})
	}, withLongPeriod)
}

func TestWhySaysHowATaskEnded(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 9, minute)
		if _, err := b.Explainer.ExplainTask(b.ctx, 4711); !errors.Is(err, store.ErrNotFound) {
			b.t.Errorf("an unknown task: %v", err)
		}
		b.createBatch("a", func(in *store.Batch) { in.MaxAttempts = 1 }, "fails")
		g := b.expectGrant("fails")
		b.expectGrant("fails")
		b.expectWhy(g.ID, []decision.Code{decision.CodeRunning}, "redelivered 1 times")
		b.sendResult("fails", g, "failed", `,"error":"no route"`, devices.OutcomeRecorded)
		b.expectWhy(g.ID, []decision.Code{"failed"}, "attempt 1 of 1 failed at", "no route", fmt.Sprintf("dispatcher tasks retry %d", g.ID))

		batch := b.createBatch("a", nil, "waits", "runs", "stops")
		runs, stops := b.expectGrant("runs"), b.expectGrant("stops")
		waits := b.deviceTaskIDs("waits")[0]
		_, err := b.store.CancelTask(b.ctx, "ann", stops.ID)
		b.must(err)
		b.expectWhy(stops.ID, []decision.Code{decision.CodeRunning, decision.CodeToStop}, "asked to stop by ann: cancelled", "dispatcher pools release a 1 --now")
		b.sendResult("stops", stops, "failed", "", devices.OutcomeRecorded)
		b.expectWhy(stops.ID, []decision.Code{"cancelled"}, "by ann")
		_, err = b.store.CancelBatch(b.ctx, "bob", batch)
		b.must(err)
		b.expectReason("waits", `{"id":"x"}`, devices.ReasonNone)
		b.expectWhy(waits, []decision.Code{decision.CodeCancelling}, "was cancelled at 20")
		b.expectWhy(runs.ID, []decision.Code{decision.CodeRunning, decision.CodeToStop}, "stop by bob")
		_, err = b.Upkeep.EndCancelledTasks(b.ctx)
		b.must(err)
		b.expectWhy(waits, []decision.Code{"cancelled"}, "with its batch", "never attempted", "a new batch")

		past := time.Now().Add(-time.Hour)
		own := b.queueTimedTask(store.NewTask{Device: "own", NotAfter: &past})
		b.expectReason("own", `{"id":"x"}`, devices.ReasonNone)
		b.expectWhy(own, []decision.Code{decision.CodeExpiring}, fmt.Sprintf("task %d does not start after 20", own), "in a new batch")
		b.createBatch("a", func(in *store.Batch) { in.MaxWait = time.Millisecond }, "long")
		long := b.deviceTaskIDs("long")[0]
		b.awaitCondition("end of its wait", func() bool { return b.explainTask(long).Causes[0].Code == decision.CodeExpiring })
		b.expectReason("long", `{"id":"x"}`, devices.ReasonNone)
		b.expectWhy(long, []decision.Code{decision.CodeExpiring}, "waited longer than max_wait of batch", "which is 1ms", "--max-wait")
		b.createBatch("a", func(in *store.Batch) { in.NotAfter = &past }, "late")
		late := b.deviceTaskIDs("late")[0]
		b.expectReason("late", `{"id":"x"}`, devices.ReasonNone)
		b.expectWhy(late, []decision.Code{decision.CodeExpiring}, "--not-after")
		_, err = b.Upkeep.ExpireTasks(b.ctx)
		b.must(err)
		b.expectWhy(late, []decision.Code{"expired"}, "not started by the not_after of its batch", "--not-after")
		b.expectWhy(own, []decision.Code{"expired"}, "not started by its own not_after", "in a new batch")
		b.expectWhy(long, []decision.Code{"expired"}, "waited longer than max_wait", "--max-wait")
	}, withLongPeriod)
}

// A lease ended without a result, and the result came later. `why` must report both.
func TestWhySaysThatALeaseRanOut(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		b.createBatch("a", func(in *store.Batch) { in.OnLost = "fail" }, "d1", "d2")
		g := b.expectGrant("d1")
		b.endAllLeases()
		b.expectWhy(g.ID, []decision.Code{decision.CodeRunning, decision.CodeLapsed})
		b.reap()
		b.expectWhy(g.ID, []decision.Code{"timed_out"}, "was lost")
		b.sendResult("d1", g, "failed", "", devices.OutcomeLate)
		b.expectWhy(g.ID, []decision.Code{"timed_out", decision.CodeLate})
		b.sendResult("d1", g, "succeeded", "", devices.OutcomeLate)
		b.expectWhy(g.ID, []decision.Code{"succeeded", decision.CodeLate})
	}, withLongPeriod)
}

// A caller waits because callers hold their maximum number of slots. `why` must name this maximum and the command that raises it.
func TestWhyACallerWaits(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createCallerPool(1)
		b.expectLease("first")
		b.startLeaseWait(b.Dispatcher, "second", long)
		e := b.expectWhy(b.leaseTask("second"), []decision.Code{decision.CodeCallersFull}, "callers hold 1 of the 1 slots of pool a", "0 callers wait")
		if c := e.Causes[0]; c.Position != 1 || len(c.Actions) != 1 || c.Actions[0].Command != "dispatcher pools set a --callers N" {
			b.t.Errorf("%+v", c)
		}
		waiting, err := b.Explainer.SummarizeWaiting(b.ctx, store.TaskScope{Pool: "a"}, 10)
		if err != nil || len(waiting.Groups) != 1 || waiting.Groups[0].Code != decision.CodeCallersFull {
			b.t.Errorf("%+v, %v", waiting, err)
		}
		b.createCallerPool(0)
		b.followPools()
		if got := b.tryAcquire("third"); got.Cause.Code != decision.CodeCallersFull {
			b.t.Errorf("%+v", got.Cause)
		}
	})
}

// TestWhySaysThatADDIDeviceCannotReadATask reports over DDI for a task whose payload is no deployment: the device gets nothing, and `why`
// names the reason. Over HTTP the device gets the task.
func TestWhySaysThatADDIDeviceCannotReadATask(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		b.createBatch("a", nil, "d1")
		caller := devices.Caller{Device: "d1", Via: devices.ViaFleetToken, Wire: devices.WireHawkbit}
		reply, err := b.HandleReport(b.ctx, caller, devices.Report{Accept: true})
		if err != nil || reply.Reason != devices.ReasonWrongWire || reply.Task != nil {
			b.t.Errorf("reply %+v (%v)", reply, err)
		}
		b.must(b.Seen.Flush(b.ctx))
		b.expectWhy(b.deviceTaskIDs("d1")[0], []decision.Code{decision.CodeWrongWire}, "hawkBit's DDI", "dispatcher tasks cancel")
		b.expectGrant("d1")
	}, withLongPeriod)
}
