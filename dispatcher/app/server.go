package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"
)

// server is one HTTP listener at work.
type server struct {
	listener net.Listener
	http     *http.Server
	failed   chan<- error // tells when it ended by itself; has room for that
}

// newServer sets every limit: net/http has none by default.
func newServer(l net.Listener, handler http.Handler, failed chan<- error, log *slog.Logger) *server {
	return &server{
		listener: l,
		failed:   failed,
		http: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       15 * time.Second, // operations with large bodies set their own
			WriteTimeout:      90 * time.Second,
			IdleTimeout:       75 * time.Second,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
	}
}

func (s *server) start() {
	go func() {
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("serving on %s: %w", s.listener.Addr(), err)
		}
	}()
}

// stop answers what was asked and closes the listener, also one that never
// served. What is not answered when ctx ends is cut off.
func (s *server) stop(ctx context.Context) error {
	defer s.listener.Close()
	if err := s.http.Shutdown(ctx); err != nil {
		return fmt.Errorf("closing %s: %w", s.listener.Addr(), errors.Join(err, s.http.Close()))
	}
	return nil
}

// cleanup closes what was opened, in reverse order.
type cleanup struct{ steps []cleanupStep }

type cleanupStep struct {
	name  string
	close func() error
}

func (c *cleanup) add(name string, close func() error) {
	c.steps = append(c.steps, cleanupStep{name, close})
}

// run closes everything once; what fails does not keep the rest open.
func (c *cleanup) run() error {
	var errs []error
	for _, step := range slices.Backward(c.steps) {
		if err := step.close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, fmt.Errorf("closing %s: %w", step.name, err))
		}
	}
	c.steps = nil
	return errors.Join(errs...)
}
