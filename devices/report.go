package devices

import (
	"encoding/json"
	"time"
)

// Limits of a report; beyond them it is refused whole.
const (
	MaxBody          = 64 << 10 // bytes
	MaxDepth         = 16
	MaxResults       = 100
	MaxRunning       = 100
	MaxReportID      = 128     // characters
	MaxAttributes    = 8 << 10 // bytes
	MaxAttributeKeys = 64
)

// Limits inside a report; an entry beyond them does not affect the others.
const (
	MaxOutput     = 32 << 10 // bytes; beyond: the output is dropped, the status recorded
	MaxError      = 4 << 10  // bytes; beyond: cut
	MaxRetryAfter = 24 * time.Hour
)

// Status is how a device says a task ended.
type Status string

// The statuses of a result.
const (
	StatusSucceeded Status = "succeeded"
	StatusFailed    Status = "failed"   // retried as the batch says
	StatusRejected  Status = "rejected" // this device never can
	StatusReturned  Status = "returned" // not now
)

// Report is one message of a device, decoded and checked.
type Report struct {
	ID         string // chosen by the device; may be empty over HTTP
	Results    []Result
	Running    []Running
	Accept     bool            // false: nothing is granted or redelivered
	Attributes json.RawMessage // merge patch (RFC 7396); nil = none
	Unknown    int             // fields that were ignored
}

// Result is one entry of a report's results.
type Result struct {
	Task, Token   int64
	Status        Status
	Output        json.RawMessage // as sent, but for U+FFFD; nil = absent or null
	Error         string          // at most MaxError bytes
	RetryAfter    time.Duration   // with StatusReturned; 0..MaxRetryAfter
	OutputDropped bool            // the output was over MaxOutput
	Invalid       string          // not empty: a bad entry, and its code
}

// Running is one entry of a report's running tasks.
type Running struct {
	Task, Token int64
	Progress    float64       // 0..1; 0 when it was not a number of this range
	Invalid     string        // not empty: a bad entry, and its code
	Lease       time.Duration // the new length that a caller asks for. If it is 0, the length stays. No report of a device has it
}

// Error is the reason why a report is refused whole.
type Error struct {
	Reason Reason // ReasonInvalid, ReasonTooLarge or ReasonBusyServer
	Code   string // stable, for programs
	Detail string // for people; names the field and the limit
}

// Error is for logs: a device is told the code and the detail apart.
func (e *Error) Error() string { return e.Code + ": " + e.Detail }

// Is makes it one of the errors of its Reason.
func (e *Error) Is(target error) bool {
	all, ok := target.(*Error)
	return ok && *all == Error{Reason: e.Reason}
}
