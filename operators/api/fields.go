package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

func apiTime(at time.Time) operators.Time { return operators.Time{Time: at} }

// apiTimePointer converts a time of the ledger to the form of the API. It returns nil for nil.
func apiTimePointer(at *time.Time) *operators.Time {
	if at == nil {
		return nil
	}
	return &operators.Time{Time: *at}
}

// apiTimeIfSet converts a time to the form of the API. It returns nil for the zero time.
func apiTimeIfSet(at time.Time) *operators.Time {
	if at.IsZero() {
		return nil
	}
	return &operators.Time{Time: at}
}

// applyChange sets field to the value of change, or to defaultValue if the change asks for the default. If the change is not present, it
// does nothing.
func applyChange[Value any](change operators.Change[Value], field *Value, defaultValue Value) {
	switch {
	case !change.Present:
	case change.Value == nil:
		*field = defaultValue
	default:
		*field = *change.Value
	}
}

// applyMilliseconds does the same as applyChange for a field that is a duration. The value of change is in milliseconds.
func applyMilliseconds(change operators.Change[int64], field *time.Duration, defaultValue time.Duration) {
	ms := field.Milliseconds()
	applyChange(change, &ms, defaultValue.Milliseconds())
	*field = milliseconds(ms)
}

// convertChange converts the value of change to the stored form. It calls convert, which also checks the value.
func convertChange[Written, Kept any](change operators.Change[Written], convert func(Written) (Kept, error)) (operators.Change[Kept], error) {
	if change.Value == nil {
		return operators.Change[Kept]{Present: change.Present}, nil
	}
	kept, err := convert(*change.Value)
	return operators.Set(kept), err
}

// ReadOnlyFields has the fields of a pool, a profile or a limit set that a GET returns and a PUT ignores.
type ReadOnlyFields struct {
	Name    json.RawMessage `json:"name,omitempty" readOnly:"true" doc:"Ignored, like all other read-only fields"`
	Version json.RawMessage `json:"version,omitempty" readOnly:"true"`
	Created json.RawMessage `json:"created_at,omitempty" readOnly:"true"`
	Updated json.RawMessage `json:"updated_at,omitempty" readOnly:"true"`
}

// IDPath is the path parameter {id}: the id of a batch, a task or a token.
type IDPath struct {
	ID int64 `path:"id" minimum:"1" maximum:"9007199254740991"`
}

func formatDecimal(n int64) string { return strconv.FormatInt(n, 10) }

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

type bodyResponse[T any] struct{ Body T }

// createdResponse is a response with the status 201 if something was created.
type createdResponse[T any] struct {
	Status int
	Body   T
}

func createdStatus(isNew bool) (httpStatus int) {
	if isNew {
		return http.StatusCreated
	}
	return http.StatusOK
}
