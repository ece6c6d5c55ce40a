package api

import (
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	devicehttp "github.com/fleetslots/dispatcher/devices/http"
)

// Starting answers in place of an API that cannot be built yet: the process is
// alive and not ready, and devices are told to come back. The zero value waits
// for nothing in particular.
type Starting struct{ missing atomic.Pointer[string] }

// WaitFor names what is missing, as a check of readiness.
func (s *Starting) WaitFor(check string) { s.missing.Store(&check) }

// ServeHTTP answers health checks, and 503 to everything else.
func (s *Starting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/healthz":
		writeStatus(w, http.StatusOK, map[string]any{"status": "ok"})
	case "/readyz":
		checks := make(map[string]string)
		if missing := s.missing.Load(); missing != nil {
			checks[*missing] = "failed"
		}
		writeStatus(w, http.StatusServiceUnavailable, map[string]any{"status": "starting", "checks": checks})
	default:
		refusal := devices.RefusalOf(devices.ErrUnavailable)
		refusal.Detail = "starting; send again"
		spread := 0.5 + rand.Float64() //nolint:gosec // jitter of those who come back
		devicehttp.Refuse(w, refusal, time.Duration(spread*float64(retryUnavailable)))
	}
}
