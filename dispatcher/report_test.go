package dispatcher_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

const (
	minute = time.Minute
)

func TestATaskGoesFromGrantToResult(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 60, 300*time.Second)
		b.expectReason("d1", `{}`, devices.ReasonNone)
		b.createBatch("a", nil, "d1")

		reply := b.sendReport("d1", `{"id":"boot-1"}`)
		g := reply.Task
		if reply.Re != "boot-1" || reply.Reason != devices.ReasonGranted || g == nil {
			b.t.Fatalf("reply %+v, want a grant", reply)
		}
		if g.Pool != "a" || g.Slot != 0 || g.Kind != "speedtest" || string(g.Payload) != `{"server":"st1"}` || g.Attempt != 1 || g.Redelivered != 0 {
			b.t.Errorf("grant %+v", g)
		}
		if g.LeaseMS > 290_000 || g.LeaseMS < 289_000 {
			b.t.Errorf("lease %d ms, want 300 s less the margin of 10 s", g.LeaseMS)
		}
		b.expectState(g.ID, store.Dispatched)
		b.expectHeld(1)

		output := ",\"output\":{\"down_mbps\": 94.10, \"text\":\"\\u00e9 \u00fc\"}"
		b.sendResult("d1", *g, "succeeded", output, devices.OutcomeRecorded)
		b.expectHeld(0)
		done := b.readTask(g.ID)
		if done.State != store.Succeeded || string(done.Output) != "{\"down_mbps\": 94.10, \"text\":\"\\u00e9 \u00fc\"}" {
			b.t.Errorf("task %s with output %s", done.State, done.Output)
		}
		b.sendResult("d1", *g, "succeeded", output, devices.OutcomeDuplicate)
		b.expectReason("d1", `{}`, devices.ReasonNone)
	})
}

func TestCapIsNeverExceeded(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		const capacity, fleet = 5, 40
		b.createPool("a", capacity, minute)
		var names []string
		for i := range fleet {
			names = append(names, fmt.Sprintf("d%d", i))
		}
		b.createBatch("a", nil, names...)
		var mu sync.Mutex
		held, refused := map[int]string{}, map[string]bool{}
		ask := func(name string) {
			reply := b.sendReport(name, `{"id":"x"}`)
			mu.Lock()
			defer mu.Unlock()
			if reply.Reason == devices.ReasonFull {
				refused[name] = true
				return
			}
			if reply.Task == nil {
				b.t.Errorf("%s: reason %s, want granted or full", name, reply.Reason)
				return
			}
			if other, taken := held[reply.Task.Slot]; taken && other != name {
				b.t.Errorf("slot %d given to %s and %s", reply.Task.Slot, other, name)
			}
			held[reply.Task.Slot] = name
			delete(refused, name)
		}
		var wait sync.WaitGroup
		for _, name := range names {
			wait.Go(func() { ask(name) })
		}
		wait.Wait()
		// On a busy machine, the ledger may confirm a slot too late. Then the slot is released. A device that was
		// refused before gets this slot when it reports again.
		for i := 0; len(held) < capacity && i < maxRetries*fleet; i++ {
			ask(names[i%fleet])
		}
		if len(held) != capacity || len(refused) != fleet-capacity {
			b.t.Errorf("%d held, %d refused; want %d and %d", len(held), len(refused), capacity, fleet-capacity)
		}
		b.expectHeld(capacity)
	})
}

