package slots

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Want is a task that a slot is wanted for, with what orders it.
type Want struct {
	Lease    string        // unique per acquisition; no '|'
	TTL      time.Duration // of the lease: at least 1 ms; cut to milliseconds
	Batch    int64         // 0..2^53
	Weight   int           // of the batch: 1..2^20; 0 counts as 1
	Lane     int           // 1..100: its batch goes before all others while such batches hold less than these percent of the capacity, rounded up; 0: never
	Priority int           // inside the batch, higher first: within +-2^30
	Task     int64         // 0..2^53; the lower the older
}

// Waiter is a task and what orders it, as in a Want.
type Waiter struct {
	Device           string
	Batch, Task      int64
	Weight, Priority int
	Lane             int
}

// Joiner is a device that joins the queue without having asked. One that waits there already
// stays as it is, unless it joins with a lane and was offered nothing: then it waits with this task.
type Joiner struct {
	Waiter
	Reach Reach
}

// batchName writes a batch so that its order is that of its text (lua/queue.lua).
func batchName(batch int64) string { return fmt.Sprintf("%016d", batch) }

// orderName does so for the order inside a batch: the highest priority first, then
// the oldest task.
func orderName(priority int, task int64) string {
	return fmt.Sprintf("%010d|%016d", 1<<31-priority, task)
}

// taskOf is the task in an orderName.
func taskOf(order string) int64 {
	if len(order) < 12 {
		return 0
	}
	task, err := strconv.ParseInt(order[11:], 10, 64)
	if err != nil {
		return 0
	}
	return task
}

// numbered reads a number that a script writes as text.
type numbered int64

// UnmarshalText reads it.
func (n *numbered) UnmarshalText(text []byte) error {
	parsed, err := strconv.ParseInt(string(text), 10, 64)
	*n = numbered(parsed)
	return err //nolint:wrapcheck // by the decoder
}

// list is one that a script writes as an object when it is empty.
type list[T any] []T

// UnmarshalJSON reads it.
func (l *list[T]) UnmarshalJSON(text []byte) error {
	if string(text) == "{}" {
		*l = nil
		return nil
	}
	return json.Unmarshal(text, (*[]T)(l)) //nolint:wrapcheck // by the decoder
}

// The arguments of the scripts and their answers, in JSON; see their headers.
type (
	paceArgs struct {
		Hold    int64 `json:"hold"`
		Soonest int64 `json:"soonest"`
		Period  int64 `json:"period"`
		Offer   int64 `json:"offer"`
	}
	wantArgs struct {
		Lease  string `json:"lease,omitempty"`
		TTL    int64  `json:"ttl,omitempty"`
		Batch  string `json:"batch"`
		Weight int    `json:"weight"`
		Lane   int    `json:"lane,omitempty"`
		Order  string `json:"order"`
	}
	askerArgs struct {
		Device string     `json:"device"`
		Reach  Reach      `json:"reach"`
		Chance float64    `json:"chance"`
		Wants  []wantArgs `json:"wants"`
	}
	joinerArgs struct {
		wantArgs

		Device string `json:"device"`
		Reach  Reach  `json:"reach"`
	}
	waiterReply struct {
		Device string   `json:"device"`
		Batch  numbered `json:"batch"`
		Order  string   `json:"order"`
		Reach  Reach    `json:"reach"`
		Due    int64    `json:"due"`
		Offer  numbered `json:"offer"`
		Ends   int64    `json:"ends"`
	}
)

func newWaiterArgs(w Waiter) wantArgs {
	return wantArgs{Batch: batchName(w.Batch), Weight: max(w.Weight, 1), Lane: w.Lane, Order: orderName(w.Priority, w.Task)}
}

func newWantArgs(w Want) wantArgs {
	return wantArgs{Lease: w.Lease, TTL: w.TTL.Milliseconds(), Batch: batchName(w.Batch), Weight: max(w.Weight, 1), Lane: w.Lane, Order: orderName(w.Priority, w.Task)}
}

func (w waiterReply) task() int64 { return taskOf(w.Order) }
