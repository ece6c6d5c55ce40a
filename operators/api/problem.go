package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// retryUnavailable is the Retry-After of a 503 for operators, and the mean Retry-After of StartingHandler. For
// devices, the dispatcher computes the Retry-After.
const retryUnavailable = 3 * time.Second

// Problem is the body of every error, with a cause that is only logged.
type Problem struct { //nolint:errname // the word of RFC 9457
	operators.Problem

	cause error
}

// newProblem makes every problem of this package. convertHumaError changes the code afterwards. The refusals of reports and of
// StartingHandler are made by devices/http.WriteRefusal.
func newProblem(status int, code, detail string) *Problem {
	return &Problem{Problem: operators.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: detail}}
}

// invalidProblem returns the problem for an invalid value. Its text is made of format and args as by fmt.Sprintf, and must name the field.
func invalidProblem(format string, args ...any) *Problem {
	return newProblem(http.StatusUnprocessableEntity, codeInvalidField, fmt.Sprintf(format, args...))
}

// Error returns the code and the detail, for logs.
func (p *Problem) Error() string { return p.Code + ": " + p.Detail }

// Unwrap returns the error that caused the problem, which is only logged. It is nil if there is none.
func (p *Problem) Unwrap() error { return p.cause }

// GetStatus returns the HTTP status. Because of this method, huma sends the problem without changes.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns the media type of RFC 9457.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// withCause sets the cause of the problem, which is only logged, and returns the problem.
func (p *Problem) withCause(cause error) *Problem {
	p.cause = cause
	return p
}

// asProblem converts err to a problem. If a report of a device can get the same error, it uses the table of package devices
// (devices.RefusalOf, whose reason for an error without a row is ReasonUnavailable).
func asProblem(err error) *Problem {
	var known *Problem
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, store.ErrUnknownDevice):
		return newProblem(http.StatusUnprocessableEntity, codeUnknownDevice, err.Error())
	case errors.As(err, &tooLarge):
		return newProblem(http.StatusRequestEntityTooLarge, codeBodyTooLarge, "body: at most "+strconv.FormatInt(tooLarge.Limit, 10)+" bytes")
	}
	if r := devices.RefusalOf(err); r.Reason != devices.ReasonUnavailable {
		return newProblem(r.Status, r.Code, r.Detail)
	}
	return asDependencyProblem(err)
}

// asDependencyProblem maps the errors of the ledger, the MQTT broker and Redis. It treats an unknown error as a ledger that cannot be
// reached.
func asDependencyProblem(err error) *Problem {
	switch {
	case errors.Is(err, credentials.ErrBroker) && !errors.Is(err, devices.ErrUnavailable):
		return newProblem(http.StatusServiceUnavailable, codeBrokerUnavailable, "the account of a device cannot be changed at the MQTT broker; nothing was changed, send again").withCause(err)
	case errors.Is(err, seen.ErrUnavailable):
		return unavailableProblem(serverRedis, "cannot read when devices were last seen: Redis cannot be reached; send again").withCause(err)
	case errors.Is(err, limits.ErrUnavailable):
		return unavailableProblem(serverRedis, "the counts of limits cannot be read: Redis cannot be reached; send again").withCause(err)
	case errors.Is(err, store.ErrDiskFull):
		return unavailableProblem(serverLedger, store.ErrDiskFull.Error()+", and nothing was changed: free space on it, then send again").withCause(err)
	case errors.Is(err, store.ErrOutcomeUnknown) && !errors.Is(err, devices.ErrUnavailable):
		return newProblem(http.StatusServiceUnavailable, codeOutcomeUnknown, "outcome unknown: check the state before you send again").withCause(err)
	}
	for _, r := range ledgerErrorMappings() {
		if errors.Is(err, r.target) {
			return newProblem(r.status, r.code, r.detail).withCause(err)
		}
	}
	return unavailableProblem(serverLedger, "the ledger cannot be reached; send again").withCause(err)
}

// unavailableProblem returns the problem for a server that does not answer. server is its name.
func unavailableProblem(server, detail string) *Problem {
	p := newProblem(http.StatusServiceUnavailable, codeUnavailable, detail)
	p.Server = server
	return p
}

// ledgerErrorMapping maps target, an error of the ledger, to a problem.
type ledgerErrorMapping struct {
	target error
	status int
	code   string
	detail string
}

// ledgerErrorMappings returns the mappings of the errors with which the ledger refuses an operation. If a name or number in the path does
// not exist, the error is store.ErrNotFound for every kind of object. If the field pool of a body names no pool, the error is
// store.ErrUnknownPool. slotNotHeldProblem and leaseProblem have texts of their own for a pool that does not exist.
func ledgerErrorMappings() (mappings []ledgerErrorMapping) {
	return []ledgerErrorMapping{
		{store.ErrOpenTasks, http.StatusConflict, codeOpenTasks, "the device has open tasks; cancel=true cancels them"},
		{store.ErrUnknownPool, http.StatusUnprocessableEntity, codeUnknownPool, "pool: no such pool"},
		{store.ErrUnknownProfile, http.StatusUnprocessableEntity, codeUnknownProfile, "profile: no such profile"},
		{store.ErrInUse, http.StatusConflict, codeInUse, "devices have this profile: give them another one, or none; GET /v1/devices?profile= lists them"},
		{store.ErrNotFound, http.StatusNotFound, codeNotFound, "no entry has this name or number"},
		{store.ErrNotRetriable, http.StatusConflict, codeNotRetriable, "the task succeeded or is the lease of a caller, its batch was cancelled, or its time is over: past a not_after, or never started within max_wait_ms"},
		{store.ErrNoTasks, http.StatusUnprocessableEntity, codeNoTasks, "no tasks: the list is empty, or no device is selected"},
		{store.ErrAccountConflict, http.StatusServiceUnavailable, codeBrokerUnavailable, "another request creates or deletes the account of one of these devices at the MQTT broker; nothing was changed, send again"},
		{store.ErrInProgress, http.StatusConflict, codeKeyInUse, "Idempotency-Key: the first request with this key is still in progress"},
		{store.ErrKeyReused, http.StatusUnprocessableEntity, codeKeyReused, "Idempotency-Key: used by another request within the last 24 hours"},
		{store.ErrExists, http.StatusConflict, codeAlreadyExists, "the name already exists"},
	}
}

