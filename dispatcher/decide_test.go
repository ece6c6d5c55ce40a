package dispatcher

import (
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	open := store.Candidate{Task: 7, Batch: 1, Pool: "a", CreatedAt: now.Add(-time.Hour)}
	with := func(c store.Candidate, change func(*store.Candidate)) store.Candidate {
		change(&c)
		return c
	}
	younger := with(open, func(c *store.Candidate) { c.Task, c.Batch, c.CreatedAt = 3, 2, now.Add(-time.Minute) })
	urgent := with(younger, func(c *store.Candidate) { c.Task, c.Priority = 9, 5 })
	elsewhere := with(younger, func(c *store.Candidate) { c.Task, c.Pool = 11, "b" })
	later := with(open, func(c *store.Candidate) { c.NotBefore = now.Add(time.Hour) })
	soon := with(later, func(c *store.Candidate) { c.Task, c.NotBefore = 8, now.Add(time.Minute) })
	poolPaused := with(open, func(c *store.Candidate) { c.PoolPaused = true })
	batchPaused := with(open, func(c *store.Candidate) { c.BatchPaused = true })
	window := func(from, until time.Duration, change func(*store.Candidate)) store.Candidate {
		return with(open, func(c *store.Candidate) {
			c.Window, c.Lease, c.FinishInside = store.Opening{From: now.Add(from), Until: now.Add(until)}, 5*time.Minute, true
			change(c)
		})
	}
	asIs := func(*store.Candidate) {}
	shut := window(time.Hour, 2*time.Hour, asIs)
	inPool := func(from, until time.Duration) func(*store.Candidate) {
		return func(c *store.Candidate) {
			c.PoolWindow = store.Opening{From: now.Add(from), Until: now.Add(until)}
		}
	}
	grant := &store.Grant{Task: 5, Token: 50, LeaseUntil: now.Add(time.Minute)}
	cancelled := &store.Grant{Task: 5, Token: 50, CancelWhy: "cancelled", LeaseUntil: now.Add(time.Minute)}

	tests := map[string]struct {
		in        Situation
		reason    devices.Reason
		task      int64
		redeliver bool
		until     time.Time
		shared    bool
	}{
		"window open":                       {in: Situation{Accept: true, Candidates: []store.Candidate{window(0, 5*time.Minute+1, asIs)}}, reason: devices.ReasonGranted, task: 7},
		"window closed":                     {in: Situation{Accept: true, Candidates: []store.Candidate{shut}}, reason: devices.ReasonWindow, until: now.Add(time.Hour), shared: true},
		"window too short for it":           {in: Situation{Accept: true, Candidates: []store.Candidate{window(-time.Hour, 5*time.Minute, asIs)}}, reason: devices.ReasonWindow, until: now.Add(5 * time.Minute), shared: true},
		"may be cut off":                    {in: Situation{Accept: true, Candidates: []store.Candidate{window(-time.Hour, 1, func(c *store.Candidate) { c.FinishInside = false })}}, reason: devices.ReasonGranted, task: 7},
		"next window too short":             {in: Situation{Accept: true, Candidates: []store.Candidate{window(time.Hour, time.Hour+time.Minute, asIs)}}, reason: devices.ReasonWindow, until: now.Add(time.Hour + time.Minute), shared: true},
		"window over":                       {in: Situation{Accept: true, Candidates: []store.Candidate{window(-time.Hour, 0, asIs)}}, reason: devices.ReasonWindow},
		"pool's window closed":              {in: Situation{Accept: true, Candidates: []store.Candidate{window(-time.Hour, time.Hour, inPool(time.Minute, time.Hour))}}, reason: devices.ReasonWindow, until: now.Add(time.Minute), shared: true},
		"both closed, the later":            {in: Situation{Accept: true, Candidates: []store.Candidate{window(time.Hour, 2*time.Hour, inPool(time.Minute, time.Hour))}}, reason: devices.ReasonWindow, until: now.Add(time.Hour), shared: true},
		"closed, and a later retry":         {in: Situation{Accept: true, Candidates: []store.Candidate{window(time.Minute, time.Hour, func(c *store.Candidate) { c.RetryAt = now.Add(2 * time.Minute) })}}, reason: devices.ReasonWindow, until: now.Add(2 * time.Minute)},
		"closed, another open":              {in: Situation{Accept: true, Candidates: []store.Candidate{shut, younger}}, reason: devices.ReasonGranted, task: 3},
		"known before unknown":              {in: Situation{Accept: true, Candidates: []store.Candidate{window(-time.Hour, 0, asIs), shut}}, reason: devices.ReasonWindow, until: now.Add(time.Hour), shared: true},
		"a retry is the task's own":         {in: Situation{Accept: true, Candidates: []store.Candidate{with(open, func(c *store.Candidate) { c.RetryAt = now.Add(time.Hour) })}}, reason: devices.ReasonWindow, until: now.Add(time.Hour)},
		"nothing open":                      {in: Situation{Accept: true}, reason: devices.ReasonNone},
		"an open task":                      {in: Situation{Accept: true, Candidates: []store.Candidate{open}}, reason: devices.ReasonGranted, task: 7},
		"older batch first":                 {in: Situation{Accept: true, Candidates: []store.Candidate{younger, open}}, reason: devices.ReasonGranted, task: 7},
		"eligible exactly now":              {in: Situation{Accept: true, Candidates: []store.Candidate{with(open, func(c *store.Candidate) { c.NotBefore = now })}}, reason: devices.ReasonGranted, task: 7},
		"blocked before all":                {in: Situation{Blocked: true, Accept: true, Candidates: []store.Candidate{open}}, reason: devices.ReasonBlocked},
		"declined":                          {in: Situation{Candidates: []store.Candidate{open}}, reason: devices.ReasonDeclined},
		"declined while holding":            {in: Situation{Holding: grant}, reason: devices.ReasonDeclined},
		"told to stop":                      {in: Situation{Accept: true, Stopping: true, Candidates: []store.Candidate{open}}, reason: devices.ReasonBusy},
		"holds and says so":                 {in: Situation{Accept: true, Holding: grant, Mentioned: true, Candidates: []store.Candidate{open}}, reason: devices.ReasonBusy, until: now.Add(time.Minute)},
		"holds and does not know":           {in: Situation{Accept: true, Holding: grant, Candidates: []store.Candidate{open}}, reason: devices.ReasonGranted, redeliver: true},
		"holds what is cancelled":           {in: Situation{Accept: true, Holding: cancelled, Candidates: []store.Candidate{open}}, reason: devices.ReasonBusy, until: now.Add(time.Minute)},
		"after a restore":                   {in: Situation{Accept: true, Standstill: now.Add(time.Minute), Candidates: []store.Candidate{open}}, reason: devices.ReasonUnavailable, until: now.Add(time.Minute)},
		"after a restore, holds":            {in: Situation{Accept: true, Standstill: now.Add(time.Minute), Holding: grant}, reason: devices.ReasonUnavailable, until: now.Add(time.Minute)},
		"after a restore, says so":          {in: Situation{Accept: true, Standstill: now.Add(time.Minute), Holding: grant, Mentioned: true}, reason: devices.ReasonBusy, until: now.Add(time.Minute)},
		"after a restore, nothing open":     {in: Situation{Accept: true, Standstill: now.Add(time.Minute)}, reason: devices.ReasonNone},
		"when that is over":                 {in: Situation{Accept: true, Standstill: now, Candidates: []store.Candidate{open}}, reason: devices.ReasonGranted, task: 7},
		"pool full":                         {in: Situation{Accept: true, Candidates: []store.Candidate{open}, Full: map[string]bool{"a": true}}, reason: devices.ReasonFull},
		"pool full, another free":           {in: Situation{Accept: true, Candidates: []store.Candidate{open, elsewhere}, Full: map[string]bool{"a": true}}, reason: devices.ReasonGranted, task: 11},
		"pool paused":                       {in: Situation{Accept: true, Candidates: []store.Candidate{poolPaused}}, reason: devices.ReasonPaused},
		"batch paused":                      {in: Situation{Accept: true, Candidates: []store.Candidate{batchPaused}}, reason: devices.ReasonPaused},
		"paused, another open":              {in: Situation{Accept: true, Candidates: []store.Candidate{batchPaused, younger}}, reason: devices.ReasonGranted, task: 3},
		"not yet":                           {in: Situation{Accept: true, Candidates: []store.Candidate{later}}, reason: devices.ReasonWindow, until: now.Add(time.Hour), shared: true},
		"not yet, the earliest":             {in: Situation{Accept: true, Candidates: []store.Candidate{later, soon}}, reason: devices.ReasonWindow, until: now.Add(time.Minute), shared: true},
		"full says more than paused":        {in: Situation{Accept: true, Candidates: []store.Candidate{batchPaused, younger}, Full: map[string]bool{"a": true}}, reason: devices.ReasonFull},
		"paused says more than not yet":     {in: Situation{Accept: true, Candidates: []store.Candidate{later, batchPaused}}, reason: devices.ReasonPaused},
		"a task to come does not hide open": {in: Situation{Accept: true, Candidates: []store.Candidate{with(urgent, func(c *store.Candidate) { c.NotBefore = now.Add(1) }), open}}, reason: devices.ReasonGranted, task: 7},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.in.Now = now
			got := Decide(test.in)
			var task int64
			if len(got.Tasks) > 0 {
				task = got.Tasks[0].Task
			}
			if got.Reason != test.reason || task != test.task || got.Redeliver != test.redeliver || !got.Until.Equal(test.until) || got.Shared != test.shared {
				t.Errorf("got %s task %d redeliver %v until %s shared %t, want %s %d %v %s %t",
					got.Reason, task, got.Redeliver, got.Until, got.Shared, test.reason, test.task, test.redeliver, test.until, test.shared)
			}
		})
	}
}

// Whatever may start in the pool of the oldest batch is tried there together:
// which of it has its turn is not decided here.
func TestDecideTriesAllOfOnePool(t *testing.T) {
	t.Parallel()
	s := Situation{Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Accept: true, Candidates: []store.Candidate{
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
