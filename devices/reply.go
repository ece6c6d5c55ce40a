package devices

import (
	"encoding/json"
	"time"
)

// Reason is the reason why a reply has a task or has none. Devices treat an unknown reason as ReasonNone.
type Reason string

// The reasons of a reply. Over MQTT, the last four, and ReasonUnavailable with the Code "unavailable", refuse the whole report. Over HTTP,
// a status does this.
const (
	ReasonGranted     Reason = "granted"
	ReasonNone        Reason = "none"        // no open task
	ReasonFull        Reason = "full"        // no free slot
	ReasonLimited     Reason = "limited"     // a rate limit refuses the start of the task
	ReasonWindow      Reason = "window"      // there are open tasks, but they must not start at this time
	ReasonPaused      Reason = "paused"      // the pool or the batch is paused
	ReasonBusy        Reason = "busy"        // the device holds a task already
	ReasonDeclined    Reason = "declined"    // the report had accept: false
	ReasonUnavailable Reason = "unavailable" // a grant cannot be confirmed now
	ReasonBlocked     Reason = "blocked"     // blocked by an operator

	ReasonWrongWire   Reason = "wrong_wire"   // the wire (protocol) of the device cannot carry the payload of the task; only for devices that speak DDI
	ReasonCallersFull Reason = "callers_full" // callers hold all slots that they may hold. Only in answers to lease requests

	ReasonInvalid    Reason = "invalid"
	ReasonForbidden  Reason = "forbidden"
	ReasonTooLarge   Reason = "too_large"
	ReasonBusyServer Reason = "busy_server"
)

// ReasonWake is the reason of a pushed message. No answer to a report has it.
const ReasonWake Reason = "wake"

// Outcome is the final answer of the dispatcher to one result.
type Outcome string

// The outcomes of a result. All are final.
const (
	OutcomeRecorded  Outcome = "recorded"
	OutcomeDuplicate Outcome = "duplicate"
	OutcomeLate      Outcome = "late"
	OutcomeUnknown   Outcome = "unknown"
	OutcomeRejected  Outcome = "rejected" // the entry is invalid, whatever its Status; Ack.Code is the cause
)

// The values of Cancel.Why: the reasons why a running task must stop.
const (
	CancelCancelled = "cancelled"
	CancelExpired   = "expired"
	CancelMaxRun    = "max_run"
	CancelBlocked   = "blocked"
	CancelPaused    = "paused" // the task waits again, unless it succeeds first
	CancelStale     = "stale"
)

// Reply answers a report of a device. Times are in milliseconds.
type Reply struct {
	Re            string    `json:"re,omitempty"` // the id of the report that is answered
	Acks          []Ack     `json:"acks,omitempty"`
	Renewed       []Renewed `json:"renewed,omitempty"`
	Cancel        []Cancel  `json:"cancel,omitempty"`
	Task          *Task     `json:"task,omitempty"` // set if and only if Reason is ReasonGranted
	Reason        Reason    `json:"reason"`
	Limited       *Limited  `json:"limited,omitempty"` // set only with ReasonLimited
	HeldMS        int64     `json:"held_ms"`           // time for which the report was parked
	ReportAfterMS int64     `json:"report_after_ms"`
	Credential    string    `json:"credential,omitempty"` // a token of the device's own, sent once, when the device enrolls
	Code          string    `json:"code,omitempty"`       // code of a refusal over MQTT, or of a fault in a report that was still handled
	Detail        string    `json:"detail,omitempty"`     // explains Code to people

	FromMark bool `json:"-"` // of HandleReport: Reason (none or full) follows from the device's mark in Redis, and the ledger was not read
}

// Limited names the policy that refuses the start of a task, and the time at which the refusal ends.
type Limited struct {
	Policy string `json:"policy"`
	Until  string `json:"until" format:"date-time"` // RFC 3339, UTC, with milliseconds
}

// NewLimited returns the Limited of a policy that refuses starts before until.
func NewLimited(policy string, until time.Time) *Limited {
	return &Limited{Policy: policy, Until: until.UTC().Format("2006-01-02T15:04:05.000Z07:00")}
}

// Ack is the answer to one result.
type Ack struct {
	Task    int64   `json:"task"`
	Token   int64   `json:"token"`
	Outcome Outcome `json:"outcome"`
	Code    string  `json:"code,omitempty"`
}

// Renewed extends the lease of a running task.
type Renewed struct {
	Task    int64 `json:"task"`
	Token   int64 `json:"token"`
	LeaseMS int64 `json:"lease_ms"`
}

// Cancel asks the device to stop a running task and to report at once.
type Cancel struct {
	Task  int64  `json:"task"`
	Token int64  `json:"token"`
	Why   string `json:"why"`
}

// Task is a grant. The device may use the external system for LeaseMS plus Reply.HeldMS milliseconds after it first sent the answered
// report.
type Task struct {
	ID          int64           `json:"id"`
	Token       int64           `json:"token"`
	Pool        string          `json:"pool"`
	Slot        int             `json:"slot"`
	Kind        string          `json:"kind"`
	Payload     json.RawMessage `json:"payload,omitempty"`
	Attempt     int             `json:"attempt"`
	Redelivered int             `json:"redelivered"` // the number of earlier replies with this grant
	LeaseMS     int64           `json:"lease_ms"`
}
