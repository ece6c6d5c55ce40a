package api

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

// AnswerTimeout is the time limit for an explanation and for a page of the dashboard. The documented limit is 2 s,
// even if Redis or Postgres does not answer. The difference of 0.5 s is for a busy machine.
const AnswerTimeout = 1500 * time.Millisecond

// WithTimeLimit returns a handler that serves requests with next. If next has not answered within limit, onTimeout answers instead,
// and anything that next writes later is discarded. WithTimeLimit does not wait for next to return, because a database driver may
// wait longer than its context allows. next must not stream: its response is held in memory.
func WithTimeLimit(limit time.Duration, next http.Handler, onTimeout http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		response := NewBufferedResponse(w.Header().Clone())
		err := rescue.CallWithin(ctx, func() error { next.ServeHTTP(response, r.WithContext(ctx)); return nil })
		switch {
		case ctx.Err() != nil:
			onTimeout(w, r)
		case err != nil: // next panicked, although it must answer its own panics
			panic(http.ErrAbortHandler)
		default:
			maps.Copy(w.Header(), response.Header())
			w.WriteHeader(response.Status)
			_, _ = w.Write(response.Body.Bytes())
		}
	})
}

// timeLimitedPatterns lists the operations that must answer within the time limit, even if Postgres or Redis does not answer.
func timeLimitedPatterns() (patterns []string) {
	return []string{
		"GET /v1/pools/{pool}/waiting", "GET /v1/batches/{id}/waiting", "GET /v1/pools/{pool}/waiting/tasks", "GET /v1/batches/{id}/waiting/tasks",
		"GET /v1/tasks/{id}/why", "GET /v1/devices/{id}/why",
	}
}

// limitTime applies the time limit to next if pattern is in timeLimitedPatterns. Otherwise it returns next unchanged.
func (a *API) limitTime(pattern string, next http.Handler) http.Handler {
	if !slices.Contains(timeLimitedPatterns(), pattern) {
		return next
	}
	return WithTimeLimit(a.options.AnswerTimeout, WithRecovery(a.options.Dispatcher.Panicked, next), func(w http.ResponseWriter, r *http.Request) {
		a.timeoutProblem(r.Context()).write(w)
	})
}

// timeoutProblem returns the problem for an answer that was not ready in time. It names the ledger, because no
// part of an answer waits for Redis until the time limit.
func (a *API) timeoutProblem(ctx context.Context) *Problem {
	facts := []string{fmt.Sprintf("the ledger did not answer within %s; send again", a.options.AnswerTimeout)}
	now, stop := context.WithCancel(ctx)
	stop() // Dependencies starts its checks and does not wait for them
	for _, d := range a.Dependencies(now) {
		if d.IsUnhealthy() {
			facts = append(facts, fmt.Sprintf("%s: %s since %s", d.Name, d.StateText(), decision.FormatTime(d.Since)))
		}
	}
	return unavailableProblem(serverLedger, strings.Join(facts, "; "))
}

// StateText returns the state of a dependency for a list: ok, slow, does not answer, or the reason of a failure.
func (d Dependency) StateText() string {
	switch {
	case d.Slow:
		return "slow"
	case d.Reason != "":
		return d.Reason
	case d.IsUnhealthy():
		return "does not answer"
	}
	return "ok"
}

// The servers that a problem names.
const (
	serverLedger = "postgres" // SQLite in dev
	serverRedis  = "redis"
)
