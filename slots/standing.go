package slots

import (
	"context"
	"fmt"
	"time"
)

// Standing is the place of a device's tasks in the queue of a pool at one instant. It is no promise.
type Standing struct {
	Known    bool // whether Redis knows the pool; if false, no other field is set
	Capacity int
	Held     int // number of held slots; greater than Capacity after a decrease of the capacity
	Left     int // slots that are neither held nor offered; negative after a decrease of the capacity
	// Positions estimates, for each task, with which of the next grants of the pool the task
	// starts. 1 is the next grant.
	Positions []int
	First     int           // index of the task that is first in the order
	InLine    int64         // id of the task that the device waits with; 0 means that the device does not wait
	Due       time.Duration // time until the device is expected to ask again, while it waits; negative if it is overdue
	Offered   time.Duration // how long a slot stays reserved for the device; 0 means that the device has no offer
	Waiting   int           // number of devices in the queue
	Lane      Lane
}

// Lane describes all urgent batches together (Want.Lane).
type Lane struct {
	Held    int // slots that urgent batches hold or are offered
	Room    int // slots for which urgent batches still have precedence; may be negative
	Waiting int // devices that wait with a task of an urgent batch
}

// Standing returns the places of the device's tasks in the queue of the pool. It changes nothing.
// tasks must not be empty.
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
