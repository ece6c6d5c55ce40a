package api

import (
	"errors"
	"net/http"
	"strings"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/operators/gate"
)

// guardRequests returns a handler that passes requests to mux. It refuses requests with an unacceptable path, query or header (see
// checkRequest). It also answers unknown paths, wrong methods and panics, so that every error response is a problem.
func (a *API) guardRequests(mux *http.ServeMux) http.Handler {
	return WithRecovery(a.options.Dispatcher.Panicked, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := checkRequest(r); p != nil {
			recordRefusal(r.Context(), a.options.Gate, p, gate.Refusal{EntryPoint: gate.API, From: a.options.Gate.ClientAddress(r), Detail: "two tokens"})
			p.write(w)
			return
		}
		mux := mux
		if mux == a.mux && wantsStream(r) {
			if _, streamed := a.streams.Handler(r); streamed != "" {
				mux = a.streams
			}
		}
		handler, pattern := mux.Handler(r)
		switch {
		case pattern != "" && mux == a.mux:
			a.limitTime(pattern, mux).ServeHTTP(w, r)
			return
		case pattern != "":
			mux.ServeHTTP(w, r)
			return
		}
		seen := NewBufferedResponse(http.Header{})
		handler.ServeHTTP(seen, r)
		if seen.Status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", seen.Header().Get("Allow"))
			newProblem(http.StatusMethodNotAllowed, codeMethodNotAllowed, "allowed methods: "+seen.Header().Get("Allow")).write(w)
			return
		}
		newProblem(http.StatusNotFound, codeNotFound, "no such path").write(w)
	}))
}

// WithRecovery returns a handler that serves requests with next. If next panics, it reports the panic to panicked and answers with a
// problem.
func WithRecovery(panicked rescue.PanicHandler, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := rescue.Call(func() error { next.ServeHTTP(w, r); return nil })
		p, ok := errors.AsType[*rescue.Panic](err)
		if !ok {
			return
		}
		if cause, ok := p.Cause.(error); ok && errors.Is(cause, http.ErrAbortHandler) { // net/http drops the connection after this panic
			panic(cause)
		}
		_ = panicked.Report("answering "+r.Method+" "+r.URL.Path, err) // the client gets the problem below
		newProblem(http.StatusInternalServerError, codeInternal, "internal error; its cause is in the log").write(w)
	})
}

// checkRequest returns the problem for a request with an unacceptable path, query or header. It returns nil if they are acceptable.
func checkRequest(r *http.Request) *Problem {
	switch {
	case !IsCanonical(r.URL.Path):
		return newProblem(http.StatusBadRequest, codeInvalidPath, "path: a segment must not be empty, . or ..")
	case !isStorable(r.URL.Path):
		return newProblem(http.StatusBadRequest, codeInvalidPath, "path: "+errUnstorableText.Error())
	case !isStorableQuery(r.URL.RawQuery):
		return newProblem(http.StatusBadRequest, codeInvalidRequest, "query: "+errUnstorableText.Error())
	case len(r.Header.Values("Authorization")) > 1: // a proxy may have checked another one of these headers
		return newProblem(http.StatusUnauthorized, codeUnauthenticated, "Authorization: more than one header")
	}
	return nil
}

// IsCanonical reports whether a path has no empty segment and no segment . or .. (routers redirect other paths).
func IsCanonical(path string) bool {
	if strings.Contains(path, "//") {
		return false
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return true
}
