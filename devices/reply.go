package devices

import (
	"encoding/json"
	"time"
)

// Reason says why a reply carries a task or none. Devices take an unknown
// reason as ReasonNone.
type Reason string

// The reasons of a reply; the last four are the errors of MQTT.
const (
	ReasonGranted     Reason = "granted"
	ReasonNone        Reason = "none"        // no open task
	ReasonFull        Reason = "full"        // no free slot
	ReasonLimited     Reason = "limited"     // a rate limit
	ReasonWindow      Reason = "window"      // open tasks, but not at this time
	ReasonPaused      Reason = "paused"      // pool or batch paused
	ReasonBusy        Reason = "busy"        // holds a task already
	ReasonDeclined    Reason = "declined"    // accept: false
	ReasonUnavailable Reason = "unavailable" // cannot be confirmed now
	ReasonBlocked     Reason = "blocked"     // blocked by an operator

	ReasonCallersFull Reason = "callers_full" // callers hold as many slots as they may: of leases, no device is told it

	ReasonInvalid    Reason = "invalid"
	ReasonForbidden  Reason = "forbidden"
	ReasonTooLarge   Reason = "too_large"
	ReasonBusyServer Reason = "busy_server"
)

// ReasonWake is only pushed, never the answer to a report.
const ReasonWake Reason = "wake"

// Outcome is the final answer to one result.
type Outcome string

// The outcomes of a result; all are final.
const (
	OutcomeRecorded  Outcome = "recorded"
	OutcomeDuplicate Outcome = "duplicate"
	OutcomeLate      Outcome = "late"
	OutcomeUnknown   Outcome = "unknown"
	OutcomeRejected  Outcome = "rejected" // a bad entry; Code says why
)

// Why a running task must stop.
const (
	CancelCancelled = "cancelled"
	CancelExpired   = "expired"
	CancelMaxRun    = "max_run"
	CancelBlocked   = "blocked"
	CancelStale     = "stale"
)

// Reply is what a device gets for a report. Times are milliseconds.
type Reply struct {
	Re            string    `json:"re,omitempty"` // the report's id
	Acks          []Ack     `json:"acks,omitempty"`
	Renewed       []Renewed `json:"renewed,omitempty"`
	Cancel        []Cancel  `json:"cancel,omitempty"`
	Task          *Task     `json:"task,omitempty"` // exactly with ReasonGranted
	Reason        Reason    `json:"reason"`
	Limited       *Limited  `json:"limited,omitempty"` // with ReasonLimited
	HeldMS        int64     `json:"held_ms"`
	ReportAfterMS int64     `json:"report_after_ms"`
	Credential    string    `json:"credential,omitempty"` // the device's own token, once, on enrolment
	Code          string    `json:"code,omitempty"`       // MQTT errors
	Detail        string    `json:"detail,omitempty"`     // MQTT errors
}

// Limited names the policy that refuses starts now, and the time until when.
type Limited struct {
	Policy string `json:"policy"`
	Until  string `json:"until" format:"date-time"` // RFC 3339, UTC, with milliseconds
}

// NewLimited makes the Limited of a policy.
func NewLimited(policy string, until time.Time) *Limited {
	return &Limited{Policy: policy, Until: until.UTC().Format("2006-01-02T15:04:05.000Z07:00")}
}

// Ack answers one result.
type Ack struct {
	Task    int64   `json:"task"`
	Token   int64   `json:"token"`
	Outcome Outcome `json:"outcome"`
	Code    string  `json:"code,omitempty"`
}

// Renewed gives a running task more time.
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

// Task is a grant: the device may use the external system for LeaseMS,
// counted from when it sent the report that this reply answers.
type Task struct {
	ID          int64           `json:"id"`
	Token       int64           `json:"token"`
	Pool        string          `json:"pool"`
	Slot        int             `json:"slot"`
	Kind        string          `json:"kind"`
	Payload     json.RawMessage `json:"payload,omitempty"`
	Attempt     int             `json:"attempt"`
	Redelivered int             `json:"redelivered"`
	LeaseMS     int64           `json:"lease_ms"`
}
