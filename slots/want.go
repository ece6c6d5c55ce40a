package slots

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Want is a task for which a device asks for a slot. Serve describes the order of Wants.
type Want struct {
	Lease  string        // unique per acquisition; must not contain '|'
	TTL    time.Duration // duration of the lease, at least 1 ms; fractions of a millisecond are dropped
	Batch  int64         // id of the batch, 0..2^53
	Weight int           // weight of the batch, 1..2^20; 0 counts as 1
	// LanePercent makes the batch urgent if it is 1..100: urgent batches come before all others while together they hold less than this
	// percentage of the capacity, rounded up to slots.
	LanePercent int
	Priority    int   // order inside the batch, higher first; within +-2^30
	Task        int64 // id of the task, 0..2^53; a lower id is an older task
}

// Joiner is a device that is added to the queue although it has not asked for a slot. Its Want needs no Lease and no TTL. A device that waits
// already keeps its task, unless it has no offer and the new task is urgent, or it missed an offer and the new task is newer.
type Joiner struct {
	Want
	Device string
	Reach  Reach
}

// batchName formats a batch id so that the order of the texts is the order of the ids (lua/queue.lua).
func batchName(batch int64) string { return fmt.Sprintf("%016d", batch) }

// orderName returns a text by which the tasks of a batch are sorted: the highest priority first, then the oldest task.
func orderName(priority int, task int64) string {
	return fmt.Sprintf("%010d|%016d", 1<<31-int64(priority), task)
}

// parseTask returns the id of the task in a text of orderName, or 0 if there is none.
func parseTask(order string) int64 {
	if len(order) < 12 {
		return 0
	}
	task, err := strconv.ParseInt(order[11:], 10, 64)
	if err != nil {
		return 0
	}
	return task
}

// textInt is an integer that a script writes as a JSON string.
type textInt int64

// UnmarshalText parses the decimal text.
func (n *textInt) UnmarshalText(text []byte) error {
	parsed, err := strconv.ParseInt(string(text), 10, 64)
	*n = textInt(parsed)
	return err
}

// luaList is a JSON list. Lua encodes an empty list as an empty object.
type luaList[T any] []T

// UnmarshalJSON decodes a list, or an empty object as nil.
func (l *luaList[T]) UnmarshalJSON(text []byte) error {
	if string(text) == "{}" {
		*l = nil
		return nil
	}
	return json.Unmarshal(text, (*[]T)(l))
}

// The JSON arguments and replies of the scripts. The headers of the scripts describe them.
type (
	paceArgs struct {
		Hold    int64 `json:"hold"`
		Soonest int64 `json:"soonest"`
		Period  int64 `json:"period"`
		Sleep   int64 `json:"sleep"`
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
		Device string  `json:"device"`
		Batch  textInt `json:"batch"`
		Order  string  `json:"order"`
		Reach  Reach   `json:"reach"`
		Due    int64   `json:"due"`
		Offer  textInt `json:"offer"`
		Ends   int64   `json:"ends"`
	}
)

func newWantArgs(want Want) wantArgs {
	return wantArgs{Lease: want.Lease, TTL: want.TTL.Milliseconds(), Batch: batchName(want.Batch), Weight: max(want.Weight, 1), Lane: want.LanePercent, Order: orderName(want.Priority, want.Task)}
}

func (w waiterReply) task() int64 { return parseTask(w.Order) }
