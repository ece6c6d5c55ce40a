package dispatcher

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// poolLine is how full a pool is, and where a device stands in its line.
type poolLine struct {
	held, capacity int
	left           int           // slots that are neither held nor offered
	unreachable    bool          // the semaphore did not say
	position       int           // of the task that is explained: so many grants until its turn; 0: unknown
	first          int64         // of the device's tasks that could start: the one that comes first; 0: unknown
	inLine         bool          // the device stands there
	due            time.Duration // then: until it was told to ask again; negative: overdue
	offered        time.Duration // how long a slot stays reserved for the device; 0: none is
}

// full says that there is no slot for the device: none is free, or only for
// those that it was offered to.
func (l poolLine) full() bool { return !l.unreachable && l.left < 1 && l.offered == 0 }

// linesOf asks the semaphore about every pool of which the device has a task
// that could start, and about that of the task that is explained.
func (d *Dispatcher) linesOf(ctx context.Context, v store.TaskView, explained store.Candidate, limited map[int64]Obstacle) map[string]poolLine {
	s := waitingSituation(v, nil, limited)
	open := map[string][]store.Candidate{explained.Pool: {explained}}
	for _, c := range v.Candidates {
		if c.Task != explained.Task && len(s.ofTask(c)) == 0 && len(open[c.Pool]) < slots.MaxWants {
			open[c.Pool] = append(open[c.Pool], c)
		}
	}
	// One that cannot start does not compete.
	alone := len(s.ofTask(explained)) > 0
	lines := make(map[string]poolLine)
	for pool, tasks := range open {
		if pool == explained.Pool && alone {
			tasks = tasks[:1]
		}
		lines[pool] = d.lineOf(ctx, pool, tasks, v)
	}
	return lines
}

// lineOf asks about one pool and tasks of it, the explained one first in its own. A pool
// that the semaphore does not know is restored with the next report, from what the ledger
// says.
func (d *Dispatcher) lineOf(ctx context.Context, pool string, tasks []store.Candidate, v store.TaskView) poolLine {
	waiters := make([]slots.Waiter, len(tasks))
	for i, c := range tasks {
		waiters[i] = slots.Waiter{Batch: c.Batch, Task: c.Task, Weight: c.Weight, Priority: c.Priority}
	}
	standing, err := d.semaphore.Standing(ctx, pool, v.Task.Device, waiters)
	switch {
	case err != nil:
		d.log.WarnContext(ctx, "task explained without the semaphore", "pool", pool, "err", err)
		return poolLine{unreachable: true}
	case standing.Known:
		return poolLine{
			held: standing.Held, capacity: standing.Capacity, left: standing.Left, position: standing.Positions[0],
			first: tasks[standing.First].Task, inLine: standing.InLine != 0, due: standing.Due, offered: standing.Offered,
		}
	case pool == v.Pool.Name:
		return poolLine{held: v.Held, capacity: v.Pool.Capacity, left: v.Pool.Capacity - v.Held}
	}
	return poolLine{capacity: 1, left: 1}
}