func TestResultsEndTasksAsTheySay(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 10, minute)
		b.createBatch("a", func(in *store.Batch) { in.MaxAttempts = 2; in.RetryBackoff = 0 }, "fails", "rejects", "returns", "cancelled")

		failing := b.expectGrant("fails")
		// The reply to the failed result contains the retry of the task: attempt 2, with a higher token.
		reply := b.sendResult("fails", failing, "failed", `,"error":"no route"`, devices.OutcomeRecorded)
		if reply.Task == nil || reply.Task.Attempt != 2 || reply.Task.Token <= failing.Token {
			b.t.Fatalf("after a failure: %+v, want attempt 2", reply.Task)
		}
		b.sendResult("fails", *reply.Task, "failed", `,"error":"still none"`, devices.OutcomeRecorded)
		if got := b.readTask(failing.ID); got.State != store.Failed || got.Error != "still none" || got.Attempts != 2 {
			b.t.Errorf("task %+v, want failed after two attempts", got)
		}
		// Both results are sent again. Each is recognized as a duplicate by its own token.
		b.sendResult("fails", failing, "failed", "", devices.OutcomeDuplicate)
		b.sendResult("fails", *reply.Task, "succeeded", "", devices.OutcomeDuplicate)
		b.expectState(failing.ID, store.Failed)

		rejecting := b.expectGrant("rejects")
		b.sendResult("rejects", rejecting, "rejected", "", devices.OutcomeRecorded)
		b.expectState(rejecting.ID, store.Failed)

		returning := b.expectGrant("returns")
		after := b.sendResult("returns", returning, "returned", `,"retry_after_ms":3600000`, devices.OutcomeRecorded)
		if after.Reason != devices.ReasonWindow {
			b.t.Errorf("after a return for an hour: %s, want window", after.Reason)
		}
		if got := b.readTask(returning.ID); got.State != store.Pending || got.Attempts != 0 || !got.Started {
			b.t.Errorf("returned task %+v: want pending, not counted", got)
		}

		stopping := b.expectGrant("cancelled")
		_, err := b.store.CancelTask(b.ctx, "test", stopping.ID)
		b.must(err)
		b.expectState(stopping.ID, store.Dispatched)
		notice := b.expectReason("cancelled", runningReport(stopping), devices.ReasonBusy)
		if len(notice.Cancel) != 1 || notice.Cancel[0].Why != devices.CancelCancelled || len(notice.Renewed) != 0 {
			b.t.Errorf("notice %+v, want one cancel", notice)
		}
		// The device does not mention its cancelled task in a report. It is asked to stop the task nevertheless,
		// and the task is not redelivered.
		if silent := b.expectReason("cancelled", `{}`, devices.ReasonBusy); len(silent.Cancel) != 1 {
			b.t.Errorf("cancel not told to a device that is silent about it: %+v", silent)
		}
		b.sendResult("cancelled", stopping, "failed", "", devices.OutcomeRecorded)
		b.expectState(stopping.ID, store.Cancelled)
		b.expectHeld(0)
	})
}

func TestResultsOfOtherGrantsChangeNothing(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 10, minute)
		b.createBatch("a", nil, "d1", "d2")
		one, two := b.expectGrant("d1"), b.expectGrant("d2")
		b.sendResult("d2", one, "succeeded", "", devices.OutcomeUnknown) // a task of another device
		wrong := two
		wrong.Token += 1000
		b.sendResult("d2", wrong, "succeeded", "", devices.OutcomeUnknown)
		b.sendResult("d2", wrong, "succeeded", "", devices.OutcomeUnknown) // the same result again; it gets the same outcome
		b.expectState(one.ID, store.Dispatched)
		b.expectState(two.ID, store.Dispatched)
		b.expectHeld(2)
		// Device d2 lists a task of another device as running. It is asked to cancel the task, and nothing changes.
		reply := b.sendReport("d2", runningReport(one))
		if len(reply.Cancel) != 1 || len(reply.Renewed) != 0 || reply.Reason != devices.ReasonBusy {
			b.t.Errorf("running a foreign task: %+v, want one cancel and busy", reply)
		}
		b.sendResult("d1", one, "succeeded", "", devices.OutcomeRecorded)
	})
}

