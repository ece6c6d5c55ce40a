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

// lateness is a pool of 384 waiting tasks whose evaluation is interrupted. The devices of the first half of
// the tasks are unknown, and the devices of the second half have never reported.
type lateness struct {
	*bench
	spies *spies
	ctx   context.Context //nolint:containedctx // of the answer that runs out of time
	stop  context.CancelFunc
}

func late(t *testing.T) lateness {
	t.Helper()
	b, spies := spied(t, unhurried)
	b.pool("a", 500, time.Minute)
	for half, kind := range []string{"unknown", "unseen"} {
		names := make([]string, 64)
		for i := range names {
			names[i] = fmt.Sprintf("%s-%02d", kind, i)
		}
		if half == 1 {
			_, err := b.store.EnsureDevices(b.ctx, names...)
			b.must(err)
		}
		for bit := range 6 { // nearly every device has its own set of batches, and each set needs a call of the semaphore
			var own []string
			for i, name := range names {
				if i>>bit&1 == 1 {
					own = append(own, name)
				}
			}
			b.batch("a", nil, own...)
		}
	}
	b.reconcile()
	ctx, stop := context.WithCancel(b.ctx)
	return lateness{b, spies, ctx, stop}
}

// endAt cancels the context at call number n of the semaphore.
func (l lateness) endAt(n int64) {
	var asked atomic.Int64
	l.spies.before("Standing", func() {
		if asked.Add(1) == n {
			l.stop()
		}
	})
}

// If the time runs out, the tasks that were evaluated until then are a fair sample of all waiting tasks.
func TestWhyJudgesAFairSampleInTheTimeThereIs(t *testing.T) {
	t.Parallel()
	l := late(t)
	l.endAt(100)
	said, err := l.Explainer.WhyWaiting(l.ctx, store.WaitingOf{Pool: "a"}, dispatcher.MostJudged)
	l.must(err)
	sum := int64(0)
	for _, p := range said.Parts {
		sum += p.Count
	}
	if said.Total != 384 || sum != 384 || said.Judged != 112 && said.Judged != 240 {
		t.Errorf("%d in parts, %d judged of %d; want the first 112 or 240 of 384", sum, said.Judged, said.Total)
	}
	for _, code := range []decision.Code{decision.CodeDeviceUnknown, decision.CodeDeviceUnseen} {
		if !slices.ContainsFunc(said.Parts, func(p decision.Part) bool { return p.Code == code }) {
			t.Errorf("no task with %s was judged: both kinds of devices have half of the tasks", code)
		}
	}
}

// dueSoon is a context with a near deadline that never ends.
type dueSoon struct{ context.Context } //nolint:containedctx // it is one

func (dueSoon) Deadline() (time.Time, bool) { return time.Now().Add(50 * time.Millisecond), true }

// If the semaphore does not answer in time, the tasks are evaluated by the ledger alone.
func TestWhyOfASemaphoreThatIsTooSlow(t *testing.T) {
	t.Parallel()
	l := late(t)
	answers := make(chan struct{})
	defer close(answers)
	l.spies.before("Standing", func() { <-answers })
	said, err := l.Explainer.WhyWaiting(dueSoon{l.ctx}, store.WaitingOf{Pool: "a"}, dispatcher.MostJudged)
	l.must(err)
	if said.Total != 384 || said.Judged != 384 || len(said.Parts) != 1 || said.Parts[0].Code != decision.CodeUnavailable {
		t.Errorf("%+v", said)
	}
}

// A list ends after the last task that was evaluated in time, and can be continued from there.
func TestAListOfWaitingTasksEndsInTime(t *testing.T) {
	t.Parallel()
	l := late(t)
	l.endAt(60)
	first, more, err := l.Explainer.NextWaiting(l.ctx, store.WaitingOf{Pool: "a"}, store.LineMark{}, dispatcher.MostJudged)
	l.must(err)
	if !more || len(first) == 0 || len(first) >= 384 {
		t.Fatalf("%d judged, more: %t", len(first), more)
	}
	l.spies.ease()
	rest, more, err := l.Explainer.NextWaiting(l.bench.ctx, store.WaitingOf{Pool: "a"}, store.MarkOf(first[len(first)-1].Task), dispatcher.MostJudged)
	l.must(err)
	if more || len(first)+len(rest) != 384 {
		t.Errorf("%d and then %d, more: %t; want 384 together", len(first), len(rest), more)
	}
}
