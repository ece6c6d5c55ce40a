package operators

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// maxProblem is the maximum number of bytes that the client reads of an error response.
const maxProblem = 64 << 10

// Problem is a refusal by the server (RFC 9457). Code is stable and meant for programs. Detail is for people.
type Problem struct { //nolint:errname // the word of RFC 9457, and its name in the contract
	Type          string         `json:"type,omitempty" doc:"Always about:blank; the code identifies the problem"`
	Title         string         `json:"title" doc:"The HTTP status in words"`
	Status        int            `json:"status"`
	Code          string         `json:"code" doc:"Stable name of the problem, for programs"`
	Detail        string         `json:"detail,omitempty" doc:"For people; names the field and the limit"`
	ReportAfterMS int64          `json:"report_after_ms,omitempty" doc:"Only to devices: minimum wait before the next report"`
	Errors        []ProblemField `json:"errors,omitempty" doc:"One entry for each bad field"`
	Server        string         `json:"server,omitempty" doc:"Only with unavailable: the server that does not answer in time: postgres (in dev: SQLite) or redis"`

	LeaseRefusal        // set for the codes no_slot and lease_lost
	Cancel       string `json:"cancel,omitempty" doc:"Only with lease_lost: the holder still has the slot and must give it back, for this reason"`

	Method     string        `json:"-"` // method of the refused request
	Path       string        `json:"-"`
	RetryAfter time.Duration `json:"-"` // the pause that the server asks for; 0 means that it asks for none
}

// ProblemField is one bad field of a request.
type ProblemField struct {
	Field  string `json:"field" doc:"Path of the field, e.g. body.capacity"`
	Detail string `json:"detail"`
}

// Error returns the detail for people, followed by the code.
func (p *Problem) Error() string {
	if p.Code == "" {
		return fmt.Sprintf("%s %s: HTTP %d, and the response is not from a dispatcher", p.Method, p.Path, p.Status)
	}
	return fmt.Sprintf("%s (%s)", cmp.Or(p.Detail, http.StatusText(p.Status)), p.Code)
}

// HasStatus reports whether err is a refusal by the server with this HTTP status.
func HasStatus(err error, status int) bool {
	p, ok := errors.AsType[*Problem](err)
	return ok && p.Status == status
}

// isTransient reports whether the same request may succeed if it is sent again.
func (p *Problem) isTransient() bool {
	switch p.Status {
	case http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout, http.StatusTooManyRequests:
		return true
	}
	return p.Code == "idempotency_key_in_use" || p.Code == "body_incomplete"
}

// readProblem reads the problem in a response with an error status.
func readProblem(response *http.Response) *Problem {
	p := &Problem{}
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxProblem))
	if json.Unmarshal(text, p) != nil {
		p = &Problem{}
	}
	p.Status, p.Method, p.Path = response.StatusCode, response.Request.Method, response.Request.URL.Path
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 {
		p.RetryAfter = time.Duration(seconds) * time.Second
	}
	return p
}

// The pause before a request is sent again doubles each time, from firstPause up to longestPause.
const (
	defaultTries = 6
	firstPause   = 500 * time.Millisecond
	longestPause = 8 * time.Second
)

// LostError is the error of a request without a complete response.
type LostError struct {
	URL      string // address of the server
	Err      error
	Reached  bool // there was a connection, so the server may have executed the request
	ReadOnly bool // the request changes nothing
}

// Error returns the address of the server and the cause.
func (e *LostError) Error() string { return "no answer from " + e.URL + ": " + e.Err.Error() }

// Unwrap returns Err, the cause of the loss.
func (e *LostError) Unwrap() error { return e.Err }

// partialBodyError is the error of a download that ended after a part of the body was written.
type partialBodyError struct{ error }

// sendWithRetries calls send, which sends request once, until the response is final or the maximum number of tries is reached. It sends a
// request again only if the request is a GET, has an Idempotency-Key, or has the field Idempotent set.
func (c *Client) sendWithRetries(ctx context.Context, request Request, send func() error) error {
	tries := c.config.MaxTries
	if tries == 0 {
		tries = defaultTries
	}
	if request.NoRetry || request.Method != http.MethodGet && request.Key == "" && !request.Idempotent {
		tries = 1
	}
	pause := firstPause
	for n := 1; ; n++ {
		err := send()
		wait, mayRetry := retryPause(err, pause, n)
		if !mayRetry || n >= tries {
			return err
		}
		if c.config.OnRetry != nil {
			c.config.OnRetry(err, wait)
		}
		if err := Sleep(ctx, wait); err != nil {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// retryPause returns the pause after a try that ended with lastErr. triesSoFar is the number of tries, including this one. The pause is
// duePause, or longer if the server asks for a longer pause. mayRetry is false if there must be no next try. If the first try reached no
// server, there is no next try. If a later try reaches no server, there is a next one, because the server may be restarting.
func retryPause(lastErr error, duePause time.Duration, triesSoFar int) (wait time.Duration, mayRetry bool) {
	if lost, ok := errors.AsType[*LostError](lastErr); ok {
		return duePause, lost.Reached || triesSoFar > 1
	}
	if p, ok := errors.AsType[*Problem](lastErr); ok && p.isTransient() {
		return min(max(duePause, p.RetryAfter), longestPause), true
	}
	return 0, false
}

// IsResponseLost reports whether err means that the server may have executed the request although a part of its response did not arrive.
func IsResponseLost(err error) bool {
	if _, ok := errors.AsType[*partialBodyError](err); ok {
		return true
	}
	lost, ok := errors.AsType[*LostError](err)
	return ok && lost.Reached
}

// IsTransient reports whether a read that failed with err may succeed later.
func IsTransient(err error) bool {
	if _, ok := errors.AsType[*LostError](err); ok {
		return true
	}
	p, ok := errors.AsType[*Problem](err)
	return ok && p.isTransient()
}

// Sleep waits for this duration. If ctx ends earlier, it returns the error of ctx.
func Sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
