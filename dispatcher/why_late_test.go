package dispatcher_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// interruptedPool is a pool of 384 waiting tasks. The test interrupts the evaluation of why they wait. The devices
// of the first half of the tasks are unknown, and the devices of the second half have never reported.
type interruptedPool struct {
	*testBench
	spies *storeSpies
	ctx   context.Context //nolint:containedctx // of the answer that runs out of time
	stop  context.CancelFunc
}

func newInterruptedPool(t *testing.T) interruptedPool {
	t.Helper()
	b, spies := newSpiedBench(t, withLongPeriod)
	b.createPool("a", 500, time.Minute)
	for half, kind := range []string{"unknown", "unseen"} {
		names := make([]string, 64)
		for i := range names {
			names[i] = fmt.Sprintf("%s-%02d", kind, i)
		}
		if half == 1 {
			b.registerDevices(names...)
		}
		for bit := range 6 { // nearly every device has its own set of batches, and each set needs a call of the semaphore
			var own []string
			for i, name := range names {
				if i>>bit&1 == 1 {
					own = append(own, name)
				}
			}
			b.createBatch("a", nil, own...)
		}
	}
	b.reconcile()
	ctx, stop := context.WithCancel(b.ctx)
	return interruptedPool{b, spies, ctx, stop}
}

// cancelAtCall cancels the context when the semaphore is called for the n-th time.
func (l interruptedPool) cancelAtCall(n int64) {
	var asked atomic.Int64
	l.spies.runBefore("ReadQueuePlaces", func() {
		if asked.Add(1) == n {
			l.stop()
		}
	})
}

// The time for an answer of `why` runs out. The tasks that were evaluated by then must be a fair sample of all waiting tasks of the pool.
func TestWhyJudgesAFairSampleInTheTimeThereIs(t *testing.T) {
	t.Parallel()
	l := newInterruptedPool(t)
	l.cancelAtCall(100)
	said, err := l.Explainer.SummarizeWaiting(l.ctx, store.TaskScope{Pool: "a"}, dispatcher.MaxEvaluated)
	l.must(err)
	sum := int64(0)
	for _, p := range said.Groups {
		sum += p.Count
	}
	if said.Total != 384 || sum != 384 || said.Evaluated != 112 && said.Evaluated != 240 {
		t.Errorf("%d in parts, %d judged of %d; want the first 112 or 240 of 384", sum, said.Evaluated, said.Total)
	}
	for _, code := range []decision.Code{decision.CodeDeviceUnknown, decision.CodeDeviceUnseen} {
		if !slices.ContainsFunc(said.Groups, func(p decision.CauseGroup) bool { return p.Code == code }) {
			t.Errorf("no task with %s was judged: both kinds of devices have half of the tasks", code)
		}
	}
}

// nearDeadline is a context with a deadline that is near. It does not end at this deadline.
type nearDeadline struct{ context.Context } //nolint:containedctx // it is one

func (nearDeadline) Deadline() (time.Time, bool) { return time.Now().Add(50 * time.Millisecond), true }

// The semaphore does not answer `why` in time. Then `why` must find the reasons of the tasks from the ledger alone.
func TestWhyOfASemaphoreThatIsTooSlow(t *testing.T) {
	t.Parallel()
	l := newInterruptedPool(t)
	answers := make(chan struct{})
	defer close(answers)
	l.spies.runBefore("ReadQueuePlaces", func() { <-answers })
	said, err := l.Explainer.SummarizeWaiting(nearDeadline{l.ctx}, store.TaskScope{Pool: "a"}, dispatcher.MaxEvaluated)
	l.must(err)
	if said.Total != 384 || said.Evaluated != 384 || len(said.Groups) != 1 || said.Groups[0].Code != decision.CodeUnavailable {
		t.Errorf("%+v", said)
	}
}

// The time for a list of waiting tasks runs out. The list must end after the last task that was evaluated, and the next page must continue
// there.
func TestAListOfWaitingTasksEndsInTime(t *testing.T) {
	t.Parallel()
	l := newInterruptedPool(t)
	l.cancelAtCall(60)
	first, more, err := l.Explainer.ExplainNextTasks(l.ctx, store.TaskScope{Pool: "a"}, store.WaitingPosition{}, dispatcher.MaxEvaluated)
	l.must(err)
	if !more || len(first) == 0 || len(first) >= 384 {
		t.Fatalf("%d judged, more: %t", len(first), more)
	}
	l.spies.removeHooks()
	rest, more, err := l.Explainer.ExplainNextTasks(l.testBench.ctx, store.TaskScope{Pool: "a"}, store.WaitingPositionOf(first[len(first)-1].Task), dispatcher.MaxEvaluated)
	l.must(err)
	if more || len(first)+len(rest) != 384 {
		t.Errorf("%d and then %d, more: %t; want 384 together", len(first), len(rest), more)
	}
}
