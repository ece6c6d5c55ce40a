package dispatcher_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// withLongPeriod sets a long report period, so that no device counts as silent because the machine stalls.
func withLongPeriod(c *dispatcher.Config) { c.ReportPeriod = 10 * time.Minute }

// explainTask returns the explanation of `why` for a task, and checks that it is complete.
func (b *testBench) explainTask(task int64) decision.Explanation {
	b.t.Helper()
	e, err := b.Explainer.ExplainTask(b.ctx, task)
	b.must(err)
	for _, r := range e.Causes {
		if r.Detail == "" || r.Remedy == "" || strings.Contains(r.Detail+r.Remedy, "%!") {
			b.t.Errorf("reason %+v", r)
		}
		b.expectActions(r)
	}
	if len(e.Causes) == 0 {
		b.t.Fatalf("task %d: no reason at all", task)
	}
	return e
}

// expectActions checks the remedy of a reason: every command in its text is one of its actions, in the same order.
// Only a forced release is no action, because it may exceed the cap.
func (b *testBench) expectActions(r decision.Cause) {
	b.t.Helper()
	rest := r.Remedy
	for _, a := range r.Actions {
		_, after, isNamed := strings.Cut(rest, a.Command)
		isAction := slices.ContainsFunc(decision.Actions(), func(row decision.Action) bool { return row.Act == a.Act && row.Subject == a.Subject })
		if !isNamed || !isAction || a.ID == "" || !strings.Contains(a.Command, a.ID) {
			b.t.Errorf("%s: action %+v of the remedy %q", r.Code, a, r.Remedy)
		}
		rest = after
	}
	if all := strings.Count(r.Remedy, "dispatcher "); all != len(r.Actions) && !strings.Contains(r.Remedy, "dispatcher pools release") {
		b.t.Errorf("%s: the remedy %q has %d commands, and the actions %+v", r.Code, r.Remedy, all, r.Actions)
	}
}

func causeCodes(e decision.Explanation) (list []decision.Code) {
	for _, r := range e.Causes {
		list = append(list, r.Code)
	}
	return list
}

// expectWhy checks that `why` gives exactly these reasons for a task, and that their texts contain all of the
// words.
func (b *testBench) expectWhy(task int64, want []decision.Code, words ...string) decision.Explanation {
	b.t.Helper()
	e := b.explainTask(task)
	if !slices.Equal(causeCodes(e), want) {
		b.t.Errorf("task %d: %q, want %q: %+v", task, causeCodes(e), want, e.Causes)
	}
	all := fmt.Sprintf("%+v", e.Causes)
	for _, word := range words {
		if !strings.Contains(all, word) {
			b.t.Errorf("task %d: %s does not say %q", task, all, word)
		}
	}
	return e
}

// deviceTaskIDs returns the task ids of a device in ascending order.
func (b *testBench) deviceTaskIDs(device string) (list []int64) {
	b.t.Helper()
	tasks, err := b.store.Tasks(b.ctx, store.TaskFilter{Device: device})
	b.must(err)
	for _, t := range tasks {
		list = append(list, t.ID)
	}
	return list
}

func (b *testBench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// changePool changes the settings of pool a, both in the ledger and in the semaphore.
func (b *testBench) changePool(reason string, change func(*store.PoolSpec)) {
	b.t.Helper()
	_, err := b.store.ChangePool(b.ctx, "ann", "a", reason, func(spec *store.PoolSpec) error {
		change(spec)
		return nil
	})
	b.must(err)
	_, err = b.Upkeep.ReconcilePool(b.ctx, "a")
	b.must(err)
}

// closedWindows returns a window that is closed now and for the next hours.
func (b *testBench) closedWindows() []store.Window {
	b.t.Helper()
	now, err := b.store.Clock(b.ctx)
	b.must(err)
	return []store.Window{{Cron: fmt.Sprintf("0 %d * * *", now.Add(12*time.Hour).Hour()), Duration: "1h", Timezone: "UTC"}}
}

func (b *testBench) setWindows(batch int64, windows []store.Window) {
	b.t.Helper()
	_, err := b.store.ChangeBatch(b.ctx, "bob", batch, func(in *store.Batch) error {
		in.Windows = windows
		return nil
	})
	b.must(err)
}

func (b *testBench) setMaxWait(batch int64, maxWait time.Duration) {
	b.t.Helper()
	_, err := b.store.ChangeBatch(b.ctx, "ann", batch, func(in *store.Batch) error {
		in.MaxWait = maxWait
		return nil
	})
	b.must(err)
}

func (b *testBench) pauseBatch(batch int64, reason string) {
	b.t.Helper()
	_, err := b.store.PauseBatch(b.ctx, "bob", batch, reason)
	b.must(err)
}

func (b *testBench) resumeBatch(batch int64) {
	b.t.Helper()
	_, err := b.store.ResumeBatch(b.ctx, "bob", batch)
	b.must(err)
}

// startOther lets the device "other" take a slot of pool a. endOther frees this slot.
func (b *testBench) startOther() {
	b.t.Helper()
	b.createBatch("a", nil, "other")
	b.expectGrant("other")
}

func (b *testBench) endOther() {
	b.t.Helper()
	b.sendResult("other", b.expectGrant("other"), "succeeded", "", devices.OutcomeRecorded) // expectGrant redelivers the task
}

// changePoolInLedger changes pool a only in the ledger.
func (b *testBench) changePoolInLedger(change func(*store.PoolSpec)) {
	b.t.Helper()
	_, err := b.store.ChangePool(b.ctx, "ann", "a", "", func(spec *store.PoolSpec) error {
		change(spec)
		return nil
	})
	b.must(err)
}
