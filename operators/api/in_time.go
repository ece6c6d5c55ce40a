package api

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// AnswerTime is the time limit for making a page or an explanation. The promise to the reader is 2 s,
// whatever Redis and Postgres do; the remaining 0.5 s is for a busy machine.
const AnswerTime = 1500 * time.Millisecond

// InTime returns a handler that serves requests with next. If next has not answered within limit, late answers instead,
// and anything that next writes later is discarded. InTime does not wait for next to return, because a database driver may
// wait longer than its context allows. next must not stream: its response is held in memory.
func InTime(limit time.Duration, next http.Handler, late http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		made := &held{header: w.Header().Clone(), status: http.StatusOK}
		err := rescue.Within(ctx, func() error { next.ServeHTTP(made, r.WithContext(ctx)); return nil })
		switch {
		case ctx.Err() != nil:
			late(w, r)
		case err != nil: // next must answer its own panics
			panic(http.ErrAbortHandler)
		default:
			maps.Copy(w.Header(), made.header)
			w.WriteHeader(made.status)
			_, _ = w.Write(made.body.Bytes())
		}
	})
}

// held is a response that has not been sent yet.
type held struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header returns the headers of the response.
func (h *held) Header() http.Header { return h.header }

// WriteHeader stores the status.
func (h *held) WriteHeader(status int) { h.status = status }

// Write stores a part of the body.
func (h *held) Write(b []byte) (int, error) { return h.body.Write(b) }

// explanations lists the operations that must answer within the time limit, even if Postgres or Redis does not answer.
func explanations() []string {
	return []string{
		"GET /v1/pools/{pool}/waiting", "GET /v1/batches/{id}/waiting", "GET /v1/pools/{pool}/waiting/tasks", "GET /v1/batches/{id}/waiting/tasks",
		"GET /v1/tasks/{id}/why",
	}
}

// inTime applies the time limit to next if the pattern is an explanation.
func (a *API) inTime(pattern string, next http.Handler) http.Handler {
	if !slices.Contains(explanations(), pattern) {
		return next
	}
	return InTime(a.options.AnswerTime, Rescued(a.options.Dispatcher.Panicked, next), func(w http.ResponseWriter, r *http.Request) {
		a.late(r.Context()).write(w)
	})
}

// late returns the problem for an answer that was not ready in time. It names the ledger, because no
// part of an answer waits for Redis until the time limit.
func (a *API) late(ctx context.Context) *Problem {
	facts := []string{fmt.Sprintf("the ledger did not answer within %s; send again", a.options.AnswerTime)}
	now, stop := context.WithCancel(ctx)
	stop() // Dependencies starts its checks and does not wait for them
	for _, d := range a.Dependencies(now) {
		if d.Bad() {
			facts = append(facts, fmt.Sprintf("%s: %s since %s", d.Name, d.Word(), d.Since.UTC().Format(time.RFC3339)))
		}
	}
	return unavailable(serverLedger, strings.Join(facts, "; "))
}

// Word returns the state of a dependency for a list: ok, slow, does not answer, or the reason of a failure.
func (d Dependency) Word() string {
	switch {
	case d.Slow:
		return "slow"
	case d.Reason != "":
		return d.Reason
	case d.Bad():
		return "does not answer"
	}
	return "ok"
}

// The servers that a problem names.
const (
	serverLedger = "postgres" // SQLite in dev
	serverRedis  = "redis"
)
