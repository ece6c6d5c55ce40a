package devices

import (
	"cmp"
	"errors"
	"net/http"
	"time"
)

// The errors that refuse a report whole, beside Error.
var (
	// ErrUnauthenticated: no credential, or one that is not known.
	ErrUnauthenticated = errors.New("unknown credential")
	// ErrForbidden: the caller may not act for this device.
	ErrForbidden = errors.New("not allowed for this device")
	// ErrIncomplete: the body broke off.
	ErrIncomplete = errors.New("the body broke off")
	// ErrUnavailable: the ledger could not be asked or did not answer. Nothing
	// was acknowledged; the device sends again.
	ErrUnavailable = errors.New("the ledger cannot be reached")
)

// Refusal is what a device is told of a report that is refused whole.
type Refusal struct {
	Err     error  // that it is about
	Status  int    // over HTTP
	Reason  Reason // of a reply, where there is no status; says when to come back
	Again   bool   // the same report may be sent again
	Code    string // for programs
	Detail  string // for people
	Session string // Detail for a device whose session was let in; empty: the same
}

// Refusals is the one table of what transports say of errors. That of an error
// which is in no row is the last. An Error brings its own code and detail.
func Refusals() []Refusal {
	return []Refusal{
		{&Error{Reason: ReasonInvalid}, http.StatusBadRequest, ReasonInvalid, false, "", "", ""},
		{&Error{Reason: ReasonTooLarge}, http.StatusRequestEntityTooLarge, ReasonTooLarge, false, "", "", ""},
		{&Error{Reason: ReasonBusyServer}, http.StatusServiceUnavailable, ReasonBusyServer, true, CodeBusyServer, "", ""},
		{ErrIncomplete, http.StatusRequestTimeout, ReasonInvalid, true, CodeBodyIncomplete, "body: broke off", ""},
		{ErrUnauthenticated, http.StatusUnauthorized, ReasonForbidden, true, CodeUnauthenticated, "a valid bearer token is needed", ""},
		{ErrForbidden, http.StatusForbidden, ReasonForbidden, true, CodeForbidden, "this token may not do that", "unknown, blocked or revoked"},
		{ErrUnavailable, http.StatusServiceUnavailable, ReasonUnavailable, true, CodeUnavailable, "the ledger cannot be reached; send again", ""},
	}
}

// RefusalOf finds the row of an error.
func RefusalOf(err error) Refusal {
	rows := Refusals()
	for _, r := range rows {
		if !errors.Is(err, r.Err) {
			continue
		}
		if own, ok := errors.AsType[*Error](err); ok {
			r.Code, r.Detail = own.Code, own.Detail
		}
		return r
	}
	return rows[len(rows)-1]
}

// Reply says it over a wire without statuses.
func (r Refusal) Reply(re string, after time.Duration) Reply {
	return Reply{Re: re, Reason: r.Reason, Code: r.Code, Detail: cmp.Or(r.Session, r.Detail), ReportAfterMS: after.Milliseconds()}
}
