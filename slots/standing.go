package slots

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Waiter is a task and what decides its turn, as in a Want.
type Waiter struct {
	Device           string
	Batch, Task      int64
	Weight, Priority int
}

// Standing is where a task stands in the line of its pool. Everything is of one
// instant; nothing is promised by it.
type Standing struct {
	Known    bool // the pool is known to Redis; false: nothing else is set
	Capacity int
	Held     int // leases; may be above Capacity after that was lowered
	Line     int // devices that stand in line
	// Position is how many grants it takes until the task's turn, if its device
	// stood in line with it now: at most Capacity - Held means at its next report.
	Position int
	InLine   int64         // the task that its device stands in line with; 0: it does not stand there
	Due      time.Duration // until its device was told to ask again, when it stands in line; negative: overdue
	First    bool          // of the tasks of its device in the same call, this one comes first
}

// Standing says of each task where it stands, one answer per waiter, in order.
func (s *Semaphore) Standing(ctx context.Context, pool string, waiters []Waiter) ([]Standing, error) {
	if err := checkPool(pool); err != nil {
		return nil, err
	}
	out := make([]Standing, 0, len(waiters))
	for part := range slices.Chunk(waiters, chunk) {
		args := Pace{}.args()
		for _, w := range part {
			if err := checkOrder(w.Batch, w.Task, w.Weight, w.Priority); err != nil {
				return nil, err
			}
			args = append(args, w.Device, w.Batch, max(w.Weight, 1), w.Priority, w.Task)
		}
		reply, err := s.run(ctx, s.scripts.standing, pool, args...).Slice()
		if err != nil {
			return nil, unavailable("read the line of", pool, err)
		}
		standings, err := parseStandings(reply, len(part))
		if err != nil {
			return nil, unavailable("read the line of", pool, err)
		}
		out = append(out, standings...)
	}
	return out, nil
}

// parseStandings reads: capacity, held, line; then per waiter position, task, due, first.
func parseStandings(reply []any, n int) ([]Standing, error) {
	out := make([]Standing, n)
	if len(reply) == 0 {
		return out, nil
	}
	if len(reply) != 3+4*n {
		return nil, fmt.Errorf("reply of %d parts for %d tasks", len(reply), n)
	}
	for i := range out {
		part := reply[3+4*i:]
		position, ok1 := part[0].(int64)
		task, ok2 := part[1].(string)
		due, ok3 := part[2].(int64)
		capacity, ok4 := reply[0].(int64)
		held, ok5 := reply[1].(int64)
		line, ok6 := reply[2].(int64)
		first, ok7 := part[3].(int64)
		if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 || !ok7 {
			return nil, fmt.Errorf("standing %v of %v", part[:4], reply[:3])
		}
		out[i] = Standing{Known: true, Capacity: int(capacity), Held: int(held), Line: int(line), Position: int(position), Due: millis(due), First: first == 1}
		if task == "" {
			continue
		}
		var err error
		if out[i].InLine, err = number(task); err != nil {
			return nil, fmt.Errorf("standing %v: %w", part[:3], err)
		}
	}
	return out, nil
}
