package api_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators/api"
)

// A handler does not answer in time. The function onTimeout answers instead, and anything that the handler writes
// later is discarded.
func TestALateResponseIsReplaced(t *testing.T) {
	t.Parallel()
	written, release := make(chan struct{}), make(chan struct{})
	defer func() { close(release); <-written }()
	w := httptest.NewRecorder()
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-release
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "late")
		close(written)
	})
	onTimeout := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	api.WithTimeLimit(time.Millisecond, next, onTimeout).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusServiceUnavailable || w.Body.Len() > 0 {
		t.Errorf("answered %d %q, want %d without a body", w.Code, w.Body, http.StatusServiceUnavailable)
	}
}

// A handler answers in time. Its own status, headers and body are sent.
func TestAResponseInTimeIsPassedOn(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Test", "yes")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "in time")
	})
	api.WithTimeLimit(time.Minute, next, nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusTeapot || w.Body.String() != "in time" || w.Header().Get("X-Test") != "yes" {
		t.Errorf("answered %d %q %v", w.Code, w.Body, w.Header())
	}
}
