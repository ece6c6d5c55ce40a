// Package policy defines and validates limits as operators write them. It is separate from package limits, which enforces limits, so that
// clients can use it without Redis.
package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ErrInvalid reports that a policy is invalid.
var ErrInvalid = errors.New("invalid")

// Policy is one limit as an operator writes it.
type Policy struct {
	Name        string    `json:"name" doc:"1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit; unique in its list"`
	Per         string    `json:"per,omitempty" yaml:"per,omitempty" doc:"The part of a start that is counted separately: tags.NAME, device, batch, pool, kind, payload, payload.NAME, attributes.NAME (with trust_device), or a combination, separated by commas. Default of duplicate: device,kind,payload"`
	Algorithm   Algorithm `json:"algorithm" enum:"sliding,fixed,calendar,duplicate"`
	Windows     []Window  `json:"windows,omitempty" yaml:"windows,omitempty" nullable:"true" doc:"sliding: 1 to 8 windows; each must allow the start"`
	PerMS       int64     `json:"per_ms,omitempty" yaml:"per_ms,omitempty" doc:"fixed, duplicate: length of the window; at most 31 days"`
	Period      Period    `json:"period,omitempty" yaml:"period,omitempty" doc:"calendar: day, week (from Monday) or month"`
	Timezone    string    `json:"timezone,omitempty" yaml:"timezone,omitempty" doc:"calendar: such as Asia/Shanghai; default UTC"`
	Max         int64     `json:"max,omitempty" yaml:"max,omitempty" doc:"fixed, calendar, duplicate: maximum number of starts in a window"`
	OnError     OnError   `json:"on_error,omitempty" yaml:"on_error,omitempty" doc:"What happens to a start that cannot be checked: closed (it waits, the default) or open (it is allowed)"`
	OnLimited   OnLimited `json:"on_limited,omitempty" yaml:"on_limited,omitempty" doc:"What happens to a start that is refused: wait (the default), or drop (its task ends as suppressed)"`
	Reveal      bool      `json:"reveal,omitempty" yaml:"reveal,omitempty" doc:"true: operators see subjects made of payloads and facts as plain text, not as a digest"`
	TrustDevice bool      `json:"trust_device,omitempty" yaml:"trust_device,omitempty" doc:"true: per may name attributes, which the device itself reports"`
}

// Window allows at most Max starts in any PerMS milliseconds.
type Window struct {
	Max   int64 `json:"max" doc:"1 to 100000"`
	PerMS int64 `json:"per_ms" yaml:"per_ms" doc:"1 ms to 31 days"`
}

// Algorithm is the way in which a policy counts.
type Algorithm string

// The algorithms.
const (
	// Sliding counts in any number of windows. Each window ends at the present time.
	Sliding Algorithm = "sliding"
	// Fixed counts in one window at a time. A window begins with the first start after the end of the previous window.
	Fixed Algorithm = "fixed"
	// Calendar counts in days, weeks or months of a time zone.
	Calendar Algorithm = "calendar"
	// Duplicate counts, in a sliding window, the starts that are equal in all fields of Per. The default of Per is device, kind and payload.
	Duplicate Algorithm = "duplicate"
)

// Period is a unit of the calendar.
type Period string

// The periods. Weeks begin on Monday.
const (
	Day   Period = "day"
	Week  Period = "week"
	Month Period = "month"
)

// OnError determines what happens to a start that cannot be checked.
type OnError string

// The values of OnError.
const (
	FailClosed OnError = "closed" // the start waits
	FailOpen   OnError = "open"   // the start passes
)

// OnLimited determines what happens to a start that is refused.
type OnLimited string

// The values of OnLimited.
const (
	WaitOnLimit OnLimited = "wait" // the start is tried again later
	DropOnLimit OnLimited = "drop" // the task of the start ends
)

// duplicatePer is the default of Per for the algorithm Duplicate: the fields in which two equal starts agree.
const duplicatePer = "device,kind,payload"

// Parse decodes a JSON array of policies and validates them. Null and an empty input mean no policies. All its errors wrap ErrInvalid.
func Parse(raw []byte) ([]Policy, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	var policies []Policy
	if err := decoder.Decode(&policies); err != nil {
		return nil, fmt.Errorf("limits: %w: %w", ErrInvalid, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("limits: %w: more than one JSON value", ErrInvalid)
	}
	return policies, Validate(policies)
}
