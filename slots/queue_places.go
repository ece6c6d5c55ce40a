package slots

import (
	"context"
	"fmt"
	"time"
)

// QueuePlaces is an estimate of when the tasks of a device get slots of a pool.
type QueuePlaces struct {
	PoolKnown       bool // whether Redis knows the pool; if false, no other field is set
	Capacity        int
	Held            int // number of held slots; greater than Capacity after a decrease of the capacity
	UnreservedSlots int // slots that are neither held nor offered; negative after a decrease of the capacity
	// Positions has, for each task, the estimated number of the grant that starts it: 1 is the next grant of the pool.
	Positions   []int
	FirstIndex  int           // index of the task that would be granted first
	WaitingTask int64         // id of the task that the device waits with; 0 means that the device does not wait
	ReportDueIn time.Duration // if the device waits: time until it is expected to ask again; negative if it is overdue
	OfferLeft   time.Duration // how long a slot stays reserved for the device; 0 means that the device has no offer
	Waiting     int           // number of devices in the queue
	Lane        UrgentLane
}

// UrgentLane describes all urgent batches together (Want.LanePercent).
type UrgentLane struct {
	Held    int // number of slots that urgent batches hold or are offered
	Room    int // number of slots that urgent batches may still get before all others; may be negative
	Waiting int // number of devices that wait with a task of an urgent batch
}

// ReadQueuePlaces returns the places that the tasks of the device have, or would have, in the queue of the pool. tasks must not be empty. A
// task needs no Lease and no TTL.
func (s *Semaphore) ReadQueuePlaces(ctx context.Context, pool, device string, tasks []Want) (QueuePlaces, error) {
	if err := checkPoolName(pool); err != nil {
		return QueuePlaces{}, err
	}
	args := queuePlacesArgs{Device: device, Wants: make([]wantArgs, len(tasks))}
	for i, w := range tasks {
		if err := checkOrderNumbers(w.Batch, w.Task, w.Weight, w.Priority, w.LanePercent); err != nil {
			return QueuePlaces{}, err
		}
		args.Wants[i] = newWantArgs(w)
	}
	var reply queuePlacesReply
	known, err := s.runAndDecode(ctx, s.scripts.queuePlaces, pool, args, &reply)
	if err == nil && known && len(reply.Positions) != len(tasks) {
		err = fmt.Errorf("the reply has %d positions for %d tasks", len(reply.Positions), len(tasks))
	}
	if err != nil {
		return QueuePlaces{}, wrapUnavailable("reading the queue of", pool, err)
	}
	if !known {
		return QueuePlaces{}, nil
	}
	places := QueuePlaces{PoolKnown: true, Capacity: reply.Capacity, Held: reply.Held, UnreservedSlots: reply.Unreserved, Positions: reply.Positions, FirstIndex: reply.First - 1}
	places.Waiting, places.Lane = reply.Size, UrgentLane{Held: reply.State.Lane, Room: reply.Room, Waiting: reply.State.Urgent}
	if w := reply.Waiter; w != nil {
		places.WaitingTask, places.ReportDueIn = w.taskID(), millisToDuration(w.Due-reply.Now)
		if w.Offer != 0 {
			places.OfferLeft = millisToDuration(w.Ends - reply.Now)
		}
	}
	return places, nil
}

type queuePlacesArgs struct {
	Device string     `json:"device"`
	Wants  []wantArgs `json:"wants"`
}

type queuePlacesReply struct {
	Capacity   int          `json:"capacity"`
	Held       int          `json:"held"`
	Unreserved int          `json:"unreserved"`
	Now        int64        `json:"now"`
	First      int          `json:"first"`
	Positions  luaList[int] `json:"positions"`
	Waiter     *waiterReply `json:"waiter"`
	Size       int          `json:"size"`
	Room       int          `json:"room"`
	State      struct {
		Lane   int `json:"lane"`
		Urgent int `json:"urgent"`
	} `json:"state"`
}
