package api

import (
	"cmp"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/exposition"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators/gate"
)

// Options set up the HTTP side.
type Options struct {
	Dispatcher  *dispatcher.Dispatcher
	Store       Store
	Recent      Recent
	Gate        *gate.Gate
	AdminToken  string        // bootstrap operator token, role admin; empty: none
	LeaseMin    time.Duration // no lease may give a device less
	Checks      []Check       // what readiness depends on
	Metrics     prometheus.Gatherer
	Version     string
	Logger      *slog.Logger
	Limits      Limits        // of long bodies
	LongPollMax time.Duration // how long the answer to a caller may wait, in whole seconds
	AnswerTime  time.Duration // in which an explanation is answered; default AnswerTime
	SpoolDir    string        // for long bodies; empty: where the system keeps temporary files
	Reports     http.Handler  // of devices
}

// Store is what the operators' API needs of the ledger; *store.Store.
type Store interface {
	poolStore
	leaseStore
	factStore
	batchStore
	resultStore
	taskStore
	deviceStore
	profileStore
	limitSetStore
	tokenStore
	eventStore
	findStore
}

// API is the HTTP side of the dispatcher: two handlers that may share a
// listener.
type API struct {
	options Options
	health  *health
	auth    *authenticator
	mux     *http.ServeMux
	streams *http.ServeMux // the lists in their streamed forms
	large   *fair.Shares   // bodies that are read whole, of more than smallBody bytes
}

// New builds the handlers; nothing is started.
func New(options Options) *API {
	options.Limits = options.Limits.withDefaults()
	options.AnswerTime = cmp.Or(options.AnswerTime, AnswerTime)
	d := options.Dispatcher
	a := &API{
		options: options, health: newHealth(options.Checks, d.Panicked, time.Now),
		auth: &authenticator{adminToken: options.AdminToken, tokens: d.Devices, used: d.Seen.Tokens, gate: options.Gate},
		mux:  http.NewServeMux(), streams: http.NewServeMux(), large: fair.NewShares(largeAtOnce, 1),
	}
	a.registerDevices(a.mux)
	a.registerOperators()
	a.health.register(a.mux)
	a.mux.Handle("GET /metrics", exposition.Handler(exposition.Sources{options.Metrics, a.health.metrics()}))
	return a
}

// Handler serves everything on one listener.
func (a *API) Handler() http.Handler { return a.guard(a.mux) }

// DeviceHandler serves only what devices and load balancers need.
func (a *API) DeviceHandler() http.Handler {
	mux := http.NewServeMux()
	a.registerDevices(mux)
	a.health.register(mux)
	return a.guard(mux)
}

// StopReady makes readiness fail, so that load balancers turn away before the
// listener closes.
func (a *API) StopReady() { a.health.stopping.Store(true) }

func (a *API) registerDevices(mux *http.ServeMux) {
	mux.Handle("POST /v1/devices/{device}/report", a.options.Reports)
}

// registerOperators adds the nouns, in the order of the document.
func (a *API) registerOperators() {
	o, d, ledger := a.options, a.options.Dispatcher, a.options.Store
	r := newRoutes(newOperations(a.mux, o.Version, a.auth, o.Logger), newOperations(a.streams, o.Version, a.auth, o.Logger), a.large)
	least, warn := leastLease(o.LeaseMin), warnings{ledger}
	(&pools{ledger, d.Upkeep, d.Policies, d.ForceRelease, warn, least, o.Logger}).register(r)
	(&leases{ledger, dispatcher.Leases{Dispatcher: d}, least, o.LongPollMax, fair.NewShares(leasesMost, leasesEach)}).register(r)
	(&batches{ledger, d.Waiters, warn, least, o.Limits, &spool{o.SpoolDir, fair.NewShares(spoolBodies, spoolEach)}, fair.Unkept(1, 1)}).register(r)
	(&results{ledger}).register(r)
	(&tasks{ledger, d.Waiters, d.Explainer.Why}).register(r)
	(&waiting{d.Explainer}).register(r)
	(&registry{ledger, d.Devices, o.Recent, d.Explainer.MarkOf, o.Limits, fair.NewShares(importsAtOnce, 1)}).register(r)
	(&profiles{ledger, warn}).register(r)
	(&limitSets{ledger, d.Policies.Sets}).register(r)
	(&tokens{ledger}).register(r)
	(&finder{ledger}).register(r)
	(&events{ledger, a.auth, &a.health.stopping}).register(r)
	devicehttp.Describe(r.API, problemResponse(r.API))
}
