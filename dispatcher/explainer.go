package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/marks"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/internal/deadline"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// Explainer explains why tasks wait, and changes nothing. It is safe for concurrent use.
type Explainer struct {
	ledger      explanationLedger
	semaphore   Semaphore
	views       *viewing
	policies    *policies.Checker
	pools       *waiters.Pools
	seen        *seen.Devices
	marks       *marks.Follower // nil if devices have no marks
	period      time.Duration   // report period of an idle device
	urgentShare int             // as in Config
	log         *slog.Logger
	panicked    rescue.Told
}

// Why explains why a task waits, or how it runs or ended. If Redis answers in time, the explanation includes
// the state of the queue and of the limits. Why returns store.ErrNotFound if there is no such task.
func (x *Explainer) Why(ctx context.Context, task int64) (decision.Explanation, error) {
	v, err := x.ledger.TaskView(ctx, task)
	var e decision.Explanation
	if err == nil {
		e, err = x.explainInTime(ctx, v)
	}
	if err != nil {
		return decision.Explanation{}, fmt.Errorf("explaining: %w", err)
	}
	if !store.IsCaller(v.Task.Device) {
		e.Mark = x.MarkOf(ctx, devices.ID(v.Task.Device))
	}
	return e, nil
}

// explainInTime explains a task. If Redis does not answer in time, it explains the task from the ledger alone.
func (x *Explainer) explainInTime(ctx context.Context, v store.TaskView) (decision.Explanation, error) {
	within, cancel := deadline.Share(ctx, judgeShare)
	defer cancel()
	explained := make(chan decision.Explanation, 1)
	err := rescue.Within(within, func() error {
		explained <- x.explain(within, v, x.policies.Of(within, v), x)
		return nil
	})
	switch {
	case within.Err() != nil:
		return x.explain(ctx, v, nil, noLookups{}), ctx.Err()
	case err != nil:
		return decision.Explanation{}, x.panicked.Tell("explaining a task", err)
	}
	return <-explained, nil
}

// lookups read the facts that an explanation needs in addition to the view of its task and the policies.
type lookups interface {
	// standing returns how many slots of a pool are held, and where the tasks of v's device are in the pool's queue.
	standing(ctx context.Context, pool string, tasks []store.Candidate, v store.TaskView) decision.Standing
	// callers returns the bound of callers in the pool of a waiting caller, or nil if the bound is unknown.
	callers(ctx context.Context, waiting store.Candidate) *store.Callers
}

// noLookups makes no call: it returns that nothing is known.
type noLookups struct{}

func (noLookups) callers(context.Context, store.Candidate) *store.Callers { return nil }

func (noLookups) standing(context.Context, string, []store.Candidate, store.TaskView) decision.Standing {
	return decision.Standing{Unreachable: true}
}

// explain explains the task of a view. limited holds the obstacles that policies found for tasks of its device, by task id.
func (x *Explainer) explain(ctx context.Context, v store.TaskView, limited map[int64]decision.Obstacle, look lookups) decision.Explanation {
	return decision.Explain(v, func(waiting store.Candidate) decision.Known {
		known := decision.Known{
			Standings: standingsOf(ctx, v, waiting, limited, look), Limited: limited,
			Seen: x.lastSeenOf(v), Period: x.period,
		}
		if hold, seen := x.pools.Hold(waiting.Pool); seen {
			known.Hold = hold
		}
		if store.IsCaller(v.Task.Device) {
			known.Callers = look.callers(ctx, waiting)
		}
		return known
	})
}

// callers reads the bound of callers from the ledger. It returns nil if the ledger does not answer.
func (x *Explainer) callers(ctx context.Context, waiting store.Candidate) *store.Callers {
	found, err := x.ledger.CallersBefore(ctx, waiting.Pool, waiting.Task)
	if err != nil {
		x.log.WarnContext(ctx, "task explained without the bound of callers", "pool", waiting.Pool, "err", err)
		return nil
	}
	return &found
}

// markShare is the part of the remaining time for which MarkOf waits.
const markShare = 0.5

// MarkOf returns the mark of a device, and whether the ledger has work for the device. It returns nil
// if the mark or the ledger cannot be read in time. A request that ends before the ledger answers does not
// count as an outage of the ledger.
func (x *Explainer) MarkOf(ctx context.Context, device devices.ID) *decision.Mark {
	if x.marks == nil {
		return nil
	}
	ctx, cancel := deadline.Share(ctx, markShare)
	defer cancel()
	found := make(chan *decision.Mark, 1)
	err := rescue.Within(ctx, func() error {
		defer close(found)
		view, err := x.views.Do(ctx, true, string(device))
		if err != nil {
			return err
		}
		if of := x.marks.Look(ctx, string(device)); of.Read {
			found <- &decision.Mark{Present: of.Version != "", Believed: of.Believed, Work: len(view.Candidates) > 0 || view.Grant != nil}
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return <-found
}

// standingsOf looks up the standing in the pool of the explained task, and in each other pool in which the
// device has a task that could start.
func standingsOf(ctx context.Context, v store.TaskView, explained store.Candidate, limited map[int64]decision.Obstacle, look lookups) map[string]decision.Standing {
	s := decision.Foreseen(v.View, limited)
	open := map[string][]store.Candidate{explained.Pool: {explained}}
	for _, c := range v.Candidates {
		if c.Task != explained.Task && s.MayStart(c) && len(open[c.Pool]) < slots.MaxWants {
			open[c.Pool] = append(open[c.Pool], c)
		}
	}
	// A task that cannot start does not compete with others.
	alone := !s.MayStart(explained)
	standings := make(map[string]decision.Standing)
	for pool, tasks := range open {
		if pool == explained.Pool && alone {
			tasks = tasks[:1]
		}
		standings[pool] = look.standing(ctx, pool, tasks, v)
	}
	return standings
}

// standing reads the standing of tasks of one pool from the semaphore. If the explained task is in this pool,
// it must be the first of tasks. For a pool that the semaphore does not know, standing uses the counts of the
// ledger: the next report restores such a pool from the ledger.
func (x *Explainer) standing(ctx context.Context, pool string, tasks []store.Candidate, v store.TaskView) decision.Standing {
	waiters := make([]slots.Waiter, len(tasks))
	for i, c := range tasks {
		waiters[i] = slots.Waiter{Batch: c.Batch, Task: c.Task, Weight: c.Weight, Lane: laneOf(c, x.urgentShare), Priority: c.Priority}
	}
	standing, err := x.semaphore.Standing(ctx, pool, v.Task.Device, waiters)
	switch {
	case err != nil:
		x.log.WarnContext(ctx, "task explained without the semaphore", "pool", pool, "err", err)
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

// lastSeenOf returns when the device of a view last reported, according to the ledger and this replica.
// It is zero if the device never reported.
func (x *Explainer) lastSeenOf(v store.TaskView) time.Time {
	seen := x.seen.At(v.Task.Device)
	if v.Device != nil && v.Device.LastSeen != nil && v.Device.LastSeen.After(seen) {
		seen = *v.Device.LastSeen
	}
	return seen
}
