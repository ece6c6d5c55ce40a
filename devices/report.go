package devices

import (
	"encoding/json"
	"time"
)

// Limits of a report. A report that exceeds one of these limits is refused as a whole.
const (
	MaxBody          = 64 << 10 // bytes; more than MaxOutput, and less than a packet that brokers must allow (128 KiB)
	MaxDepth         = 16
	MaxResults       = 100
	MaxRunning       = 100
	MaxReportID      = 128     // characters
	MaxAttributes    = 8 << 10 // bytes
	MaxAttributeKeys = 64
)

// Limits of an entry of results. An entry that exceeds one of these limits does not affect other entries.
const (
	MaxOutput     = 32 << 10 // bytes; a longer output is dropped, and the status is recorded
	MaxError      = 4 << 10  // bytes; a longer text is cut
	MaxRetryAfter = 24 * time.Hour
)

// Status is the end of a task as the device reports it. A new status also needs a case in decodeStatus, a value in the enum of package http,
// and a case in endCauseOfStatus of package dispatcher.
type Status string

// The statuses of a result.
const (
	StatusSucceeded Status = "succeeded"
	StatusFailed    Status = "failed"   // retried according to the batch
	StatusRejected  Status = "rejected" // this device can never run the task
	StatusReturned  Status = "returned" // the device cannot run the task now
)

// Report is one decoded and checked message of a device.
type Report struct {
	ID            string // Chosen by the device; may be empty. If the caller has ViaSession, a report without an ID gets no task.
	Results       []Result
	Running       []Running
	Accept        bool            // If it is false, nothing is granted or redelivered.
	Attributes    json.RawMessage // merge patch (RFC 7396). If it is nil, the attributes stay.
	UnknownFields int             // number of ignored fields
}

// Result is one entry of a report's results.
type Result struct {
	Task, Token   int64
	Status        Status
	Output        json.RawMessage // As sent, but with U+FFFD in place of invalid characters. It is nil if output was absent or null.
	Error         string          // at most MaxError bytes
	RetryAfter    time.Duration   // only with StatusReturned; 0 to MaxRetryAfter
	OutputDropped bool            // The output was longer than MaxOutput.
	Invalid       string          // the code of a bad entry. It is empty if the entry is valid.
}

// Running is one entry of a report's running tasks.
type Running struct {
	Task, Token int64
	Progress    float64       // 0 to 1. A value outside of this range becomes 0.
	Invalid     string        // the code of a bad entry. It is empty if the entry is valid.
	Lease       time.Duration // the new length of a caller's lease. If it is 0, the length stays. It is always 0 in a report of a device.
}

// Error is the reason why a whole report is refused.
type Error struct {
	Reason Reason // ReasonInvalid, ReasonTooLarge or ReasonBusyServer
	Code   string // for programs; does not change between releases
	Detail string // for people: names the field and the limit
}

// Error returns the code and the detail for logs.
func (e *Error) Error() string { return e.Code + ": " + e.Detail }

// Is reports whether target is an *Error that has only a Reason, and e has this reason.
func (e *Error) Is(target error) bool {
	all, ok := target.(*Error)
	return ok && *all == Error{Reason: e.Reason}
}
