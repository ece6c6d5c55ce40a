package dispatcher

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	open := store.Candidate{Task: 7, Pool: "a", CreatedAt: now.Add(-time.Hour)}
	with := func(c store.Candidate, change func(*store.Candidate)) store.Candidate {
		change(&c)
		return c
	}
	younger := with(open, func(c *store.Candidate) { c.Task, c.CreatedAt = 3, now.Add(-time.Minute) })
	urgent := with(younger, func(c *store.Candidate) { c.Task, c.Priority = 9, 5 })
	elsewhere := with(younger, func(c *store.Candidate) { c.Task, c.Pool = 11, "b" })
	later := with(open, func(c *store.Candidate) { c.EligibleAt = now.Add(time.Hour) })
	soon := with(later, func(c *store.Candidate) { c.Task, c.EligibleAt = 8, now.Add(time.Minute) })
	poolPaused := with(open, func(c *store.Candidate) { c.PoolPaused = true })
	batchPaused := with(open, func(c *store.Candidate) { c.BatchPaused = true })
	grant := &store.Grant{Task: 5, Token: 50, LeaseUntil: now.Add(time.Minute)}
	cancelled := &store.Grant{Task: 5, Token: 50, CancelWhy: "cancelled", LeaseUntil: now.Add(time.Minute)}

	tests := map[string]struct {
		in        Situation
		reason    devices.Reason
		task      int64
		redeliver bool
		until     time.Time
	}{
		"nothing open":                      {in: Situation{Accept: true}, reason: devices.ReasonNone},
		"an open task":                      {in: Situation{Accept: true, Candidates: []store.Candidate{open}}, reason: devices.ReasonGranted, task: 7},
		"older batch first":                 {in: Situation{Accept: true, Candidates: []store.Candidate{younger, open}}, reason: devices.ReasonGranted, task: 7},
		"priority before age":               {in: Situation{Accept: true, Candidates: []store.Candidate{open, urgent}}, reason: devices.ReasonGranted, task: 9},
		"eligible exactly now":              {in: Situation{Accept: true, Candidates: []store.Candidate{with(open, func(c *store.Candidate) { c.EligibleAt = now })}}, reason: devices.ReasonGranted, task: 7},
		"blocked before all":                {in: Situation{Blocked: true, Accept: true, Candidates: []store.Candidate{open}}, reason: devices.ReasonBlocked},
		"declined":                          {in: Situation{Candidates: []store.Candidate{open}}, reason: devices.ReasonDeclined},
		"declined while holding":            {in: Situation{Holding: grant}, reason: devices.ReasonDeclined},
		"told to stop":                      {in: Situation{Accept: true, Stopping: true, Candidates: []store.Candidate{open}}, reason: devices.ReasonBusy},
		"holds and says so":                 {in: Situation{Accept: true, Holding: grant, Mentioned: true, Candidates: []store.Candidate{open}}, reason: devices.ReasonBusy, until: now.Add(time.Minute)},
		"holds and does not know":           {in: Situation{Accept: true, Holding: grant, Candidates: []store.Candidate{open}}, reason: devices.ReasonGranted, redeliver: true},
		"holds what is cancelled":           {in: Situation{Accept: true, Holding: cancelled, Candidates: []store.Candidate{open}}, reason: devices.ReasonBusy, until: now.Add(time.Minute)},
		"pool full":                         {in: Situation{Accept: true, Candidates: []store.Candidate{open}, Full: map[string]bool{"a": true}}, reason: devices.ReasonFull},
		"pool full, another free":           {in: Situation{Accept: true, Candidates: []store.Candidate{open, elsewhere}, Full: map[string]bool{"a": true}}, reason: devices.ReasonGranted, task: 11},
		"pool paused":                       {in: Situation{Accept: true, Candidates: []store.Candidate{poolPaused}}, reason: devices.ReasonPaused},
		"batch paused":                      {in: Situation{Accept: true, Candidates: []store.Candidate{batchPaused}}, reason: devices.ReasonPaused},
		"paused, another open":              {in: Situation{Accept: true, Candidates: []store.Candidate{batchPaused, younger}}, reason: devices.ReasonGranted, task: 3},
		"not yet":                           {in: Situation{Accept: true, Candidates: []store.Candidate{later}}, reason: devices.ReasonWindow, until: now.Add(time.Hour)},
		"not yet, the earliest":             {in: Situation{Accept: true, Candidates: []store.Candidate{later, soon}}, reason: devices.ReasonWindow, until: now.Add(time.Minute)},
		"full says more than paused":        {in: Situation{Accept: true, Candidates: []store.Candidate{batchPaused, younger}, Full: map[string]bool{"a": true}}, reason: devices.ReasonFull},
		"paused says more than not yet":     {in: Situation{Accept: true, Candidates: []store.Candidate{later, batchPaused}}, reason: devices.ReasonPaused},
		"a task to come does not hide open": {in: Situation{Accept: true, Candidates: []store.Candidate{with(urgent, func(c *store.Candidate) { c.EligibleAt = now.Add(1) }), open}}, reason: devices.ReasonGranted, task: 7},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.in.Now = now
			got := Decide(test.in)
			var task int64
			if got.Task != nil {
				task = got.Task.Task
			}
			if got.Reason != test.reason || task != test.task || got.Redeliver != test.redeliver || !got.Until.Equal(test.until) {
				t.Errorf("got %s task %d redeliver %v until %s, want %s %d %v %s",
					got.Reason, task, got.Redeliver, got.Until, test.reason, test.task, test.redeliver, test.until)
			}
		})
	}
}
