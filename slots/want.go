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
	TTL    time.Duration // duration of the lease, only for Lease.Remaining; at least 1 ms; fractions of a millisecond are dropped
	Batch  int64         // id of the batch, 0..2^53
	Weight int           // weight of the batch, 1..2^20; 0 counts as 1
	// LanePercent makes the batch urgent if it is 1..100. Urgent batches come before all other batches while all urgent batches together
	// hold less than this percentage of the capacity, rounded up to slots.
	LanePercent int
	Priority    int   // order inside the batch, higher first; within +-2^30
	Task        int64 // id of the task, 0..2^53; a lower id is an older task
}

// Joiner is a device that is added to the queue although it has not asked for a slot. Its Want needs no Lease and no TTL. A device that
// already waits usually keeps the task with which it waits. It waits with the new task instead if it has no offer and the new task is urgent,
// or if it missed an offer or was passed over, and the new task is newer.
type Joiner struct {
	Want
	Device string
	Reach  Reach
}

// formatBatchID returns a text of 16 digits. Such texts sort in the order of the batch ids (lua/queue.lua).
func formatBatchID(batchID int64) string { return fmt.Sprintf("%016d", batchID) }

// taskSortText returns a text by which the tasks of a batch are sorted. The task with the highest priority is first, then the oldest task.
// taskIDFromSortText, lua/queue.lua and lua/serve.lua read the task id from the text. Package store uses the same order (bestCandidates).
func taskSortText(priority int, taskID int64) string {
	return fmt.Sprintf("%010d|%016d", 1<<31-int64(priority), taskID)
}

// taskIDFromSortText returns the id of the task for which taskSortText made sortText. It returns 0 if sortText has another form.
func taskIDFromSortText(sortText string) (taskID int64) {
	if len(sortText) < 12 {
		return 0
	}
	taskID, err := strconv.ParseInt(sortText[11:], 10, 64)
	if err != nil {
		return 0
	}
	return taskID
}

// textInt is an integer that a script writes as a JSON string.
type textInt int64

// UnmarshalText sets n to the integer that text contains in decimal digits.
func (n *textInt) UnmarshalText(text []byte) error {
	parsed, err := strconv.ParseInt(string(text), 10, 64)
	*n = textInt(parsed)
	return err
}

// luaList is a list in the JSON reply of a script. Lua encodes an empty list as {}.
type luaList[Element any] []Element

// UnmarshalJSON decodes a JSON list. It decodes {} as nil.
func (l *luaList[Element]) UnmarshalJSON(text []byte) error {
	if string(text) == "{}" {
		*l = nil
		return nil
	}
	return json.Unmarshal(text, (*[]Element)(l))
}

// These types are the JSON arguments and replies of the scripts. The header of each script describes its arguments and its reply.
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
		Wants  []wantArgs `json:"wants,omitempty"`
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
	return wantArgs{Lease: want.Lease, TTL: want.TTL.Milliseconds(), Batch: formatBatchID(want.Batch), Weight: max(want.Weight, 1), Lane: want.LanePercent, Order: taskSortText(want.Priority, want.Task)}
}

func (w waiterReply) taskID() int64 { return taskIDFromSortText(w.Order) }
