package slots

import (
	"context"
	"fmt"
	"time"
)

// Standing is where the tasks of a device stand among those that wait for a pool.
// Everything is of one instant; nothing is promised by it.
type Standing struct {
	Known    bool // the pool is known to Redis; false: nothing else is set
	Capacity int
	Held     int // leases; may be above Capacity after that was lowered
	Left     int // slots that are neither held nor offered; may be negative likewise
	// Positions say of each task in about how many grants it starts; 1 is next.
	Positions []int
	First     int           // the index of the task that comes first
	InLine    int64         // the task that the device waits with; 0: it does not wait
	Due       time.Duration // until it was told to ask again, while it waits; negative: overdue
	Offered   time.Duration // how long a slot stays reserved for it; 0: none is
	Waiting   int           // devices in the queue
	Lane      Lane
}

// Lane is what the batches together have that go before all others (Want).
type Lane struct {
	Held    int // slots that they hold or are offered
	Room    int // slots for which they still go before; may be negative
	Waiting int // devices that wait with a task of them
}

// Standing says where tasks of a device stand, at least one, without changing that.
func (s *Semaphore) Standing(ctx context.Context, pool, device string, tasks []Waiter) (Standing, error) {
	if err := checkPool(pool); err != nil {
		return Standing{}, err
	}
	args := standingArgs{Device: device, Wants: make([]wantArgs, len(tasks))}
	for i, w := range tasks {
		if err := checkOrder(w.Batch, w.Task, w.Weight, w.Priority, w.Lane); err != nil {
			return Standing{}, err
		}
		args.Wants[i] = newWaiterArgs(w)
	}
	var reply standingReply
	known, err := s.ask(ctx, s.scripts.standing, pool, args, &reply)
	if err == nil && known && len(reply.Positions) != len(tasks) {
		err = fmt.Errorf("%d positions of %d tasks", len(reply.Positions), len(tasks))
	}
	if err != nil {
		return Standing{}, unavailable("read the queue of", pool, err)
	}
	if !known {
		return Standing{}, nil
	}
	standing := Standing{Known: true, Capacity: reply.Capacity, Held: reply.Held, Left: reply.Left, Positions: reply.Positions, First: reply.First - 1}
	standing.Waiting, standing.Lane = reply.Size, Lane{Held: reply.State.Lane, Room: reply.Room, Waiting: reply.State.Urgent}
	if w := reply.Waiter; w != nil {
		standing.InLine, standing.Due = w.task(), millis(w.Due-reply.Now)
		if w.Offer != 0 {
			standing.Offered = millis(w.Ends - reply.Now)
		}
	}
	return standing, nil
}

type standingArgs struct {
	Device string     `json:"device"`
	Wants  []wantArgs `json:"wants"`
}

type standingReply struct {
	Capacity  int          `json:"capacity"`
	Held      int          `json:"held"`
	Left      int          `json:"left"`
	Now       int64        `json:"now"`
	First     int          `json:"first"`
	Positions list[int]    `json:"positions"`
	Waiter    *waiterReply `json:"waiter"`
	Size      int          `json:"size"`
	Room      int          `json:"room"`
	State     struct {
		Lane   int `json:"lane"`
		Urgent int `json:"urgent"`
	} `json:"state"`
}
