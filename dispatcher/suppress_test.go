package dispatcher_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/store"
)

// withDrop returns the policies with the action drop: starts that they refuse are suppressed.
func withDrop(policies string) json.RawMessage {
	return json.RawMessage(strings.ReplaceAll(policies, `"name":`, `"on_limited":"drop","name":`))
}

// createDroppingPool creates pool "a", in which each account may start one task an hour. Tasks beyond this quota
// are suppressed.
func (b *testBench) createDroppingPool(capacity int) {
	b.t.Helper()
	_, _, err := b.store.PutPool(b.ctx, "test", "a", store.PoolSpec{Capacity: capacity, Lease: time.Minute, Limits: withDrop(oneAnHourPerAccount)})
	b.must(err)
}

// queuePayloads queues tasks for one device, one task with each of the payloads.
func (b *testBench) queuePayloads(device string, batch store.Batch, payloads ...string) []int64 {
	b.t.Helper()
	batch.Pool, batch.Weight, batch.MaxAttempts = "a", 1, 1
	_, err := b.store.CreateBatch(b.ctx, "test", batch, store.NewBatchTasks{Tasks: func(yield func(store.NewTask, error) bool) {
		for _, p := range payloads {
			if !yield(store.NewTask{Device: device, Payload: json.RawMessage(p)}, nil) {
				return
			}
		}
	}})
	b.must(err)
	return b.deviceTaskIDs(device)
}

// expectSuppressed checks that a task is suppressed: its state, its reason, the answer of `why` and its event. The
// texts must contain the words.
func (b *testBench) expectSuppressed(task int64, words ...string) {
	b.t.Helper()
	got := b.readTask(task)
	if got.State != store.Suppressed {
		b.t.Fatalf("task %d is %s, want that it is suppressed", task, got.State)
	}
	for _, word := range words {
		if !strings.Contains(got.Error, word) {
			b.t.Errorf("ended for %q, want %q in it", got.Error, word)
		}
	}
	b.expectWhy(task, []decision.Code{"suppressed"}, words...)
	events, err := b.store.Events(b.ctx, store.EventFilter{Kind: "task.suppressed", Device: got.Device, Limit: 1000})
	b.must(err)
	eventCount := 0
	for _, e := range events {
		if e.Task == task && e.Detail == got.Error {
			eventCount++
		}
	}
	if eventCount != 1 {
		b.t.Errorf("%d events tell of task %d", eventCount, task)
	}
}

// TestAStartBeyondTheQuotaFails checks a task that a policy with the action drop refuses. It is suppressed at once
// and counts in no policy. The same report gets the next task of the device.
func TestAStartBeyondTheQuotaFails(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createDroppingPool(9)
		b.createPool("free", 9, time.Minute)
		b.createAccountDevice("d1", "x")
		b.createAccountDevice("d2", "x")
		batch := b.createBatch("a", nil, "d1", "d2")
		first := b.expectGrant("d1")
		refused := b.deviceTaskIDs("d2")[0]
		b.expectWhy(refused, []decision.Code{decision.CodeDeviceUnseen, decision.CodeLimited}, "ends as suppressed")
		b.createBatch("free", nil, "d2")
		if got := b.expectGrant("d2"); got.Pool != "free" {
			b.t.Errorf("granted of pool %s, want the other task with the same report", got.Pool)
		}
		b.expectSuppressed(refused, "policy per-account of pool a allows 1 per 1h0m0s for tags.account=x")
		b.expectHeld(1)
		if n, err := b.redis.ZCard(b.ctx, "limits:{a}:open").Result(); err != nil || n != 0 {
			b.t.Errorf("%d reservations are open, %v", n, err)
		}
		got, err := b.store.Batch(b.ctx, batch)
		b.must(err)
		if got.Counts[store.Suppressed] != 1 || got.Counts[store.Pending] != 0 {
			b.t.Errorf("counts of the batch: %v", got.Counts)
		}
		b.sendResult("d1", first, "succeeded", "", devices.OutcomeRecorded)

		_, err = b.store.RetryTask(b.ctx, "ann", refused) // an operator retries the task, and the quota is raised
		b.must(err)
		b.changePool("", func(p *store.PoolSpec) {
			p.Limits = withDrop(strings.Replace(oneAnHourPerAccount, `"max":1`, `"max":2`, 1))
		})
		b.sendResult("d2", *b.sendReport("d2", `{"id":"2"}`).Task, "succeeded", "", devices.OutcomeRecorded)
		if task := b.expectGrant("d2"); task.ID != refused {
			b.t.Errorf("granted %+v, want the task that is tried again", task)
		}
	}, withLongPeriod)
}

