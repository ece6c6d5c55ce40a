package decision

import (
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// decisionCase is a situation of a device, with the outcome that Decide must return for it.
type decisionCase struct {
	situation Situation
	want      choiceSummary
}

type choiceSummary struct {
	reason    devices.Reason
	task      int64
	redeliver bool
	until     time.Time
	shared    bool
}

func expectDecisions(t *testing.T, cases map[string]decisionCase) {
	t.Helper()
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.situation.Now = testMoment()
			choice := Decide(test.situation)
			got := choiceSummary{choice.Reason, 0, choice.Redeliver, choice.Until, choice.Shared}
			if len(choice.Tasks) > 0 {
				got.task = choice.Tasks[0].Task
			}
			if got != test.want {
				t.Errorf("decided %+v, want %+v", got, test.want)
			}
		})
	}
}

// afterMoment returns testMoment plus the duration passed.
func afterMoment(passed time.Duration) time.Time { return testMoment().Add(passed) }

// acceptingSituation returns the situation of a device that accepts a task and has these candidates as open tasks.
func acceptingSituation(candidates ...store.Candidate) Situation {
	return Situation{Accept: true, Candidates: candidates}
}

// openCandidate returns a task of the oldest batch that may start. The changes are applied to it.
func openCandidate(task int64, changes ...func(*store.Candidate)) store.Candidate {
	c := store.Candidate{Task: task, Batch: 1, Pool: "a", CreatedAt: afterMoment(-time.Hour)}
	for _, change := range changes {
		change(&c)
	}
	return c
}

func inYoungerBatch(c *store.Candidate) { c.Batch, c.CreatedAt = 2, afterMoment(-time.Minute) }

func notBeforeIn(passed time.Duration) func(*store.Candidate) {
	return func(c *store.Candidate) { c.NotBefore = afterMoment(passed) }
}

func retryIn(passed time.Duration) func(*store.Candidate) {
	return func(c *store.Candidate) { c.RetryAt = afterMoment(passed) }
}

// inBatchWindow returns a change: it gives the batch a window into which the task's lease of 5 min must fit.
func inBatchWindow(from, until time.Duration) func(*store.Candidate) {
	return func(c *store.Candidate) {
		c.Window, c.Lease, c.FinishInside = store.Opening{From: afterMoment(from), Until: afterMoment(until)}, 5*time.Minute, true
	}
}

func inPoolWindow(from, until time.Duration) func(*store.Candidate) {
	return func(c *store.Candidate) {
		c.PoolWindow = store.Opening{From: afterMoment(from), Until: afterMoment(until)}
	}
}

func mayOutlastWindow(c *store.Candidate) { c.FinishInside = false }

func inPausedBatch(c *store.Candidate) { c.BatchPaused = true }

func inPausedPool(c *store.Candidate) { c.PoolPaused = true }

func TestTimesDecideWhetherATaskStarts(t *testing.T) {
	t.Parallel()
	shut, younger := openCandidate(7, inBatchWindow(time.Hour, 2*time.Hour)), openCandidate(3, inYoungerBatch)
	expectDecisions(t, map[string]decisionCase{
		"window open":                       {acceptingSituation(openCandidate(7, inBatchWindow(0, 5*time.Minute+1))), choiceSummary{reason: devices.ReasonGranted, task: 7}},
		"window closed":                     {acceptingSituation(shut), choiceSummary{reason: devices.ReasonWindow, until: afterMoment(time.Hour), shared: true}},
		"window too short for it":           {acceptingSituation(openCandidate(7, inBatchWindow(-time.Hour, 5*time.Minute))), choiceSummary{reason: devices.ReasonWindow, until: afterMoment(5 * time.Minute), shared: true}},
		"may be cut off":                    {acceptingSituation(openCandidate(7, inBatchWindow(-time.Hour, 1), mayOutlastWindow)), choiceSummary{reason: devices.ReasonGranted, task: 7}},
		"next window too short":             {acceptingSituation(openCandidate(7, inBatchWindow(time.Hour, time.Hour+time.Minute))), choiceSummary{reason: devices.ReasonWindow, until: afterMoment(time.Hour + time.Minute), shared: true}},
		"window over":                       {acceptingSituation(openCandidate(7, inBatchWindow(-time.Hour, 0))), choiceSummary{reason: devices.ReasonWindow}},
		"pool's window closed":              {acceptingSituation(openCandidate(7, inBatchWindow(-time.Hour, time.Hour), inPoolWindow(time.Minute, time.Hour))), choiceSummary{reason: devices.ReasonWindow, until: afterMoment(time.Minute), shared: true}},
		"both closed, the later":            {acceptingSituation(openCandidate(7, inBatchWindow(time.Hour, 2*time.Hour), inPoolWindow(time.Minute, time.Hour))), choiceSummary{reason: devices.ReasonWindow, until: afterMoment(time.Hour), shared: true}},
		"closed, and a later retry":         {acceptingSituation(openCandidate(7, inBatchWindow(time.Minute, time.Hour), retryIn(2*time.Minute))), choiceSummary{reason: devices.ReasonWindow, until: afterMoment(2 * time.Minute)}},
		"closed, another open":              {acceptingSituation(shut, younger), choiceSummary{reason: devices.ReasonGranted, task: 3}},
		"known before unknown":              {acceptingSituation(openCandidate(7, inBatchWindow(-time.Hour, 0)), shut), choiceSummary{reason: devices.ReasonWindow, until: afterMoment(time.Hour), shared: true}},
		"a retry is the task's own":         {acceptingSituation(openCandidate(7, retryIn(time.Hour))), choiceSummary{reason: devices.ReasonWindow, until: afterMoment(time.Hour)}},
		"eligible exactly now":              {acceptingSituation(openCandidate(7, notBeforeIn(0))), choiceSummary{reason: devices.ReasonGranted, task: 7}},
		"not yet":                           {acceptingSituation(openCandidate(7, notBeforeIn(time.Hour))), choiceSummary{reason: devices.ReasonWindow, until: afterMoment(time.Hour), shared: true}},
		"not yet, the earliest":             {acceptingSituation(openCandidate(7, notBeforeIn(time.Hour)), openCandidate(8, notBeforeIn(time.Minute))), choiceSummary{reason: devices.ReasonWindow, until: afterMoment(time.Minute), shared: true}},
		"a task to come does not hide open": {acceptingSituation(openCandidate(9, inYoungerBatch, func(c *store.Candidate) { c.Priority = 5 }, notBeforeIn(1)), openCandidate(7)), choiceSummary{reason: devices.ReasonGranted, task: 7}},
	})
}

