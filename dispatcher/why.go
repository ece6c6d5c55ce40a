package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// Why explains a task. The answer has what the semaphore knows, if that answers.
// store.ErrNotFound.
func (d *Dispatcher) Why(ctx context.Context, task int64) (decision.Explanation, error) {
	v, err := d.config.Store.TaskView(ctx, task)
	if err != nil {
		return decision.Explanation{}, fmt.Errorf("explaining: %w", err)
	}
	e := d.explain(ctx, v, d.Policies.Of(ctx, v), d.standingOf)
	if !store.IsCaller(v.Task.Device) {
		e.Mark = d.MarkOf(ctx, devices.ID(v.Task.Device))
	}
	return e, nil
}

// explain explains a task with what is known of it beside the ledger.
func (d *Dispatcher) explain(ctx context.Context, v store.TaskView, limited map[int64]decision.Obstacle, standing standingOf) decision.Explanation {
	return decision.Explain(v, func(waiting store.Candidate) decision.Known {
		known := decision.Known{
			Standings: standingsOf(ctx, v, waiting, limited, standing), Limited: limited,
			Seen: d.lastSeenOf(v), Period: d.config.ReportPeriod,
		}
		if hold, seen := d.Waiters.Pools.Hold(waiting.Pool); seen {
			known.Hold = hold
		}
		if store.IsCaller(v.Task.Device) {
			known.Callers = d.callersBefore(ctx, waiting)
		}
		return known
	})
}

// callersBefore is how the bound of callers stands to the task of one; nil: unknown.
func (d *Dispatcher) callersBefore(ctx context.Context, waiting store.Candidate) *store.Callers {
	found, err := d.config.Store.CallersBefore(ctx, waiting.Pool, waiting.Task)
	if err != nil {
		d.log.WarnContext(ctx, "task explained without the bound of callers", "pool", waiting.Pool, "err", err)
		return nil
	}
	return &found
}

// MarkOf is the mark of a device, beside what the ledger says; nil: one of the two is unknown.
// A request that ends meanwhile says nothing of the ledger to those who report.
func (d *Dispatcher) MarkOf(ctx context.Context, device devices.ID) *decision.Mark {
	if d.Marks == nil {
		return nil
	}
	view, err := d.together.views.Do(ctx, true, string(device))
	if err != nil {
		return nil
	}
	of := d.Marks.Look(ctx, string(device))
	if !of.Read {
		return nil
	}
	return &decision.Mark{Present: of.Version != "", Believed: of.Believed, Work: len(view.Candidates) > 0 || view.Grant != nil}
}

// standingOf says how full a pool is, and where tasks of the device of a view stand.
type standingOf func(ctx context.Context, pool string, tasks []store.Candidate, v store.TaskView) decision.Standing

// standingsOf asks the semaphore about every pool of which the device has a task
// that could start, and about that of the task that is explained.
func standingsOf(ctx context.Context, v store.TaskView, explained store.Candidate, limited map[int64]decision.Obstacle, ask standingOf) map[string]decision.Standing {
	s := decision.Foreseen(v.View, limited)
	open := map[string][]store.Candidate{explained.Pool: {explained}}
	for _, c := range v.Candidates {
		if c.Task != explained.Task && s.MayStart(c) && len(open[c.Pool]) < slots.MaxWants {
			open[c.Pool] = append(open[c.Pool], c)
		}
	}
	// One that cannot start does not compete.
	alone := !s.MayStart(explained)
	standings := make(map[string]decision.Standing)
	for pool, tasks := range open {
		if pool == explained.Pool && alone {
			tasks = tasks[:1]
		}
		standings[pool] = ask(ctx, pool, tasks, v)
	}
	return standings
}

// standingOf asks about one pool and tasks of it, the explained one first in its own. A pool
// that the semaphore does not know is restored with the next report, from what the ledger
// says.
func (d *Dispatcher) standingOf(ctx context.Context, pool string, tasks []store.Candidate, v store.TaskView) decision.Standing {
	waiters := make([]slots.Waiter, len(tasks))
	for i, c := range tasks {
		waiters[i] = slots.Waiter{Batch: c.Batch, Task: c.Task, Weight: c.Weight, Lane: d.lane(c.Urgent), Priority: c.Priority}
	}
	standing, err := d.config.Semaphore.Standing(ctx, pool, v.Task.Device, waiters)
	switch {
	case err != nil:
		d.log.WarnContext(ctx, "task explained without the semaphore", "pool", pool, "err", err)
		return decision.Standing{Unreachable: true}
	case standing.Known:
		return decision.Standing{
			Held: standing.Held, Capacity: standing.Capacity, Left: standing.Left, Position: standing.Positions[0],
			First: tasks[standing.First].Task, InQueue: standing.InLine != 0, Due: standing.Due, Offered: standing.Offered,
			Waiting: standing.Waiting, Lane: decision.Lane(standing.Lane),
		}
	case pool == v.Pool.Name:
		return decision.Standing{Held: v.Held, Capacity: v.Pool.Capacity, Left: v.Pool.Capacity - v.Held}
	}
	return decision.Standing{Capacity: 1, Left: 1}
}

// lastSeenOf is when the device last reported, as the ledger or this replica
// knows it; zero: never.
func (d *Dispatcher) lastSeenOf(v store.TaskView) time.Time {
	seen := d.Seen.At(v.Task.Device)
	if v.Device != nil && v.Device.LastSeen != nil && v.Device.LastSeen.After(seen) {
		seen = *v.Device.LastSeen
	}
	return seen
}
