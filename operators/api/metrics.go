package api

import (
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/internal/exposition"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators/gate"
)

const (
	metricsMaxAge  = time.Second      // all scrapes within this time get the same text
	maxScrapes     = 2                // maximum number of scrapes that are answered at once
	maxScrapeWrite = 10 * time.Second // maximum time in which a client must have read its text
)

// metricsHandler returns the handler of /metrics. It limits the cost of requests, because anybody who reaches the port may send them, and
// the reports of devices need the same CPU.
func (a *API) metricsHandler() http.HandlerFunc {
	texts := exposition.Handler(exposition.Sources{a.options.Metrics, a.health.metrics()}, a.options.MetricsMaxAge, a.options.Dispatcher.Panicked)
	turns := fair.NewSharesWithoutReserve(maxScrapes, maxScrapes)
	return func(w http.ResponseWriter, r *http.Request) {
		if p := a.checkScraper(r); p != nil {
			p.write(w)
			return
		}
		endTurn, ok := turns.TryStart("", false)
		if !ok {
			newProblem(http.StatusServiceUnavailable, codeBusyServer, "two other requests are reading the metrics").write(w)
			return
		}
		defer endTurn()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxScrapeWrite)) // the ResponseWriter of a test has no deadlines
		texts.ServeHTTP(w, r)
	}
}

// checkScraper returns the problem for a request that may not read the metrics, or nil. If a metrics token is configured, the request needs
// this token, or a token whose role includes the rights of viewer.
func (a *API) checkScraper(r *http.Request) (refusal *Problem) {
	if a.options.MetricsToken == "" {
		return nil
	}
	operator, err := a.auth.bearerTokenOwner(r)
	if err == nil && operator.Role != roleMetrics && !operator.May(roleViewer) {
		err = newProblem(http.StatusForbidden, codeForbidden, "the metrics token, or a token of the role viewer is needed")
	}
	if err == nil {
		return nil
	}
	recordRefusal(r.Context(), a.options.Gate, err, gate.Refusal{EntryPoint: gate.API, Principal: operator.Name, IsDevice: operator.isDevice, From: operator.From, Detail: "metrics"})
	return asProblem(err)
}