// TestARepeatedMessageIsRejected checks a duplicate policy: a task with repeated content is suppressed, and a task
// with other content starts.
func TestARepeatedMessageIsRejected(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 9, time.Minute)
		b.createAccountDevice("d1", "x")
		tasks := b.queuePayloads("d1", store.Batch{Limits: withDrop(twoDuplicatesAnHour)}, `{"n":1,"m":2}`, `{"m":2,"n":1}`, `{"n":1,"m":2}`, `{"n":2}`)
		for _, want := range []int64{tasks[0], tasks[1], tasks[3]} {
			task := b.expectGrant("d1")
			if task.ID != want {
				b.t.Errorf("granted %d, want %d", task.ID, want)
			}
			b.sendResult("d1", task, "succeeded", "", devices.OutcomeRecorded)
		}
		b.expectSuppressed(tasks[2], "same-content", "2 equal ones per 1h0m0s")
		b.expectReason("d1", `{"id":"1"}`, devices.ReasonNone)
	}, withLongPeriod)
}

// TestManyBeyondTheQuota checks a device that has more refused tasks than one report can read and suppress: later
// reports suppress the other refused tasks.
func TestManyBeyondTheQuota(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, withLongPeriod)
	b.createDroppingPool(9)
	b.createAccountDevice("d1", "x")
	tasks := b.queuePayloads("d1", store.Batch{}, strings.Split(strings.TrimSuffix(strings.Repeat("{} ", 200), " "), " ")...)
	b.sendResult("d1", b.expectGrant("d1"), "succeeded", "", devices.OutcomeRecorded) // this report ends some of the tasks, too
	left := func() int64 {
		batch, err := b.store.Batch(b.ctx, b.readTask(tasks[0]).Batch)
		b.must(err)
		return batch.Counts[store.Pending]
	}
	before := left()
	w := b.startReport(b.Dispatcher, fleetCaller("d1"), `{"id":"w"}`, long)
	if a := w.awaitAnswer(); a.Reason != devices.ReasonLimited || a.ReportAfterMS > 1500 {
		t.Errorf("%+v, want that the device comes back at once", a)
	}
	if n := left(); n == 0 || n > before-50 {
		t.Errorf("one report left %d of %d", n, before)
	}
	for range 3 {
		if b.sendReport("d1", `{"id":"2"}`).Reason == devices.ReasonNone {
			break
		}
	}
	if n := left(); n != 0 {
		t.Errorf("%d are left", n)
	}
	b.expectSuppressed(tasks[99])
	b.expectSuppressed(tasks[1])
}

// TestOnlyAPolicyThatRefusesDrops checks three cases in which a task waits and is not suppressed: a policy without
// the action drop refuses it; only a reservation, which may be released, refuses it; or its policies cannot be
// checked.
func TestOnlyAPolicyThatRefusesDrops(t *testing.T) {
	t.Parallel()
	const roomy = `,{"name":"roomy","per":"device","algorithm":"fixed","per_ms":3600000,"max":100,"on_limited":"drop"}]`
	runOnServers(t, func(b *testBench) {
		b.createLimitedPool(9)
		b.changePool("", func(p *store.PoolSpec) {
			p.Limits = json.RawMessage(strings.TrimSuffix(oneAnHourPerAccount, "]") + roomy)
		})
		b.createAccountDevice("d1", "x")
		b.createAccountDevice("d2", "x")
		b.createBatch("a", nil, "d1", "d2")
		b.expectGrant("d1")
		b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		b.expectState(b.deviceTaskIDs("d2")[0], store.Pending)

		b.changePool("", func(p *store.PoolSpec) { p.Limits = withDrop(oneAnHourPerAccount) })
		b.createAccountDevice("d3", "y")
		b.createAccountDevice("d4", "y")
		b.createBatch("a", nil, "d3", "d4")
		loses := b.lossyFake()
		loses.failsSettle.Store(true)
		b.expectGrant("d3") // the start of d3 is not counted yet
		if e := b.expectWhy(b.deviceTaskIDs("d4")[0], []decision.Code{decision.CodeDeviceUnseen, decision.CodeLimited}, "another start is being decided"); strings.Contains(e.Causes[1].Remedy, "suppressed") {
			b.t.Errorf("beside a reservation: %+v", e.Causes)
		}
		b.expectReason("d4", `{"id":"1"}`, devices.ReasonLimited)
		b.expectState(b.deviceTaskIDs("d4")[0], store.Pending)
		loses.isDown.Store(true)
		b.expectReason("d4", `{"id":"2"}`, devices.ReasonUnavailable)
		b.expectState(b.deviceTaskIDs("d4")[0], store.Pending)
		loses.isDown.Store(false)
		_, err := b.Policies.SettleAllReservations(b.ctx)
		b.must(err)
		b.expectReason("d4", `{"id":"3"}`, devices.ReasonNone)
		b.expectSuppressed(b.deviceTaskIDs("d4")[0])
	}, withLongPeriod, useLossyReservations)
}