func TestBadEntriesDoNotSpoilNeighbours(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 10, minute)
		b.createBatch("a", nil, "d1")
		g := b.expectGrant("d1")
		big := strings.Repeat("x", 33<<10)
		reply := b.sendReport("d1", fmt.Sprintf(`{"results":[
			{"task":"x","token":1,"status":"succeeded"},
			{"task":%[1]d,"token":%[2]d,"status":"succeeded","output":%[3]q,"later":1},
			{"task":%[1]d,"token":%[2]d,"status":"nonsense"}]}`, g.ID, g.Token, big))
		var outcomes []string
		for _, a := range reply.Acks {
			outcomes = append(outcomes, string(a.Outcome)+":"+a.Code)
		}
		want := "[rejected:invalid_task recorded:output_dropped rejected:invalid_status]"
		if fmt.Sprint(outcomes) != want {
			b.t.Errorf("acks %v, want %s", outcomes, want)
		}
		if got := b.readTask(g.ID); got.State != store.Succeeded || got.Output != nil {
			b.t.Errorf("task %s output %d bytes, want succeeded without output", got.State, len(got.Output))
		}
	})
}

func TestALeaseIsRenewedUntilMaxRun(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		const lease, maxRun, step = 10 * minute, 30 * minute, 4 * minute
		b.createPool("a", 10, lease)
		b.createBatch("a", func(in *store.Batch) { in.MaxRun = maxRun }, "d1")
		g := b.expectGrant("d1")
		for passed := time.Duration(0); passed < maxRun; passed += step {
			reply := b.sendReport("d1", runningReport(g))
			if len(reply.Cancel) != 0 || len(reply.Renewed) != 1 {
				b.t.Fatalf("after %s: reply %+v, want a renewal", passed, reply)
			}
			if left := time.Duration(reply.Renewed[0].LeaseMS) * time.Millisecond; left <= 0 || left > min(lease, maxRun-passed) {
				b.t.Fatalf("after %s renewed for %s", passed, left)
			}
			b.ageGrants(step)
		}
		reply := b.sendReport("d1", runningReport(g))
		if len(reply.Renewed) != 0 || len(reply.Cancel) != 1 || reply.Cancel[0].Why != devices.CancelMaxRun {
			b.t.Fatalf("after max_run: reply %+v, want to stop for it", reply)
		}
		// The task was cancelled. Any result of it except a success ends the task.
		b.sendResult("d1", g, "failed", "", devices.OutcomeRecorded)
		b.expectState(g.ID, store.Cancelled)
	})
}

func TestARefusalSaysItsReason(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("full", 0, minute)
		b.createPool("open", 5, minute)
		future := time.Now().Add(time.Hour)
		b.createBatch("full", nil, "full", "elsewhere")
		b.createBatch("open", nil, "elsewhere", "blocked")
		b.createBatch("open", func(in *store.Batch) { in.NotBefore = &future }, "early")
		past := time.Now().Add(-time.Hour)
		b.createBatch("open", func(in *store.Batch) { in.NotAfter = &past }, "gone")

		b.expectReason("full", `{}`, devices.ReasonFull)
		if got := b.expectGrant("elsewhere"); got.Pool != "open" {
			b.t.Errorf("granted in pool %s, want the one that has room", got.Pool)
		}
		early := b.expectReason("early", `{}`, devices.ReasonWindow)
		if early.ReportAfterMS < 30_000 || early.ReportAfterMS > 36_000 {
			b.t.Errorf("an hour early: report after %d ms, want about a period", early.ReportAfterMS)
		}
		b.expectReason("gone", `{}`, devices.ReasonNone)
		if n, err := b.Upkeep.ExpireTasks(b.ctx); n != 1 || err != nil {
			b.t.Errorf("expired %d, %v; want 1", n, err)
		}

		b.expectReason("blocked", `{"accept":false}`, devices.ReasonDeclined) // this report registers the device
		b.must(b.store.SetBlocked(b.ctx, "test", "blocked", true, ""))
		b.expectReason("blocked", `{}`, devices.ReasonBlocked)
		_, _, err := b.store.PutPool(b.ctx, "test", "open", store.PoolSpec{Capacity: 5, Lease: minute, Paused: true})
		b.must(err)
		b.must(b.store.SetBlocked(b.ctx, "test", "blocked", false, ""))
		b.expectReason("blocked", `{}`, devices.ReasonPaused)
	})
}

