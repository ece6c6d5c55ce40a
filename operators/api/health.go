package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/internal/reading"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

const (
	probeTimeout = time.Second            // time limit of one readiness check
	maxProbeAge  = 500 * time.Millisecond // maximum age of a probe that the dashboard and the metrics show

	// If a check takes slowAnswer or longer, its server is called slow. A check of a healthy server takes a few
	// milliseconds.
	slowAnswer = 200 * time.Millisecond
)

// UnservedError is the error of a Redis that does not serve all pools.
type UnservedError struct {
	ServedPools, KnownPools int // numbers of pools
	Err                     error
}

// Error returns how many pools are served, and why some are not.
func (e *UnservedError) Error() string {
	return fmt.Sprintf("%d of %d pools are served: %v", e.ServedPools, e.KnownPools, e.Err)
}

// Unwrap returns Err, the reason why some pools are not served.
func (e *UnservedError) Unwrap() error { return e.Err }

const checkOK = "ok"

// Check is the check of one server, as a part of readiness.
type Check struct {
	Name     string
	Required bool   // if a required check fails, the replica is not ready; if another check fails, its state is degraded
	Address  string // host and port of the server, without credentials; empty if there are none
	Probe    func(context.Context) error
}

// A probe returns ErrOff if its server is not used. The check then counts as passed.
var ErrOff = errors.New("not used")

// health answers two paths. /healthz shows that the process is alive and checks no server. /readyz shows whether
// the process can do its work.
type health struct {
	checks   []Check
	panicked rescue.PanicHandler
	now      func() time.Time
	stopping atomic.Bool
	shared   *reading.SharedRead[probeResult] // probe that the metrics and all pages of the dashboard share

	mu           sync.Mutex
	dependencies map[string]Dependency // state of each dependency at its latest probe
}

// newHealth returns the health checks of this process. now is used only for elapsed time.
func newHealth(checks []Check, panicked rescue.PanicHandler, now func() time.Time) *health {
	h := &health{checks: checks, panicked: panicked, now: now, dependencies: make(map[string]Dependency)}
	h.shared = reading.New(maxProbeAge, probeTimeout, now, func(ctx context.Context) (probeResult, error) { return h.runChecks(ctx), nil })
	return h
}

// Dependency is the state of one server that this replica needs.
type Dependency struct {
	Name  string
	State string    // ok, degraded or failed
	Slow  bool      // the server answers, but takes slowAnswer or longer
	Since time.Time // time when it was first found slow or not ok; the zero time means that it is neither

	Reason string // cause of the failure; empty means unknown, or no failure

	Off     bool   // the server is not used
	Address string // host and port, as in Check
	Error   string // error of the latest probe; empty if it passed
}

// IsUnhealthy reports whether the dependency does not answer, or answers slowly.
func (d Dependency) IsUnhealthy() bool { return !d.Since.IsZero() }

func (h *health) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", h.serveReady)
}

// serveReady answers /readyz: whether the process can do its work, and the state of each check.
func (h *health) serveReady(w http.ResponseWriter, r *http.Request) {
	// The dashboard shows the result of the probe, so the probe continues if the client disconnects.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), probeTimeout)
	defer cancel()
	found := h.runChecks(ctx)
	status, word := http.StatusOK, "ready"
	if h.stopping.Load() {
		status, word = http.StatusServiceUnavailable, "stopping"
	} else if found.requiredFailed {
		status, word = http.StatusServiceUnavailable, "not ready"
	}
	body := map[string]any{"status": word, "checks": found.states}
	if len(found.reasons) > 0 {
		body["reasons"] = found.reasons
	}
	if u := found.unserved; u != nil {
		body["pools"] = map[string]int{"served": u.ServedPools, "known": u.KnownPools}
	}
	writeJSON(w, status, body)
}

type probeResult struct {
	states         map[string]string
	reasons        map[string]string // only of checks that failed for a known reason
	requiredFailed bool              // a required check failed
	unserved       *UnservedError    // nil means that all pools are served
}

