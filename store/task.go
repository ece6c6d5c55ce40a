package store

import (
	"encoding/json"
	"time"
)

// TaskState is where a task stands. Dispatched is derived: the task is
// pending in its table and has a row in grants.
type TaskState string

// The states of a task. The last five are terminal, but a late success may
// still turn TimedOut into Succeeded.
const (
	Pending    TaskState = "pending"
	Dispatched TaskState = "dispatched"
	Succeeded  TaskState = "succeeded"
	Failed     TaskState = "failed"
	TimedOut   TaskState = "timed_out"
	Cancelled  TaskState = "cancelled"
	Expired    TaskState = "expired"
)

// Task is one piece of work for one device.
type Task struct {
	ID         int64
	Batch      int64
	Pool       string
	Device     string
	Kind       string
	Payload    json.RawMessage // its own or its batch's
	Priority   int
	State      TaskState
	Attempts   int        // counted attempts that ended
	Returned   int        // attempts handed back uncounted
	RetryAt    *time.Time // not granted before (backoff)
	CreatedAt  time.Time
	FinishedAt *time.Time
	Output     json.RawMessage // of the result that ended it
	Error      string
}

// Attempt is the record of one grant that ended.
type Attempt struct {
	Token     int64
	Task      int64
	Number    int // 1 for the first
	Device    string
	Pool      string
	Slot      int
	Lease     string
	GrantedAt time.Time
	EndedAt   time.Time
	EndedBy   EndCause
	Output    json.RawMessage
	Error     string
}

// EndCause says how a grant ended.
type EndCause string

// The ways a grant ends: by a result of its device, by the lapse of its
// lease, or by force.
const (
	BySuccess  EndCause = "succeeded"
	ByFailure  EndCause = "failed"
	ByReject   EndCause = "rejected"
	ByReturn   EndCause = "returned"
	ByLapse    EndCause = "lapsed"
	ByOperator EndCause = "released"
)

// Ending is all that decides what becomes of a task whose grant ends.
type Ending struct {
	Cause        EndCause
	CancelWhy    string // not empty: its end was asked for
	Attempts     int    // counted so far, without this one
	Returned     int    // handed back so far, without this one
	MaxAttempts  int
	RetryOn      []string
	OnLost       string
	RetryBackoff time.Duration
	RetryAfter   time.Duration // asked for by the device, with ByReturn
}

// Settlement is what becomes of it.
type Settlement struct {
	State    TaskState     // Pending or a terminal state
	Delay    time.Duration // Pending: not before this long from now
	Counted  bool          // the attempt counts against MaxAttempts
	Returned bool          // the attempt counts against the returns
}

// Settle decides the fate of a task whose grant ends. The store calls it
// inside the transaction that ends the grant; it must not block.
type Settle func(Ending) Settlement
