package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/deadline"
	"github.com/fleetslots/dispatcher/internal/rescue"
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
	e, err := d.explainInTime(ctx, v)
	if err != nil {
		return decision.Explanation{}, fmt.Errorf("explaining: %w", err)
	}
	if !store.IsCaller(v.Task.Device) {
		e.Mark = d.MarkOf(ctx, devices.ID(v.Task.Device))
	}
	return e, nil
}

// explainInTime explains a task. If Redis does not answer in time, it explains by the ledger alone.
func (d *Dispatcher) explainInTime(ctx context.Context, v store.TaskView) (decision.Explanation, error) {
	within, cancel := deadline.Share(ctx, judgeShare)
	defer cancel()
	explained := make(chan decision.Explanation, 1)
	err := rescue.Within(within, func() error {
		explained <- d.explain(within, v, d.Policies.Of(within, v), besides{d.standingOf, d.callersBefore})
		return nil
	})
	switch {
	case within.Err() != nil:
		return d.explain(ctx, v, nil, withoutRedis()), ctx.Err()
	case err != nil:
		return decision.Explanation{}, rescue.Told(d.Panicked).Tell("explaining a task", err)
	}
	return <-explained, nil
}

// withoutRedis are lookups that ask nobody.
func withoutRedis() besides {
	return besides{
		func(context.Context, string, []store.Candidate, store.TaskView) decision.Standing {
			return decision.Standing{Unreachable: true}
		},
		func(context.Context, store.Candidate) *store.Callers { return nil },
	}
}

// besides are the lookups that an explanation needs besides the view of its task.
type besides struct {
	standing standingOf
	callers  func(ctx context.Context, waiting store.Candidate) *store.Callers
}

// explain explains a task by its view, by what its policies say (limited) and by lookups.
func (d *Dispatcher) explain(ctx context.Context, v store.TaskView, limited map[int64]decision.Obstacle, look besides) decision.Explanation {
	return decision.Explain(v, func(waiting store.Candidate) decision.Known {
		known := decision.Known{
			Standings: standingsOf(ctx, v, waiting, limited, look.standing), Limited: limited,
			Seen: d.lastSeenOf(v), Period: d.config.ReportPeriod,
		}
		if hold, seen := d.Waiters.Pools.Hold(waiting.Pool); seen {
			known.Hold = hold
		}
		if store.IsCaller(v.Task.Device) {
			known.Callers = look.callers(ctx, waiting)
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

// markShare is the part of the time left that MarkOf waits.
const markShare = 0.5

// MarkOf returns the mark of a device, beside what the ledger says; nil if one of the two is
// unknown, or not known in time. A request that ends meanwhile says nothing of the ledger to
// those who report.
func (d *Dispatcher) MarkOf(ctx context.Context, device devices.ID) *decision.Mark {
	if d.Marks == nil {
		return nil
	}
	ctx, cancel := deadline.Share(ctx, markShare)
	defer cancel()
	found := make(chan *decision.Mark, 1)
	if err := rescue.Within(ctx, func() error { found <- d.markOf(ctx, device); return nil }); err != nil {
		return nil
	}
	return <-found
}

func (d *Dispatcher) markOf(ctx context.Context, device devices.ID) *decision.Mark {
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
