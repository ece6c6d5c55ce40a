package devices

import (
	"cmp"
	"errors"
	"net/http"
	"time"
)

// Errors that refuse a whole report. An error of the type *Error refuses the whole report, too.
var (
	ErrUnauthenticated = errors.New("unknown credential")           // or the report has no credential at all
	ErrForbidden       = errors.New("not allowed for this device")  // the caller may not act for this device
	ErrLockedOut       = errors.New("too many wrong credentials")   // of this device, from the address of the sender
	ErrIncomplete      = errors.New("the body is incomplete")       // the network cut the body; it is no fault of the device
	ErrUnavailable     = errors.New("the ledger cannot be reached") // no result of the report was acknowledged
	// ErrRegistrationRate is returned for an unknown device if too many unknown devices were registered just before.
	ErrRegistrationRate = errors.New("too many unknown devices at once")
)

// ReportRefusal is the answer to a report that is refused as a whole.
type ReportRefusal struct {
	Err           error  // the error that this row answers
	Status        int    // HTTP status
	Reason        Reason // reason of the reply on a transport without statuses
	DelayAs       Reason // the reason by which the time of the next report is computed (Handler.DelayAfterRefusal)
	MayResend     bool   // the device may send the same report again
	Code          string // for programs
	Detail        string // for people
	SessionDetail string // Detail for a device with an open session. If it is empty, Detail is used.
}

// Refusals returns the table of the answers to errors, for all transports. The answer to an error is the first row that matches the error.
// If no row matches, the answer is the last row. If the error is an *Error, its code and detail replace the code and detail of the row. Package
// api answers operators with the same rows (asProblem).
func Refusals() []ReportRefusal {
	return []ReportRefusal{
		{&Error{Reason: ReasonInvalid}, http.StatusBadRequest, ReasonInvalid, ReasonInvalid, false, "", "", ""},
		{&Error{Reason: ReasonTooLarge}, http.StatusRequestEntityTooLarge, ReasonTooLarge, ReasonTooLarge, false, "", "", ""},
		{&Error{Reason: ReasonBusyServer}, http.StatusServiceUnavailable, ReasonBusyServer, ReasonBusyServer, true, "busy_server", "", ""},
		{ErrIncomplete, http.StatusRequestTimeout, ReasonInvalid, ReasonInvalid, true, "body_incomplete", "body: incomplete", ""},
		{ErrUnauthenticated, http.StatusUnauthorized, ReasonForbidden, ReasonForbidden, true, "unauthenticated", "a valid bearer token is required", ""},
		{ErrForbidden, http.StatusForbidden, ReasonForbidden, ReasonForbidden, true, "forbidden", "this token may not do that", "unknown, blocked or revoked"},
		{ErrRegistrationRate, http.StatusServiceUnavailable, ReasonBusyServer, ReasonNone, true, "registration_rate", "too many unknown devices at once; send again", ""},
		{ErrLockedOut, http.StatusTooManyRequests, ReasonForbidden, ReasonForbidden, true, "locked_out", "too many wrong tokens of this device from this address: send again after Retry-After", ""},
		{ErrUnavailable, http.StatusServiceUnavailable, ReasonUnavailable, ReasonUnavailable, true, "unavailable", "the ledger cannot be reached; send again", ""},
	}
}

// RefusalOf returns the row of Refusals for err.
func RefusalOf(err error) ReportRefusal {
	rows := Refusals()
	for _, r := range rows {
		if !errors.Is(err, r.Err) {
			continue
		}
		if reportErr, ok := errors.AsType[*Error](err); ok {
			r.Code, r.Detail = reportErr.Code, reportErr.Detail
		}
		return r
	}
	return rows[len(rows)-1]
}

// Reply returns the refusal as the Reply to the report with this id, for a transport without statuses. The device should report again when
// the duration `after` has passed.
func (r ReportRefusal) Reply(reportID string, after time.Duration) Reply {
	return Reply{Re: reportID, Reason: r.Reason, Code: r.Code, Detail: cmp.Or(r.SessionDetail, r.Detail), ReportAfterMS: after.Milliseconds()}
}