// runChecks runs all checks concurrently and returns at the latest when ctx ends. A check that has not ended at that time has failed.
func (h *health) runChecks(ctx context.Context) probeResult {
	found := probeResult{states: make(map[string]string, len(h.checks)), reasons: map[string]string{}}
	var mu sync.Mutex
	wait := rescue.ReportingGroup{OnPanic: h.panicked}
	for _, check := range h.checks {
		wait.Go("checking "+check.Name, func() {
			began := h.now()
			err := h.panicked.Report("checking "+check.Name, rescue.CallWithin(ctx, func() error { return check.Probe(ctx) }))
			mu.Lock()
			defer mu.Unlock()
			probed := Dependency{Name: check.Name, Address: check.Address, Off: errors.Is(err, ErrOff)}
			if err != nil && !probed.Off {
				probed.Error = truncateText(err.Error())
			}
			switch {
			case err == nil || probed.Off:
				found.states[check.Name] = checkOK
			case check.Required:
				found.states[check.Name], found.requiredFailed = "failed", true
				if errors.Is(err, store.ErrDiskFull) {
					found.reasons[check.Name] = store.ErrDiskFull.Error()
				}
			default:
				found.states[check.Name] = "degraded"
				errors.As(err, &found.unserved)
			}
			probed.State, probed.Reason = found.states[check.Name], found.reasons[check.Name]
			h.recordState(probed, began)
		})
	}
	wait.Wait()
	return found
}

// recordState stores the state of dependency, which was probed at probedAt, and the time since which it is slow or not ok.
func (h *health) recordState(dependency Dependency, probedAt time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	dependency.Slow = dependency.State == checkOK && h.now().Sub(probedAt) >= slowAnswer
	if dependency.Slow || dependency.State != checkOK {
		dependency.Since = probedAt
		if before := h.dependencies[dependency.Name]; before.IsUnhealthy() {
			dependency.Since = before.Since
		}
	}
	h.dependencies[dependency.Name] = dependency
}

func writeJSON(w http.ResponseWriter, httpStatus int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(httpStatus)
	_ = json.NewEncoder(w).Encode(body)
}

// Dependencies probes all dependencies, unless a recent probe exists, and returns their states ordered by name. If ctx
// ends before the probe is done, it returns the states of the previous probe.
func (a *API) Dependencies(ctx context.Context) []Dependency {
	h := a.health
	_, _ = h.shared.Read(ctx) // the probe stores its result in h.dependencies
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.SortedFunc(maps.Values(h.dependencies), func(a, b Dependency) int { return strings.Compare(a.Name, b.Name) })
}

// StartingHandler serves requests while the process starts and the API cannot be built yet. It answers that the
// process is alive and not ready, and asks devices to retry later. The zero value names no missing dependency.
type StartingHandler struct{ missingCheck atomic.Pointer[string] }

// SetMissingCheck sets the name of the missing dependency, which /readyz reports as a failed check. It returns at once.
func (s *StartingHandler) SetMissingCheck(check string) { s.missingCheck.Store(&check) }

// ServeHTTP answers health checks, and answers all other requests with 503.
func (s *StartingHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/healthz":
		writeJSON(w, http.StatusOK, map[string]any{"status": "ok"})
	case "/readyz":
		checks := make(map[string]string)
		if missing := s.missingCheck.Load(); missing != nil {
			checks[*missing] = "failed"
		}
		writeJSON(w, http.StatusServiceUnavailable, map[string]any{"status": "starting", "checks": checks})
	default:
		refusal := devices.RefusalOf(devices.ErrUnavailable)
		refusal.Detail = "starting; send again"
		spread := 0.5 + rand.Float64() //nolint:gosec // jitter, so that the devices do not all return at once
		devicehttp.WriteRefusal(w, refusal, time.Duration(spread*float64(retryUnavailable)))
	}
}
