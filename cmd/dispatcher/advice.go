package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"path"
	"strings"

	"github.com/fleetslots/dispatcher/internal/localdev"
	"github.com/fleetslots/dispatcher/operators"
)

// advisedError is an error with a text about what the user can do next.
type advisedError struct {
	error
	advice string
}

func (e advisedError) Unwrap() error { return e.error }

// adviceFor returns a text about what the user can do after err, the error of a command. The text is empty if err already
// contains the advice, or if there is no advice.
func adviceFor(err error) (advice string) {
	if advised, ok := errors.AsType[advisedError](err); ok {
		return advised.advice
	}
	if p, ok := errors.AsType[*operators.Problem](err); ok {
		return adviceAfterProblem(p)
	}
	if lost, ok := errors.AsType[*operators.LostError](err); ok {
		return adviceAfterLoss(lost)
	}
	if errors.Is(err, context.Canceled) {
		return "interrupted: the request may have been carried out"
	}
	_, stale := errors.AsType[*localdev.StaleError](err)
	if stale || errors.Is(err, localdev.ErrNoServer) {
		return "start one with `dispatcher dev`, or set DISPATCHER_URL and DISPATCHER_TOKEN"
	}
	return ""
}

// adviceAfterLoss returns a text about what the user can do after a request got no answer. lost is the error of this
// request.
func adviceAfterLoss(lost *operators.LostError) string {
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](lost)
	switch {
	case errors.Is(lost, http.ErrSchemeMismatch):
		return "that port speaks HTTP without TLS: write http:// instead of https://"
	case untrusted:
		return "the certificate of that server is not trusted here: check the URL; SSL_CERT_FILE can name another list of certificate authorities"
	case lost.Reached && lost.ReadOnly:
		return "nothing was changed: try again in a moment"
	case lost.Reached:
		return "the request may have been carried out: check before you repeat it"
	}
	return "start one with `dispatcher dev`, or set DISPATCHER_URL to a running dispatcher"
}

// adviceAfterProblem returns a text about what the user can do after the server refused a request. problem is this
// refusal. The text is empty if there is no advice.
func adviceAfterProblem(problem *operators.Problem) string {
	switch problem.Status {
	case http.StatusUnauthorized:
		return "set DISPATCHER_TOKEN to an operator's token; an admin creates one with `dispatcher tokens create --name you --role operator`"
	case http.StatusNotFound:
		if before, _, isSlotPath := strings.Cut(problem.Path, "/slots/"); isSlotPath {
			return "see the holders: dispatcher pools slots " + path.Base(before)
		}
		if objectKind := objectKindOfAPIPath(problem.Path); objectKind != "" {
			return "to list them: dispatcher " + objectKind + " list"
		}
	case http.StatusServiceUnavailable:
		return "try again in a moment; `dispatcher healthcheck` says whether the server is ready"
	}
	return ""
}

// objectKindOfAPIPath returns the kind of object in the path of an API request, for example pools.
func objectKindOfAPIPath(path string) (kind string) {
	_, rest, _ := strings.Cut(path, "/v1/") // a proxy can add a path in front
	kind, _, _ = strings.Cut(rest, "/")
	return kind
}
