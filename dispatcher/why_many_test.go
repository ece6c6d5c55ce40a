package dispatcher_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// `why` summarizes the reasons of many waiting tasks. The summary must have the same reasons as the explanations of
// the single tasks.
func TestWhyOfManyAgreesWithWhyOfEach(t *testing.T) {
	t.Parallel()
	for round, change := range map[string]func(*store.PoolSpec){
		"room": func(*store.PoolSpec) {}, "full": func(s *store.PoolSpec) { s.Capacity = 1 },
		"paused": func(s *store.PoolSpec) { s.Paused = true },
	} {
		t.Run(round, func(t *testing.T) {
			t.Parallel()
			runOnServers(t, func(b *testBench) {
				batches := b.createMixedPool(rand.New(rand.NewPCG(21, uint64(len(round)))))
				b.changePool("", change)
				found := b.expectAgreement(store.TaskScope{Pool: "a"})
				for _, batch := range batches {
					b.expectAgreement(store.TaskScope{Batch: batch})
				}
				wanted := map[string][]decision.Code{
					"room": {
						decision.CodeDeviceUnseen, decision.CodeLimited, decision.CodeBatchWindow, decision.CodeBatchPaused, decision.CodeBackoff,
						decision.CodeNextReport, decision.CodeBlocked, decision.CodeBusy, decision.CodeOtherFirst, decision.CodeCancelling, decision.CodeDeviceUnknown,
						decision.CodeNotBefore, decision.CodeExpiring,
					},
					"full": {decision.CodeFull, decision.CodeLimited, decision.CodeBatchWindow}, "paused": {decision.CodePoolPaused},
				}[round]
				for _, code := range wanted {
					if found[code] == 0 {
						b.t.Errorf("nothing waits for %s: %v", code, found)
					}
				}
			}, withLongPeriod)
		})
	}
}

// createMixedPool fills pool a with tasks of all kinds, for devices in all kinds of states.
func (b *testBench) createMixedPool(draw *rand.Rand) (batches []int64) {
	b.t.Helper()
	b.createLimitedPool(30)
	b.createPool("other", 9, time.Minute)
	now, err := b.store.Clock(b.ctx)
	b.must(err)
	var names []string
	seen := map[string]store.LastReport{}
	for i := range 24 {
		name := fmt.Sprintf("d%02d", i)
		names = append(names, name)
		if i == 23 {
			break // this device is not registered
		}
		b.createAccountDevice(name, fmt.Sprint("account-", i%5))
		if i%4 != 3 { // the other devices never report
			seen[name] = store.LastReport{At: now}
		}
	}
	b.must(b.store.TouchDevices(b.ctx, seen))
	some := func(share float64) (list []string) {
		for _, name := range names {
			if draw.Float64() < share {
				list = append(list, name)
			}
		}
		return list
	}
	add := func(change func(*store.Batch), names ...string) int64 {
		batches = append(batches, b.createBatch("a", change, names...))
		return batches[len(batches)-1]
	}
	b.createBatch("other", nil, "d02", "d06", "d10")
	b.createBatch("a", nil, "d20", "d21")
	b.expectGrant("d20")
	add(func(in *store.Batch) { in.RetryBackoff = time.Hour }, "d22")
	fails := b.expectGrant("d22")
	b.sendReport("d22", fmt.Sprintf(`{"id":"f","accept":false,"results":[{"task":%d,"token":%d,"status":"failed"}]}`, fails.ID, fails.Token))
	add(nil, append(some(0.7), "d23", "d20")...)
	add(func(in *store.Batch) { in.Priority = 3 }, append(some(0.3), some(0.3)...)...)
	b.setWindows(add(nil, some(0.5)...), b.closedWindows())
	b.pauseBatch(add(nil, some(0.4)...), "ill")
	b.must(b.store.SetBlocked(b.ctx, "ann", "d01", true, ""))
	add(nil, "d01", "d00", "d04", "d08")
	hour, past := now.Add(time.Hour), now.Add(-time.Hour)
	for i, name := range some(0.5) {
		times := []store.NewTask{{Device: name, NotBefore: &hour}, {Device: name, NotAfter: &past}}
		batches = append(batches, b.queueTasks("a", nil, oneTask(times[i%2])))
	}
	late := add(nil, some(0.3)...)
	b.setMaxWait(late, time.Millisecond)
	stopped := add(nil, some(0.2)...)
	_, err = b.store.CancelBatch(b.ctx, "ann", stopped)
	b.must(err)
	b.reconcile()
	return batches
}