func TestWhatADeviceIsAndHoldsDecidesFirst(t *testing.T) {
	t.Parallel()
	grant := &store.Grant{Task: 5, Token: 50, LeaseUntil: afterMoment(time.Minute)}
	cancelled := &store.Grant{Task: 5, Token: 50, CancelWhy: "cancelled", LeaseUntil: afterMoment(time.Minute)}
	expectDecisions(t, map[string]decisionCase{
		"nothing open":                  {Situation{Accept: true}, choiceSummary{reason: devices.ReasonNone}},
		"an open task":                  {acceptingSituation(openCandidate(7)), choiceSummary{reason: devices.ReasonGranted, task: 7}},
		"blocked before all":            {Situation{Blocked: true, Accept: true, Candidates: []store.Candidate{openCandidate(7)}}, choiceSummary{reason: devices.ReasonBlocked}},
		"declined":                      {Situation{Candidates: []store.Candidate{openCandidate(7)}}, choiceSummary{reason: devices.ReasonDeclined}},
		"declined while holding":        {Situation{HeldGrant: grant}, choiceSummary{reason: devices.ReasonDeclined}},
		"told to stop":                  {Situation{Accept: true, MustStop: true, Candidates: []store.Candidate{openCandidate(7)}}, choiceSummary{reason: devices.ReasonBusy}},
		"holds and says so":             {Situation{Accept: true, HeldGrant: grant, Mentioned: true, Candidates: []store.Candidate{openCandidate(7)}}, choiceSummary{reason: devices.ReasonBusy, until: afterMoment(time.Minute)}},
		"holds and does not know":       {Situation{Accept: true, HeldGrant: grant, Candidates: []store.Candidate{openCandidate(7)}}, choiceSummary{reason: devices.ReasonGranted, redeliver: true}},
		"holds what is cancelled":       {Situation{Accept: true, HeldGrant: cancelled, Candidates: []store.Candidate{openCandidate(7)}}, choiceSummary{reason: devices.ReasonBusy, until: afterMoment(time.Minute)}},
		"after a restore":               {Situation{Accept: true, Candidates: []store.Candidate{openCandidate(7, func(c *store.Candidate) { c.Standstill = afterMoment(time.Minute) })}}, choiceSummary{reason: devices.ReasonUnavailable, until: afterMoment(time.Minute)}},
		"after a restore, holds":        {Situation{Accept: true, Standstill: afterMoment(time.Minute), HeldGrant: grant}, choiceSummary{reason: devices.ReasonUnavailable, until: afterMoment(time.Minute)}},
		"after a restore, says so":      {Situation{Accept: true, Standstill: afterMoment(time.Minute), HeldGrant: grant, Mentioned: true}, choiceSummary{reason: devices.ReasonBusy, until: afterMoment(time.Minute)}},
		"after a restore, nothing open": {Situation{Accept: true, Standstill: afterMoment(time.Minute)}, choiceSummary{reason: devices.ReasonNone}},
		"after a restore, another pool goes on": {Situation{Accept: true, Candidates: []store.Candidate{
			openCandidate(7, func(c *store.Candidate) { c.Standstill = afterMoment(time.Minute) }), openCandidate(8, func(c *store.Candidate) { c.Pool = "other" }),
		}}, choiceSummary{reason: devices.ReasonGranted, task: 8}},
		"after a restore, another pool is full": {Situation{Accept: true, FullPools: map[string]bool{"other": true}, Candidates: []store.Candidate{
			openCandidate(7, func(c *store.Candidate) { c.Standstill = afterMoment(time.Minute) }), openCandidate(8, func(c *store.Candidate) { c.Pool = "other" }),
		}}, choiceSummary{reason: devices.ReasonFull}},
		"when that is over": {Situation{Accept: true, Candidates: []store.Candidate{openCandidate(7, func(c *store.Candidate) { c.Standstill = afterMoment(0) })}}, choiceSummary{reason: devices.ReasonGranted, task: 7}},
	})
}

