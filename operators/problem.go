package operators

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// maxProblem bounds what is read of an error's body.
const maxProblem = 64 << 10

// Problem is a refusal of the server (RFC 9457). Code is stable and meant for
// programs; Detail is for people.
type Problem struct { //nolint:errname // the word of RFC 9457, and its name in the contract
	Type          string         `json:"type,omitempty" doc:"Always about:blank: the code tells problems apart"`
	Title         string         `json:"title" doc:"The HTTP status in words"`
	Status        int            `json:"status"`
	Code          string         `json:"code" doc:"Stable name of the problem, for programs"`
	Detail        string         `json:"detail,omitempty" doc:"For people; names the field and the limit"`
	ReportAfterMS int64          `json:"report_after_ms,omitempty" doc:"To devices: do not come back sooner"`
	Errors        []ProblemField `json:"errors,omitempty" doc:"One entry for each bad field"`

	Method string        `json:"-"` // of the request
	Path   string        `json:"-"`
	After  time.Duration `json:"-"` // that the server asks to wait; 0: not said
}

// ProblemField is one bad field of a request.
type ProblemField struct {
	Field  string `json:"field" doc:"Where, e.g. body.capacity"`
	Detail string `json:"detail"`
}

// Error is the detail for people, with the code.
func (p *Problem) Error() string {
	if p.Code == "" {
		return fmt.Sprintf("%s %s: HTTP %d, and not in the words of a dispatcher", p.Method, p.Path, p.Status)
	}
	return fmt.Sprintf("%s (%s)", cmp.Or(p.Detail, http.StatusText(p.Status)), p.Code)
}

// Refused says that the server refused something with that status.
func Refused(err error, status int) bool {
	p, ok := errors.AsType[*Problem](err)
	return ok && p.Status == status
}

// transient says whether the same may well succeed when it is sent again.
func (p *Problem) transient() bool {
	switch p.Status {
	case http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout, http.StatusTooManyRequests:
		return true
	}
	return p.Code == "idempotency_key_in_use" || p.Code == "body_incomplete"
}

func problemOf(r *http.Response) *Problem {
	p := &Problem{}
	text, _ := io.ReadAll(io.LimitReader(r.Body, maxProblem))
	if json.Unmarshal(text, p) != nil {
		p = &Problem{}
	}
	p.Status, p.Method, p.Path = r.StatusCode, r.Request.Method, r.Request.URL.Path
	if seconds, err := strconv.Atoi(r.Header.Get("Retry-After")); err == nil && seconds > 0 {
		p.After = time.Duration(seconds) * time.Second
	}
	return p
}