// TestATaskThatStartedIsNotDropped checks a task whose first attempt used up the quota: its second attempt waits
// and is not suppressed.
func TestATaskThatStartedIsNotDropped(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createDroppingPool(9)
		b.createAccountDevice("fails", "x")
		b.createAccountDevice("returns", "y")
		b.createAccountDevice("pauses", "z")
		b.createAccountDevice("other", "x")
		b.createBatch("a", nil, "fails", "returns", "pauses", "other")
		failed, returned, paused := b.expectGrant("fails"), b.expectGrant("returns"), b.expectGrant("pauses")
		b.sendResult("fails", failed, "failed", "", devices.OutcomeRecorded)
		b.sendResult("returns", returned, "returned", "", devices.OutcomeRecorded)
		b.must(b.store.AskCancel(b.ctx, paused.ID, paused.Token, devices.CancelPaused))
		b.sendResult("pauses", paused, "returned", "", devices.OutcomeRecorded)
		for device, task := range map[string]int64{"fails": failed.ID, "returns": returned.ID, "pauses": paused.ID} {
			b.expectReason(device, `{"id":"again"}`, devices.ReasonLimited)
			b.expectState(task, store.Pending)
			if e := b.expectWhy(task, []decision.Code{decision.CodeLimited}, "allows 1 per 1h0m0s for"); strings.Contains(e.Causes[0].Remedy, "suppressed") {
				b.t.Errorf("of %s: %+v", device, e.Causes)
			}
		}
		b.expectReason("other", `{"id":"1"}`, devices.ReasonNone)
		b.expectSuppressed(b.deviceTaskIDs("other")[0])
		b.changePool("", func(p *store.PoolSpec) {
			p.Limits = withDrop(strings.Replace(oneAnHourPerAccount, `"max":1`, `"max":2`, 1))
		})
		if got := b.expectGrant("fails"); got.ID != failed.ID || got.Attempt != 2 {
			b.t.Errorf("granted %+v, want the second attempt", got)
		}
	}, withLongPeriod)
}

// TestTwoReplicasSuppressATaskOnce checks a device that reports to two replicas at the same time: its refused task
// is suppressed only once.
func TestTwoReplicasSuppressATaskOnce(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		other := b.newLimitsReplica()
		b.createDroppingPool(60)
		var names []string
		for i := range 10 {
			names = append(names, fmt.Sprintf("d%d", i))
			b.createAccountDevice(names[i], "x")
		}
		batch := b.createBatch("a", nil, names...)
		b.expectGrant(names[0])
		var all sync.WaitGroup
		for _, name := range names[1:] {
			for _, d := range []*dispatcher.Dispatcher{b.Dispatcher, other} {
				all.Go(func() {
					reply, err := d.HandleReport(b.ctx, devices.Caller{Device: devices.ID(name), Via: devices.ViaFleetToken}, devices.Report{ID: "1", Accept: true})
					if err != nil || reply.Reason != devices.ReasonNone {
						b.t.Errorf("%s: %+v, %v", name, reply, err)
					}
				})
			}
		}
		all.Wait()
		got, err := b.store.Batch(b.ctx, batch)
		b.must(err)
		if got.Counts[store.Suppressed] != 9 || got.Counts[store.Dispatched] != 1 {
			b.t.Errorf("counts of the batch: %v", got.Counts)
		}
		for _, name := range names[1:] {
			b.expectSuppressed(b.deviceTaskIDs(name)[0])
		}
	}, withLongPeriod)
}

// TestAWaiterWithoutItsTaskLeavesTheQueue checks a waiting device whose task is suppressed: it leaves the queue,
// whether it polls or has a parked report. A parked report continues to wait.
func TestAWaiterWithoutItsTaskLeavesTheQueue(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 1, long)
		b.reconcile()
		for _, device := range []string{"before", "parked", "polls"} {
			b.createAccountDevice(device, "x")
		}
		b.createAccountDevice("first", "y")
		b.createAccountDevice("next", "z")
		b.createBatch("a", nil, "before", "first")
		b.sendResult("before", b.expectGrant("before"), "succeeded", "", devices.OutcomeRecorded)
		held := b.expectGrant("first")
		b.createBatch("a", nil, "parked", "polls", "next")
		parked := b.parkReport("parked")
		b.expectReason("polls", `{"id":"1"}`, devices.ReasonFull)
		next := b.parkReport("next")
		b.awaitQueueLength("a", 3)
		b.changePool("", func(p *store.PoolSpec) { p.Limits = withDrop(oneAnHourPerAccount) })
		b.expectReason("polls", `{"id":"2"}`, devices.ReasonNone)
		b.awaitQueueLength("a", 2)
		b.sendResult("first", held, "succeeded", "", devices.OutcomeRecorded)
		if a := next.awaitAnswer(); a.Reason != devices.ReasonGranted {
			b.t.Errorf("who stands behind: %+v", a)
		}
		parked.expectStillParked()
		b.expectSuppressed(b.deviceTaskIDs("parked")[0])
		b.expectSuppressed(b.deviceTaskIDs("polls")[0])
		b.awaitQueueLength("a", 0)
	}, withLongPeriod, func(c *dispatcher.Config) { c.Offer = long })
}

