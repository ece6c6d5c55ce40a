package decision

import (
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// decision is a situation with the outcome that Decide must return for it.
type decision struct {
	in   Situation
	want outcome
}

type outcome struct {
	reason    devices.Reason
	task      int64
	redeliver bool
	until     time.Time
	shared    bool
}

func expectDecisions(t *testing.T, all map[string]decision) {
	t.Helper()
	for name, test := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.in.Now = moment()
			choice := Decide(test.in)
			got := outcome{choice.Reason, 0, choice.Redeliver, choice.Until, choice.Shared}
			if len(choice.Tasks) > 0 {
				got.task = choice.Tasks[0].Task
			}
			if got != test.want {
				t.Errorf("decided %+v, want %+v", got, test.want)
			}
		})
	}
}

// in returns the time that is passed after moment.
func in(passed time.Duration) time.Time { return moment().Add(passed) }

// asks returns the situation of a device that accepts a task and has these open tasks.
func asks(candidates ...store.Candidate) Situation {
	return Situation{Accept: true, Candidates: candidates}
}

// open returns a task of the oldest batch that may start, with changes applied.
func open(task int64, changes ...func(*store.Candidate)) store.Candidate {
	c := store.Candidate{Task: task, Batch: 1, Pool: "a", CreatedAt: in(-time.Hour)}
	for _, change := range changes {
		change(&c)
	}
	return c
}

func ofYoungerBatch(c *store.Candidate) { c.Batch, c.CreatedAt = 2, in(-time.Minute) }

func notFor(passed time.Duration) func(*store.Candidate) {
	return func(c *store.Candidate) { c.NotBefore = in(passed) }
}

func retryIn(passed time.Duration) func(*store.Candidate) {
	return func(c *store.Candidate) { c.RetryAt = in(passed) }
}

// within sets a window of the batch into which the task's lease of 5 min must fit.
func within(from, until time.Duration) func(*store.Candidate) {
	return func(c *store.Candidate) {
		c.Window, c.Lease, c.FinishInside = store.Opening{From: in(from), Until: in(until)}, 5*time.Minute, true
	}
}

func withinPools(from, until time.Duration) func(*store.Candidate) {
	return func(c *store.Candidate) { c.PoolWindow = store.Opening{From: in(from), Until: in(until)} }
}

func cutOff(c *store.Candidate) { c.FinishInside = false }

func inPausedBatch(c *store.Candidate) { c.BatchPaused = true }

func inPausedPool(c *store.Candidate) { c.PoolPaused = true }

func TestTimesDecideWhetherATaskStarts(t *testing.T) {
	t.Parallel()
	shut, younger := open(7, within(time.Hour, 2*time.Hour)), open(3, ofYoungerBatch)
	expectDecisions(t, map[string]decision{
		"window open":                       {asks(open(7, within(0, 5*time.Minute+1))), outcome{reason: devices.ReasonGranted, task: 7}},
		"window closed":                     {asks(shut), outcome{reason: devices.ReasonWindow, until: in(time.Hour), shared: true}},
		"window too short for it":           {asks(open(7, within(-time.Hour, 5*time.Minute))), outcome{reason: devices.ReasonWindow, until: in(5 * time.Minute), shared: true}},
		"may be cut off":                    {asks(open(7, within(-time.Hour, 1), cutOff)), outcome{reason: devices.ReasonGranted, task: 7}},
		"next window too short":             {asks(open(7, within(time.Hour, time.Hour+time.Minute))), outcome{reason: devices.ReasonWindow, until: in(time.Hour + time.Minute), shared: true}},
		"window over":                       {asks(open(7, within(-time.Hour, 0))), outcome{reason: devices.ReasonWindow}},
		"pool's window closed":              {asks(open(7, within(-time.Hour, time.Hour), withinPools(time.Minute, time.Hour))), outcome{reason: devices.ReasonWindow, until: in(time.Minute), shared: true}},
		"both closed, the later":            {asks(open(7, within(time.Hour, 2*time.Hour), withinPools(time.Minute, time.Hour))), outcome{reason: devices.ReasonWindow, until: in(time.Hour), shared: true}},
		"closed, and a later retry":         {asks(open(7, within(time.Minute, time.Hour), retryIn(2*time.Minute))), outcome{reason: devices.ReasonWindow, until: in(2 * time.Minute)}},
		"closed, another open":              {asks(shut, younger), outcome{reason: devices.ReasonGranted, task: 3}},
		"known before unknown":              {asks(open(7, within(-time.Hour, 0)), shut), outcome{reason: devices.ReasonWindow, until: in(time.Hour), shared: true}},
		"a retry is the task's own":         {asks(open(7, retryIn(time.Hour))), outcome{reason: devices.ReasonWindow, until: in(time.Hour)}},
		"eligible exactly now":              {asks(open(7, notFor(0))), outcome{reason: devices.ReasonGranted, task: 7}},
		"not yet":                           {asks(open(7, notFor(time.Hour))), outcome{reason: devices.ReasonWindow, until: in(time.Hour), shared: true}},
		"not yet, the earliest":             {asks(open(7, notFor(time.Hour)), open(8, notFor(time.Minute))), outcome{reason: devices.ReasonWindow, until: in(time.Minute), shared: true}},
		"a task to come does not hide open": {asks(open(9, ofYoungerBatch, func(c *store.Candidate) { c.Priority = 5 }, notFor(1)), open(7)), outcome{reason: devices.ReasonGranted, task: 7}},
	})
}

