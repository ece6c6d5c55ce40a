package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// server is one HTTP listener at work.
type server struct {
	listener net.Listener
	http     *http.Server
	handler  atomic.Pointer[http.Handler]
	underway atomic.Int64 // requests that are not answered yet
	begin    sync.Once
	failed   chan<- error // tells when it ended by itself; has room for that
}

// newServer sets every limit: net/http has none by default.
func newServer(l net.Listener, handler http.Handler, failed chan<- error, log *slog.Logger) *server {
	s := &server{listener: l, failed: failed}
	s.use(handler)
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second, // operations with large bodies set their own
		WriteTimeout:      90 * time.Second,
		IdleTimeout:       75 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return s
}

// use lets another handler answer from now on.
func (s *server) use(handler http.Handler) { s.handler.Store(&handler) }

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	s.underway.Add(1)
	defer s.underway.Add(-1)
	(*s.handler.Load()).ServeHTTP(w, r)
}

// start serves, unless it does already.
func (s *server) start() {
	s.begin.Do(func() {
		rescue.Async(func() error {
			err := rescue.Call(func() error { return s.http.Serve(s.listener) })
			if !errors.Is(err, http.ErrServerClosed) {
				s.failed <- fmt.Errorf("serving on %s: %w", s.listener.Addr(), err)
			}
			return nil
		})
	})
}

// stop answers what was asked and closes the listener, also one that never
// served. Requests without an answer when ctx ends are cut off.
func (s *server) stop(ctx context.Context) error {
	defer s.listener.Close()
	if err := s.http.Shutdown(ctx); err != nil {
		return fmt.Errorf("closing %s with %d requests unanswered: %w", s.listener.Addr(), s.underway.Load(), errors.Join(err, s.http.Close()))
	}
	return nil
}