// TestSubjectsOfPayloadsAreShownIfTheirPolicyRevealsThem checks a policy that counts by a payload field. People can
// read the value of the field only if the policy has reveal. Otherwise they see only a digest.
func TestSubjectsOfPayloadsAreShownIfTheirPolicyRevealsThem(t *testing.T) {
	t.Parallel()
	for name, reveals := range map[string]bool{"digest": false, "revealed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out await.Output
			b := newLightBench(t, withLongPeriod, func(c *dispatcher.Config) { c.Logger = slog.New(slog.NewTextHandler(&out, nil)) })
			b.createPool("a", 9, time.Minute)
			b.createAccountDevice("d1", "x")
			limit := fmt.Sprintf(`[{"name":"per-phone","per":"payload.to","algorithm":"fixed","per_ms":3600000,"max":1,"reveal":%t}]`, reveals)
			tasks := b.queuePayloads("d1", store.Batch{Limits: json.RawMessage(limit)}, `{"to":"+49"}`, `{"to":"+49"}`)
			b.sendResult("d1", b.expectGrant("d1"), "succeeded", "", devices.OutcomeRecorded)
			waits := b.explainTask(tasks[1])
			b.changeBatchLimits(b.readTask(tasks[1]).Batch, withDrop(limit))
			b.expectReason("d1", `{"id":"2"}`, devices.ReasonNone)
			b.expectSuppressed(tasks[1], "per-phone")
			top, err := b.Policies.TopRefused(b.ctx, "a", 5)
			b.must(err)
			for what, text := range map[string]string{
				"why": waits.Causes[0].Detail, "error and event": b.readTask(tasks[1]).Error, "limited": top[0].Subject, "log": out.String(),
			} {
				if strings.Contains(text, "+49") != reveals || !strings.Contains(text, "payload.to") {
					t.Errorf("%s: %s", what, text)
				}
			}
		})
	}
}

func (b *testBench) changeBatchLimits(batch int64, limits json.RawMessage) {
	b.t.Helper()
	_, err := b.store.ChangeBatch(b.ctx, "test", batch, func(in *store.Batch) error {
		in.Limits = limits
		return nil
	})
	b.must(err)
}

// TestRefusalsAreLoggedAsASample checks that the log has the first refusal of a policy in each minute, with the
// number of refusals that were left out.
func TestRefusalsAreLoggedAsASample(t *testing.T) {
	t.Parallel()
	var out await.Output
	var minutes atomic.Int64
	began := time.Now()
	b := newLightBench(t, func(c *dispatcher.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&out, nil))
		c.Now = func() time.Time { return began.Add(time.Duration(minutes.Load()) * time.Minute) }
	})
	b.createLimitedPool(9)
	for _, d := range []string{"d1", "d2", "d3"} {
		b.createAccountDevice(d, "x")
	}
	b.createBatch("a", nil, "d1", "d2", "d3")
	b.expectGrant("d1")
	refuse := func(times int, want string) {
		t.Helper()
		before := out.String()
		for range times {
			b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		}
		if got := strings.TrimPrefix(out.String(), before); strings.Count(got, "a policy refused a start") != 1 || !strings.Contains(got, want) {
			t.Errorf("logged %s, want one line with %s", got, want)
		}
	}
	const line = ` pool=a policy=per-account owner="pool a" rule="1 per 1h0m0s" subject="tags.account=x" becomes=`
	refuse(3, line+"waits left_out=0")
	minutes.Add(1)
	refuse(1, line+"waits left_out=2")
	b.changePool("", func(p *store.PoolSpec) { p.Limits = withDrop(oneAnHourPerAccount) })
	minutes.Add(1)
	b.expectReason("d3", `{"id":"1"}`, devices.ReasonNone)
	if got := out.String(); !strings.Contains(got, line+"suppressed left_out=0") {
		t.Errorf("logged %s", got)
	}
}