// expectAgreement reads three things: the summary of the reasons, the list of all waiting tasks and the explanation of
// each task. They must agree. expectAgreement returns the number of tasks by the code of the reason.
func (b *testBench) expectAgreement(filter store.TaskScope) map[decision.Code]int64 {
	b.t.Helper()
	summary, err := b.Explainer.SummarizeWaiting(b.ctx, filter, dispatcher.MaxEvaluated)
	b.must(err)
	counts, sum := map[decision.Code]int64{}, int64(0)
	for _, p := range summary.Groups {
		counts[p.Code] += p.Count
		sum += p.Count
		if p.Label == "" || p.Detail == "" || p.Remedy == "" || p.Count != int64(p.Evaluated) || len(p.Examples) == 0 || !decision.IsWaitingCode(p.Code) {
			b.t.Errorf("%+v: part %+v", filter, p)
		}
	}
	if sum != summary.Total || int64(summary.Evaluated) != summary.Total {
		b.t.Errorf("%+v: %d in parts, %d were judged of %d", filter, sum, summary.Evaluated, summary.Total)
	}
	listed := b.listWaiting(filter)
	if int64(len(listed)) != summary.Total {
		b.t.Errorf("%+v: %d are listed of %d", filter, len(listed), summary.Total)
	}
	for _, j := range listed {
		counts[j.Code]--
		if own := b.explainTask(j.Task.ID).Causes[0]; own.Code != j.Code || own.Remedy != j.Remedy {
			b.t.Errorf("%+v: task %d of batch %d for %s: %+v, by itself %+v", filter, j.Task.ID, j.Task.Batch, j.Task.Device, j.Cause, own)
		}
	}
	for code, left := range counts {
		if left != 0 {
			b.t.Errorf("%+v: %d more in the part of %s than in the list", filter, left, code)
		}
	}
	for _, p := range summary.Groups {
		counts[p.Code] = p.Count
	}
	return counts
}

func (b *testBench) listWaiting(filter store.TaskScope) (all []decision.ExplainedTask) {
	b.t.Helper()
	for after := (store.WaitingPosition{}); ; {
		judged, more, err := b.Explainer.ExplainNextTasks(b.ctx, filter, after, 7)
		b.must(err)
		if all = append(all, judged...); !more {
			return all
		}
		after = store.WaitingPositionOf(judged[len(judged)-1].Task)
	}
}

// `why` evaluates only a sample of many waiting tasks. The counts of its groups must add up to the total, and be
// roughly correct.
func TestWhyOfASample(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t, withLongPeriod)
	b.createPool("a", 5, time.Minute)
	names := make([]string, 1200)
	for i := range names {
		names[i] = fmt.Sprintf("d%04d", i)
	}
	b.registerDevices(names[:600]...)
	b.pauseBatch(b.createBatch("a", nil, names...), "")
	b.createBatch("a", nil, names[:401]...)
	b.reconcile()
	var asked atomic.Int64
	spies.runBefore("ReadQueuePlaces", func() { asked.Add(1) })
	summary, err := b.Explainer.SummarizeWaiting(b.ctx, store.TaskScope{Pool: "a"}, dispatcher.MaxEvaluated)
	b.must(err)
	sum := int64(0)
	for _, p := range summary.Groups {
		sum += p.Count
	}
	if summary.Total != 1601 || sum != 1601 || summary.Evaluated > 500 || summary.Evaluated < 400 {
		t.Errorf("%d in parts, %d judged of %d", sum, summary.Evaluated, summary.Total)
	}
	if !slices.IsSortedFunc(summary.Groups, func(x, y decision.CauseGroup) int { return int(y.Count - x.Count) }) || len(summary.Groups) != 2 {
		t.Fatalf("%+v", summary.Groups)
	}
	if p := summary.Groups[0]; p.Code != decision.CodeBatchPaused || p.Count < 1150 || p.Count > 1250 {
		t.Errorf("%+v, want 1200", p)
	}
	if p := summary.Groups[1]; p.Code != decision.CodeDeviceUnseen || p.Label != "never reported" {
		t.Errorf("%+v, want 401 unseen", p)
	}
	if asked.Load() > 4 { // one call for each set of batches in which devices have tasks
		t.Errorf("the semaphore was asked %d times", asked.Load())
	}
}