func TestPoolsAndBatchesDecideWhatStarts(t *testing.T) {
	t.Parallel()
	younger, full := openCandidate(3, inYoungerBatch), map[string]bool{"a": true}
	expectDecisions(t, map[string]decisionCase{
		"older batch first":             {acceptingSituation(younger, openCandidate(7)), choiceSummary{reason: devices.ReasonGranted, task: 7}},
		"pool full":                     {Situation{Accept: true, Candidates: []store.Candidate{openCandidate(7)}, FullPools: full}, choiceSummary{reason: devices.ReasonFull}},
		"pool full, another free":       {Situation{Accept: true, Candidates: []store.Candidate{openCandidate(7), openCandidate(11, inYoungerBatch, func(c *store.Candidate) { c.Pool = "b" })}, FullPools: full}, choiceSummary{reason: devices.ReasonGranted, task: 11}},
		"pool paused":                   {acceptingSituation(openCandidate(7, inPausedPool)), choiceSummary{reason: devices.ReasonPaused}},
		"batch paused":                  {acceptingSituation(openCandidate(7, inPausedBatch)), choiceSummary{reason: devices.ReasonPaused}},
		"paused, another open":          {acceptingSituation(openCandidate(7, inPausedBatch), younger), choiceSummary{reason: devices.ReasonGranted, task: 3}},
		"full says more than paused":    {Situation{Accept: true, Candidates: []store.Candidate{openCandidate(7, inPausedBatch), younger}, FullPools: full}, choiceSummary{reason: devices.ReasonFull}},
		"paused says more than not yet": {acceptingSituation(openCandidate(7, notBeforeIn(time.Hour)), openCandidate(7, inPausedBatch)), choiceSummary{reason: devices.ReasonPaused}},
	})
}

// The oldest batch of a device is in one pool. Decide must return all tasks of this pool that may start. It does not decide which of them
// comes first.
func TestDecideTriesAllOfOnePool(t *testing.T) {
	t.Parallel()
	s := Situation{Now: testMoment(), Accept: true, Candidates: []store.Candidate{
		{Task: 4, Batch: 4, Pool: "b", Priority: 9},
		{Task: 3, Batch: 3, Pool: "a", Weight: 5},
		{Task: 1, Batch: 1, Pool: "a", BatchPaused: true},
		{Task: 2, Batch: 2, Pool: "a"},
	}}
	tasks := func(full ...string) (tasks []int64) {
		s.FullPools = make(map[string]bool)
		for _, pool := range full {
			s.FullPools[pool] = true
		}
		for _, c := range Decide(s).Tasks {
			tasks = append(tasks, c.Task)
		}
		return tasks
	}
	for name, test := range map[string]struct{ got, want []int64 }{
		"all":           {tasks(), []int64{2, 3}},
		"the next pool": {tasks("a"), []int64{4}},
		"both full":     {tasks("a", "b"), nil},
	} {
		if !slices.Equal(test.got, test.want) {
			t.Errorf("%s: %v, want %v", name, test.got, test.want)
		}
	}
}

func TestTheFirstTaskIsWhatADeviceRunsOrWouldTryFirst(t *testing.T) {
	t.Parallel()
	younger, pausedBatch := openCandidate(3, inYoungerBatch), openCandidate(7, inPausedBatch)
	for name, test := range map[string]struct {
		view store.DeviceView
		want int64
	}{
		"no open task":      {store.DeviceView{}, 0},
		"no task may start": {store.DeviceView{Candidates: []store.Candidate{openCandidate(3, inYoungerBatch, inPausedBatch), pausedBatch}}, 7},
		"one may start":     {store.DeviceView{Candidates: []store.Candidate{pausedBatch, younger}}, 3},
		"one runs":          {store.DeviceView{Grant: &store.Grant{Task: 5}, Candidates: []store.Candidate{younger}}, 5},
	} {
		test.view.Now = testMoment()
		if task := FirstTask(test.view); task != test.want {
			t.Errorf("%s: task %d, want %d", name, task, test.want)
		}
	}
}
