package api

import (
	"cmp"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators/gate"
)

// Options are the settings and dependencies of an API.
type Options struct {
	Dispatcher    *dispatcher.Dispatcher
	Store         Store
	Recent        RecentDevices
	Gate          *gate.Gate
	AdminToken    string        // bootstrap operator token with the role admin; empty means that there is none
	LeaseMin      time.Duration // minimum working time that a lease must give a device
	Checks        []Check       // checks on which readiness depends
	Metrics       prometheus.Gatherer
	MetricsToken  string        // token that may only read /metrics; empty means that /metrics needs no token
	MetricsMaxAge time.Duration // maximum age of the text of /metrics; 0 means metricsMaxAge
	Version       string
	Logger        *slog.Logger
	Limits        BodyLimits    // limits for long bodies
	LongPollMax   time.Duration // maximum time that the response to a caller may wait; whole seconds
	AnswerTimeout time.Duration // time limit for an explanation why tasks wait; 0 means the constant AnswerTimeout
	SpoolDir      string        // directory for long bodies; empty means the system's directory for temporary files
	Reports       http.Handler  // handles the reports of devices
	Hawkbit       DevicePaths   // handles the requests of devices that speak hawkBit's DDI; nil: there is none
	PublicURL     string        // address under which devices reach this API; empty means that it is not known
}

// Store has the ledger methods that the operators' API needs. The product uses *store.Store.
type Store interface {
	leaseStore
	factStore
	resultStore
	profileStore
	limitSetStore
	tokenStore
	eventStore
	findStore // includes the methods for pools, batches, tasks and devices
	attemptStore
}

// API is the HTTP interface of the dispatcher. It has two handlers, which may share a listener: Handler for all paths, and DeviceHandler
// for the paths of devices and load balancers.
type API struct {
	options    Options
	health     *health
	auth       *authenticator
	mux        *http.ServeMux
	streams    *http.ServeMux // the streamed forms of the lists
	largeTurns *fair.Shares   // limits how many bodies of more than smallBody bytes, or of unknown length, are read at once
}

// New builds the handlers of the API and starts nothing.
func New(options Options) *API {
	options.Limits = options.Limits.withDefaults()
	options.AnswerTimeout = cmp.Or(options.AnswerTimeout, AnswerTimeout)
	options.MetricsMaxAge = cmp.Or(options.MetricsMaxAge, metricsMaxAge)
	d := options.Dispatcher
	a := &API{
		options: options, health: newHealth(options.Checks, d.Panicked, time.Now),
		auth: &authenticator{adminToken: options.AdminToken, metricsToken: options.MetricsToken, tokens: d.Devices, tokenUse: d.Seen.Tokens, gate: options.Gate},
		mux:  http.NewServeMux(), streams: http.NewServeMux(), largeTurns: fair.NewShares(maxLargeBodies, 1),
	}
	a.registerDevicePaths(a.mux)
	a.registerOperatorPaths()
	a.health.register(a.mux)
	a.mux.Handle("GET /metrics", a.metricsHandler())
	return a
}

// Handler returns a handler for all paths.
func (a *API) Handler() http.Handler { return a.guardRequests(a.mux) }

// DeviceHandler returns a handler for the paths that devices and load balancers need.
func (a *API) DeviceHandler() http.Handler {
	mux := http.NewServeMux()
	a.registerDevicePaths(mux)
	a.health.register(mux)
	return a.guardRequests(mux)
}

// FailReadiness makes the readiness check fail from now on, and ends the streams of events.
func (a *API) FailReadiness() { a.health.stopping.Store(true) }

func (a *API) registerDevicePaths(mux *http.ServeMux) {
	mux.Handle("POST /v1/devices/{device}/report", a.options.Reports)
	if a.options.Hawkbit != nil {
		a.options.Hawkbit.Register(mux)
	}
}

// DevicePaths adds the paths of one more wire (device protocol) to a router.
type DevicePaths interface{ Register(mux *http.ServeMux) }

// registerOperatorPaths adds the operations on all resources (pools, batches, ...), in the order of the OpenAPI document.
func (a *API) registerOperatorPaths() {
	o, d, ledger := a.options, a.options.Dispatcher, a.options.Store
	r := newRoutes(newOperations(a.mux, o.Version, a.auth, o.Logger), newOperations(a.streams, o.Version, a.auth, o.Logger), a.largeTurns)
	leaseMin, warner := leaseMinimum(o.LeaseMin), policyWarner{ledger}
	(&poolOperations{ledger, d.Upkeep, d.Policies, d.ForceRelease, warner, leaseMin, o.Logger}).register(r)
	(&leaseOperations{ledger, dispatcher.Leases{Dispatcher: d}, leaseMin, o.LongPollMax, fair.NewShares(maxLeaseRequests, maxLeaseRequestsPerToken)}).register(r)
	(&batchOperations{ledger, d.Waiters, warner, leaseMin, o.PublicURL, o.Limits, &spool{o.SpoolDir, fair.NewShares(maxSpooled, maxSpooledPerToken)}, fair.NewSharesWithoutReserve(1, 1)}).register(r)
	(&resultOperations{ledger}).register(r)
	(&taskOperations{ledger, ledger, d.Waiters, d.Explainer.ExplainTask}).register(r)
	(&waitingOperations{d.Explainer, ledger}).register(r)
	(&failureOperations{ledger}).register(r)
	(&deviceOperations{ledger, ledger, d.Devices, o.Recent, d.Explainer.DeviceMark, d.Explainer.ExplainDevice, o.Limits, fair.NewShares(maxImports, 1)}).register(r)
	(&profileOperations{ledger, warner}).register(r)
	(&limitSetOperations{ledger, d.Policies.Sets}).register(r)
	(&tokenOperations{ledger}).register(r)
	(&finder{ledger}).register(r)
	(&eventOperations{ledger, a.auth, &a.health.stopping}).register(r)
	devicehttp.Describe(r.API, r.problem)
}