func TestWhatADeviceIsAndHoldsDecidesFirst(t *testing.T) {
	t.Parallel()
	grant := &store.Grant{Task: 5, Token: 50, LeaseUntil: in(time.Minute)}
	cancelled := &store.Grant{Task: 5, Token: 50, CancelWhy: "cancelled", LeaseUntil: in(time.Minute)}
	expectDecisions(t, map[string]decision{
		"nothing open":                  {Situation{Accept: true}, outcome{reason: devices.ReasonNone}},
		"an open task":                  {asks(open(7)), outcome{reason: devices.ReasonGranted, task: 7}},
		"blocked before all":            {Situation{Blocked: true, Accept: true, Candidates: []store.Candidate{open(7)}}, outcome{reason: devices.ReasonBlocked}},
		"declined":                      {Situation{Candidates: []store.Candidate{open(7)}}, outcome{reason: devices.ReasonDeclined}},
		"declined while holding":        {Situation{Holding: grant}, outcome{reason: devices.ReasonDeclined}},
		"told to stop":                  {Situation{Accept: true, Stopping: true, Candidates: []store.Candidate{open(7)}}, outcome{reason: devices.ReasonBusy}},
		"holds and says so":             {Situation{Accept: true, Holding: grant, Mentioned: true, Candidates: []store.Candidate{open(7)}}, outcome{reason: devices.ReasonBusy, until: in(time.Minute)}},
		"holds and does not know":       {Situation{Accept: true, Holding: grant, Candidates: []store.Candidate{open(7)}}, outcome{reason: devices.ReasonGranted, redeliver: true}},
		"holds what is cancelled":       {Situation{Accept: true, Holding: cancelled, Candidates: []store.Candidate{open(7)}}, outcome{reason: devices.ReasonBusy, until: in(time.Minute)}},
		"after a restore":               {Situation{Accept: true, Candidates: []store.Candidate{open(7, func(c *store.Candidate) { c.Standstill = in(time.Minute) })}}, outcome{reason: devices.ReasonUnavailable, until: in(time.Minute)}},
		"after a restore, holds":        {Situation{Accept: true, Standstill: in(time.Minute), Holding: grant}, outcome{reason: devices.ReasonUnavailable, until: in(time.Minute)}},
		"after a restore, says so":      {Situation{Accept: true, Standstill: in(time.Minute), Holding: grant, Mentioned: true}, outcome{reason: devices.ReasonBusy, until: in(time.Minute)}},
		"after a restore, nothing open": {Situation{Accept: true, Standstill: in(time.Minute)}, outcome{reason: devices.ReasonNone}},
		"after a restore, another pool goes on": {Situation{Accept: true, Candidates: []store.Candidate{
			open(7, func(c *store.Candidate) { c.Standstill = in(time.Minute) }), open(8, func(c *store.Candidate) { c.Pool = "other" }),
		}}, outcome{reason: devices.ReasonGranted, task: 8}},
		"after a restore, another pool is full": {Situation{Accept: true, Full: map[string]bool{"other": true}, Candidates: []store.Candidate{
			open(7, func(c *store.Candidate) { c.Standstill = in(time.Minute) }), open(8, func(c *store.Candidate) { c.Pool = "other" }),
		}}, outcome{reason: devices.ReasonFull}},
		"when that is over": {Situation{Accept: true, Candidates: []store.Candidate{open(7, func(c *store.Candidate) { c.Standstill = in(0) })}}, outcome{reason: devices.ReasonGranted, task: 7}},
	})
}

func TestPoolsAndBatchesDecideWhatStarts(t *testing.T) {
	t.Parallel()
	younger, full := open(3, ofYoungerBatch), map[string]bool{"a": true}
	expectDecisions(t, map[string]decision{
		"older batch first":             {asks(younger, open(7)), outcome{reason: devices.ReasonGranted, task: 7}},
		"pool full":                     {Situation{Accept: true, Candidates: []store.Candidate{open(7)}, Full: full}, outcome{reason: devices.ReasonFull}},
		"pool full, another free":       {Situation{Accept: true, Candidates: []store.Candidate{open(7), open(11, ofYoungerBatch, func(c *store.Candidate) { c.Pool = "b" })}, Full: full}, outcome{reason: devices.ReasonGranted, task: 11}},
		"pool paused":                   {asks(open(7, inPausedPool)), outcome{reason: devices.ReasonPaused}},
		"batch paused":                  {asks(open(7, inPausedBatch)), outcome{reason: devices.ReasonPaused}},
		"paused, another open":          {asks(open(7, inPausedBatch), younger), outcome{reason: devices.ReasonGranted, task: 3}},
		"full says more than paused":    {Situation{Accept: true, Candidates: []store.Candidate{open(7, inPausedBatch), younger}, Full: full}, outcome{reason: devices.ReasonFull}},
		"paused says more than not yet": {asks(open(7, notFor(time.Hour)), open(7, inPausedBatch)), outcome{reason: devices.ReasonPaused}},
	})
}

// Decide returns all tasks that may start in the pool of the oldest batch. It does not decide
// which of these tasks comes first.
func TestDecideTriesAllOfOnePool(t *testing.T) {
	t.Parallel()
	s := Situation{Now: moment(), Accept: true, Candidates: []store.Candidate{
		{Task: 4, Batch: 4, Pool: "b", Priority: 9},
		{Task: 3, Batch: 3, Pool: "a", Weight: 5},
		{Task: 1, Batch: 1, Pool: "a", BatchPaused: true},
		{Task: 2, Batch: 2, Pool: "a"},
	}}
	tasks := func(full ...string) (tasks []int64) {
		s.Full = make(map[string]bool)
		for _, pool := range full {
			s.Full[pool] = true
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
