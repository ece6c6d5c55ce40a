package api

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// probeTime bounds one readiness check.
const probeTime = time.Second

// checkOK is the state of a check that passed.
const checkOK = "ok"

// Check is one dependency that readiness looks at.
type Check struct {
	Name     string
	Required bool // not ready without it; else it only degrades
	Probe    func(context.Context) error
}

// health answers /healthz (the process lives; no dependency is asked) and
// /readyz (it can do its work).
type health struct {
	checks   []Check
	stopping atomic.Bool
}

func newHealth(checks []Check) *health { return &health{checks: checks} }

func (h *health) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeStatus(w, http.StatusOK, map[string]any{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", h.ready)
}

func (h *health) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), probeTime)
	defer cancel()
	states, missing := h.probe(ctx)
	status, word := http.StatusOK, "ready"
	if h.stopping.Load() {
		status, word = http.StatusServiceUnavailable, "stopping"
	} else if missing {
		status, word = http.StatusServiceUnavailable, "not ready"
	}
	writeStatus(w, status, map[string]any{"status": word, "checks": states})
}

// probe asks all dependencies at once.
func (h *health) probe(ctx context.Context) (states map[string]string, missing bool) {
	states = make(map[string]string, len(h.checks))
	var mu sync.Mutex
	var wait sync.WaitGroup
	for _, check := range h.checks {
		wait.Go(func() {
			err := check.Probe(ctx)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				states[check.Name] = checkOK
			case check.Required:
				states[check.Name], missing = "failed", true
			default:
				states[check.Name] = "degraded"
			}
		})
	}
	wait.Wait()
	return states, missing
}

func writeStatus(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// Dependencies says of each how it is: ok, degraded or failed.
func (a *API) Dependencies(ctx context.Context) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	states, _ := a.health.probe(ctx)
	return states
}