// In one batch, a task with a higher priority must go before an older task.
func TestPriorityThenAge(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 5, minute)
	urgent := 1
	batch, err := b.store.CreateBatch(b.ctx, "test", store.Batch{Pool: "a", MaxAttempts: 1}, store.NewBatchTasks{
		Tasks: func(yield func(store.NewTask, error) bool) {
			for _, priority := range []*int{nil, nil, &urgent} {
				if !yield(store.NewTask{Device: "d1", Priority: priority}, nil) {
					return
				}
			}
		},
	})
	must.Succeed(t, err)
	var order []int64
	for range 3 {
		g := b.expectGrant("d1")
		order = append(order, g.ID)
		b.sendResult("d1", g, "succeeded", "", devices.OutcomeRecorded) // the reply contains the next grant
	}
	if len(order) != 3 || order[0] < order[1] || order[0] < order[2] || order[1] > order[2] {
		t.Errorf("tasks of batch %d in the order %v, want the last, then by age", batch.ID, order)
	}
}

// One device has tasks in several batches. The tasks must start in the order of the pool, which depends on the slots
// that other devices hold for each batch.
func TestOrderWithinADeviceIsThatOfThePool(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 9, minute)
		old := b.createBatch("a", nil, "d1", "d2", "d3")
		young := b.createBatch("a", nil, "d1", "d4")
		heavy := b.createBatch("a", func(in *store.Batch) { in.Weight = 3 }, "d1", "d5")
		for _, device := range []string{"d2", "d3", "d4", "d5"} {
			b.expectGrant(device)
		}
		// The slots held by other devices, divided by the weight of the batch: old 2/1, young 1/1, heavy 1/3.
		for i, want := range []int64{heavy, young, old} {
			g := b.expectGrant("d1")
			if got := b.readTask(g.ID).Batch; got != want {
				b.t.Errorf("grant %d is of batch %d, want %d", i, got, want)
			}
			b.sendResult("d1", g, "succeeded", `,"output":null`, devices.OutcomeRecorded)
		}
	})
}

func TestDuplicateReportsAtOnceGetOneGrant(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 60, minute)
		b.createBatch("a", nil, "d1")
		var mu sync.Mutex
		tokens := map[int64]bool{}
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() {
				reply := b.sendReport("d1", `{"id":"same"}`)
				mu.Lock()
				defer mu.Unlock()
				if reply.Task != nil {
					tokens[reply.Task.Token] = true
				}
			})
		}
		wait.Wait()
		if len(tokens) != 1 {
			b.t.Errorf("tokens %v: one grant for one device", tokens)
		}
		b.expectHeld(1) // the slots of the other reports were released
	})
}

func TestAttributesOverTheirLimitDoNotCostAResult(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1")
	g := b.expectGrant("d1")
	b.sendReport("d1", fmt.Sprintf(`{"attributes":{"one":%q}}`, strings.Repeat("x", 7<<10)))
	reply := b.sendReport("d1", fmt.Sprintf(`{"attributes":{"two":%q},"results":[{"task":%d,"token":%d,"status":"succeeded"}]}`,
		strings.Repeat("y", 7<<10), g.ID, g.Token))
	if len(reply.Acks) != 1 || reply.Acks[0].Outcome != devices.OutcomeRecorded || reply.Code != "attributes_too_large" {
		t.Errorf("reply %+v, want the result recorded and the attributes refused", reply)
	}
	d, err := b.store.Device(b.ctx, "d1")
	if err != nil || strings.Contains(string(d.Attributes), "two") || !strings.Contains(string(d.Attributes), "one") {
		t.Errorf("attributes %.40s, %v: want them unchanged", d.Attributes, err)
	}
}
