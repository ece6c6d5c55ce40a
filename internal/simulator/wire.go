package simulator

import (
	"bytes"
	"encoding/json"
	"fmt"
)

type report struct {
	ID         string          `json:"id,omitempty"`
	Results    []result        `json:"results,omitempty"`
	Running    []running       `json:"running,omitempty"`
	Attributes json.RawMessage `json:"attributes,omitempty"`
}

type result struct {
	Task   int64           `json:"task"`
	Token  int64           `json:"token"`
	Status string          `json:"status"`
	Output json.RawMessage `json:"output,omitempty"`
	Error  string          `json:"error,omitempty"`
}

type running struct {
	Task     int64   `json:"task"`
	Token    int64   `json:"token"`
	Progress float64 `json:"progress"`
}

// encode returns the report as JSON. It does not escape HTML characters, because the bytes of outputs must not change.
func (r report) encode() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		panic(fmt.Sprintf("simulator: encoding a report: %v", err))
	}
	return b.Bytes()
}

// reply is a message that a device receives: the answer to a report, a push, or an error.
type reply struct {
	Re            string         `json:"re"`
	Acks          []ack          `json:"acks"`
	Renewed       []renewed      `json:"renewed"`
	Cancel        []cancelNotice `json:"cancel"`
	Task          *grant         `json:"task"`
	Reason        string         `json:"reason"`
	HeldMS        int64          `json:"held_ms"`
	ReportAfterMS int64          `json:"report_after_ms"`
	Credential    string         `json:"credential"` // the device's own token, sent once
	Code          string         `json:"code"`       // Code and Detail describe an error, for programs and for people
	Detail        string         `json:"detail"`
}

type ack struct {
	Task    int64  `json:"task"`
	Token   int64  `json:"token"`
	Outcome string `json:"outcome"`
}

type renewed struct {
	Task    int64 `json:"task"`
	Token   int64 `json:"token"`
	LeaseMS int64 `json:"lease_ms"`
}

type cancelNotice struct {
	Task  int64 `json:"task"`
	Token int64 `json:"token"`
}

type grant struct {
	ID      int64           `json:"id"`
	Token   int64           `json:"token"`
	Pool    string          `json:"pool"`
	Slot    int             `json:"slot"`
	Payload json.RawMessage `json:"payload"`
	LeaseMS int64           `json:"lease_ms"`
}

// The statuses, outcomes and reasons that a device distinguishes. A device treats an unknown reason as "none", and an
// unknown outcome as final.
const (
	statusSucceeded = "succeeded"
	statusFailed    = "failed"

	outcomeRecorded  = "recorded"
	outcomeDuplicate = "duplicate"
	outcomeLate      = "late"
	outcomeUnknown   = "unknown"
	outcomeRejected  = "rejected"

	reasonGranted     = "granted"
	reasonFull        = "full"
	reasonLimited     = "limited"
	reasonUnavailable = "unavailable"
	reasonInvalid     = "invalid"
	reasonForbidden   = "forbidden"
	reasonTooLarge    = "too_large"
	reasonBusyServer  = "busy_server"
	reasonWake        = "wake"
)

// listViolations describes how the reply violates the protocol. sent is the report that the reply answers. It does not check errors and
// pushes.
func (r reply) listViolations(sent report) []string {
	var found []string
	if r.Reason == "" {
		found = append(found, "reply without a reason")
	}
	if (r.Task != nil) != (r.Reason == reasonGranted) {
		found = append(found, fmt.Sprintf("reason %q with task %t", r.Reason, r.Task != nil))
	}
	if r.ReportAfterMS < 0 || r.ReportAfterMS > 86_400_000 {
		found = append(found, fmt.Sprintf("report_after_ms %d", r.ReportAfterMS))
	}
	if r.Reason == reasonUnavailable {
		return found // a reply with this reason may lack acks and renewals
	}
	return append(found, r.listMissingAnswers(sent)...)
}

// listMissingAnswers describes what the reply lacks. sent is the report that the reply answers. The reply must have an outcome for each
// result. It must name each running task in exactly one of the lists renewed and cancel.
func (r reply) listMissingAnswers(sent report) []string {
	var found []string
	acks, answers := map[grantKey]int{}, map[grantKey]int{}
	for _, a := range r.Acks {
		acks[grantKey{a.Task, a.Token}]++
	}
	for _, a := range r.Renewed {
		answers[grantKey{a.Task, a.Token}]++
	}
	for _, a := range r.Cancel {
		answers[grantKey{a.Task, a.Token}]++
	}
	for _, e := range sent.Results {
		if acks[grantKey{e.Task, e.Token}] == 0 {
			found = append(found, fmt.Sprintf("result of task %d has no outcome", e.Task))
		}
	}
	for _, e := range sent.Running {
		if n := answers[grantKey{e.Task, e.Token}]; n != 1 {
			found = append(found, fmt.Sprintf("running task %d has %d answers", e.Task, n))
		}
	}
	return found
}