// write sends a problem for a request that no huma operation handles.
func (p *Problem) write(w http.ResponseWriter) {
	body, _ := json.Marshal(p) // a struct of plain fields always marshals
	p.setHeaders(w.Header().Set)
	w.Header().Set("Content-Type", p.ContentType(""))
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}

// setHeaders calls set with each header that the problem needs, such as Retry-After.
func (p *Problem) setHeaders(set func(key, value string)) {
	switch p.Status {
	case http.StatusServiceUnavailable:
		set("Retry-After", strconv.Itoa(int(retryUnavailable.Seconds())))
	case http.StatusConflict:
		if p.RetryAfter > 0 {
			set("Retry-After", strconv.Itoa(int(math.Ceil(p.RetryAfter.Seconds()))))
		}
	case http.StatusTooManyRequests:
		set("Retry-After", strconv.Itoa(int(math.Ceil(p.RetryAfter.Seconds()))))
	case http.StatusUnauthorized:
		set("WWW-Authenticate", `Bearer realm="dispatcher"`)
	}
}

// problemContext lets a problem set its own status: huma answers every invalid body with 422, but the contract requires
// 400 for unknown fields.
type problemContext struct {
	humaContext
	status int
}

// humaContext is huma.Context under another name, because a field named Context would hide the method Context.
type humaContext huma.Context

// Unwrap returns the huma context of the request.
func (c *problemContext) Unwrap() huma.Context { return c.humaContext }

// SetStatus is called by huma just before it writes. It sets the status of the problem, if there is one.
func (c *problemContext) SetStatus(status int) {
	if c.status != 0 {
		status = c.status
	}
	c.humaContext.SetStatus(status)
}

// convertErrorBody converts body to a problem if it is one of huma's own errors. It returns any other body unchanged.
func convertErrorBody(ctx huma.Context, _ string, body any) (converted any, err error) {
	context, _ := ctx.(*problemContext)
	var p *Problem
	switch e := body.(type) {
	case *Problem:
		p = e
	case *huma.ErrorModel:
		if context != nil {
			if replaced, ok := context.humaContext.(*bodyContext); ok {
				replaced.setFieldLocations(e)
			}
		}
		p = convertHumaError(e)
	default:
		return body, nil
	}
	if context != nil {
		context.status = p.Status
	}
	p.setHeaders(ctx.SetHeader)
	return p, nil
}

// unexpectedProperty is huma's message for a field that does not exist.
const unexpectedProperty = "unexpected property"

// maxListedErrors is the maximum number of bad fields that a problem lists.
const maxListedErrors = 100

// convertHumaError converts an error of huma, such as an invalid body, to a problem.
func convertHumaError(humaError *huma.ErrorModel) *Problem {
	p := newProblem(humaError.Status, codeInvalidRequest, humaError.Detail)
	switch humaError.Status {
	case http.StatusUnprocessableEntity:
		p.Code = codeInvalidField
	case http.StatusRequestEntityTooLarge:
		p.Code = codeBodyTooLarge
	case http.StatusUnsupportedMediaType:
		p.Code = codeUnsupportedMedia
	case http.StatusInternalServerError:
		p.Code, p.Detail = codeInternal, "internal error; its cause is in the log"
	}
	for i, detail := range humaError.Errors {
		if strings.HasSuffix(detail.Message, unexpectedProperty) || detail.Message == "unknown query parameter" {
			p.Status, p.Title, p.Code = http.StatusBadRequest, http.StatusText(http.StatusBadRequest), codeUnknownField
		}
		if i < maxListedErrors {
			p.Errors = append(p.Errors, operators.ProblemField{Field: detail.Location, Detail: writeWithoutExponent(detail.Message)})
		}
	}
	if len(p.Errors) > 0 {
		p.Detail = p.summary()
	}
	if more := len(humaError.Errors) - maxListedErrors; more > 0 {
		p.Detail += fmt.Sprintf("; and %d more", more)
	}
	return p
}

// writeWithoutExponent rewrites the number at the end of huma's message without an exponent: 86400000, not 8.64e+07.
func writeWithoutExponent(message string) string {
	space := strings.LastIndexByte(message, ' ') + 1
	if n, err := strconv.ParseFloat(message[space:], 64); err == nil {
		return message[:space] + strconv.FormatFloat(n, 'f', -1, 64)
	}
	return message
}

// summary returns the bad fields in one line, for clients that show only the detail.
func (p *Problem) summary() string {
	parts := make([]string, len(p.Errors))
	for i, e := range p.Errors {
		parts[i] = strings.TrimPrefix(e.Field, "body.") + ": " + e.Detail
	}
	return strings.Join(parts, "; ")
}

func isUnknownFieldError(err error) bool {
	return strings.Contains(err.Error(), "json: unknown field") || strings.HasSuffix(err.Error(), unexpectedProperty)
}
