package devices

import (
	"cmp"
	"errors"
	"net/http"
	"time"
)

// The errors that refuse a report whole, beside Error.
var (
	ErrUnauthenticated = errors.New("unknown credential")           // or none
	ErrForbidden       = errors.New("not allowed for this device")  // the caller may not act for it
	ErrIncomplete      = errors.New("the body broke off")           // the network's fault
	ErrUnavailable     = errors.New("the ledger cannot be reached") // nothing was acknowledged
)

// Refusal is the answer to a report that is refused whole.
type Refusal struct {
	Err     error  // that it is about
	Status  int    // over HTTP
	Reason  Reason // of a reply, where there is no status; says when to come back
	Again   bool   // the same report may be sent again
	Code    string // for programs
	Detail  string // for people
	Session string // Detail for a device whose session was let in; empty: the same
}

// Refusals maps errors to the answers of all transports. An error without a row
// gets the last one. An Error brings its own code and detail.
func Refusals() []Refusal {
	return []Refusal{
		{&Error{Reason: ReasonInvalid}, http.StatusBadRequest, ReasonInvalid, false, "", "", ""},
		{&Error{Reason: ReasonTooLarge}, http.StatusRequestEntityTooLarge, ReasonTooLarge, false, "", "", ""},
		{&Error{Reason: ReasonBusyServer}, http.StatusServiceUnavailable, ReasonBusyServer, true, "busy_server", "", ""},
		{ErrIncomplete, http.StatusRequestTimeout, ReasonInvalid, true, "body_incomplete", "body: broke off", ""},
		{ErrUnauthenticated, http.StatusUnauthorized, ReasonForbidden, true, "unauthenticated", "a valid bearer token is needed", ""},
		{ErrForbidden, http.StatusForbidden, ReasonForbidden, true, "forbidden", "this token may not do that", "unknown, blocked or revoked"},
		{ErrUnavailable, http.StatusServiceUnavailable, ReasonUnavailable, true, "unavailable", "the ledger cannot be reached; send again", ""},
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
