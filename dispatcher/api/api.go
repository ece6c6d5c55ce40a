package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/gate"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Options set up the HTTP side.
type Options struct {
	Dispatcher *dispatcher.Dispatcher
	Store      Store
	Recent     Recent
	Gate       *gate.Gate
	AdminToken string        // bootstrap operator token, role admin; empty: none
	LeaseMin   time.Duration // no lease may give a device less
	Checks     []Check       // what readiness depends on
	Metrics    prometheus.Gatherer
	Version    string
	Logger     *slog.Logger
	Limits     Limits       // of long bodies
	SpoolDir   string       // for long bodies; empty: where the system keeps temporary files
	Reports    http.Handler // of devices
}

// Store is what the operators' API needs of the ledger; *store.Store.
type Store interface {
	poolStore
	factStore
	batchStore
	taskStore
	deviceStore
	profileStore
	tokenStore
	eventStore
}

// API is the HTTP side of the dispatcher: two handlers that may share a
// listener.
type API struct {
	options Options
	store   Store
	log     *slog.Logger
	health  *health
	spool   *spool
	mux     *http.ServeMux

	streams   huma.API // the lists in their streamed forms
	streamMux *http.ServeMux
	live      *fair.Shares // live streams of events
	exports   *fair.Shares // lists that are streamed
	imports   *fair.Shares
	lists     *fair.Shares
	large     *fair.Shares // bodies that are read whole, of more than smallBody bytes
	repeats   *fair.Shares // long batches of which equal tasks are found: each task is remembered
}

// New builds the handlers; nothing is started.
func New(options Options) *API {
	options.Limits = options.Limits.withDefaults()
	a := &API{
		options: options, store: options.Store, log: options.Logger,
		health: newHealth(options.Checks, options.Dispatcher.Panicked), spool: newSpool(options.SpoolDir), mux: http.NewServeMux(), streamMux: http.NewServeMux(),
		live: fair.NewShares(liveMost, liveEach), exports: fair.NewShares(exportsMost, exportsEach), imports: fair.NewShares(importsAtOnce, 1),
		lists: fair.NewShares(listsAtOnce, listsEach), large: fair.NewShares(largeAtOnce, 1), repeats: fair.Unkept(1, 1),
	}
	a.registerDevices(a.mux)
	a.registerOperators(a.mux)
	a.health.register(a.mux)
	a.mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.Gatherers{options.Metrics, a.health.metrics()}, promhttp.HandlerOpts{}))
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

func (a *API) registerOperators(mux *http.ServeMux) {
	operations := a.newOperations(mux)
	a.streams = a.newOperations(a.streamMux)
	a.registerPools(operations)
	a.registerBatches(operations)
	a.registerTasks(operations)
	a.registerRegistry(operations)
	a.registerProfiles(operations)
	a.registerTokens(operations)
	a.registerEvents(operations)
	devicehttp.Describe(operations, problemResponse(operations))
}

func (a *API) newOperations(mux *http.ServeMux) huma.API {
	config := huma.DefaultConfig("Dispatcher", a.options.Version)
	config.Info.Description = "Grants the slots of an external system to the devices of a fleet, never more than there are."
	config.DocsPath, config.SchemasPath = "", ""
	config.Formats = map[string]huma.Format{"application/json": bodyFormat(), "json": bodyFormat()}
	config.Components.Schemas = newSchemas()
	config.CreateHooks = nil // no $schema links in bodies
	config.RejectUnknownQueryParameters = true
	config.Transformers = []huma.Transformer{shapeProblem}
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"operator": {Type: "http", Scheme: "bearer", Description: "An operator token: viewer, operator, admin or verifier."},
		"device":   {Type: "http", Scheme: "bearer", Description: "The device's own token or a fleet token."},
	}
	operations := humago.New(mux, config)
	operations.UseMiddleware(a.authorize(operations), a.wholeQuery(operations), a.once(operations), withProblems) // withProblems last: transformers see its context
	return operations
}

func withProblems(ctx huma.Context, next func(huma.Context)) {
	next(&problemContext{humaContext: ctx})
}

// operation describes one call of the operators' API.
func operation(method, path, id, summary string, role role, status int) huma.Operation {
	return huma.Operation{
		Method: method, Path: path, OperationID: id, Summary: summary, DefaultStatus: status,
		Metadata: map[string]any{roleKey: role},
		Security: []map[string][]string{{"operator": {}}},
	}
}

// register adds an operation whose errors become problems, of which those
// within are logged. Clients see only problems.
func register[I, O any](a *API, operations huma.API, op huma.Operation, handle func(context.Context, *I) (*O, error)) {
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	op.Responses["default"] = problemResponse(operations)
	if op.MaxBodyBytes == 0 {
		op.Middlewares = append(op.Middlewares, a.turnOfLarge(operations))
	}
	huma.Register(operations, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, in)
		if err == nil {
			return out, nil
		}
		p := asProblem(err)
		if p.Status >= http.StatusInternalServerError {
			a.log.ErrorContext(ctx, "operation failed", "operation", op.OperationID, "err", err)
		}
		return nil, p
	})
}

// also describes a success of another status than the usual one.
func also[T any](operations huma.API, op huma.Operation, status int) huma.Operation {
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	schema := operations.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
	op.Responses[strconv.Itoa(status)] = &huma.Response{
		Description: http.StatusText(status), Content: map[string]*huma.MediaType{"application/json": {Schema: schema}},
	}
	return op
}

func problemResponse(operations huma.API) *huma.Response {
	return &huma.Response{
		Description: "A problem (RFC 9457)",
		Content: map[string]*huma.MediaType{
			"application/problem+json": {Schema: huma.SchemaFromType(operations.OpenAPI().Components.Schemas, problemType())},
		},
	}
}

// guard answers what no handler should see, and what the router would answer
// in its own words: unknown paths, wrong methods, paths with dots that it would
// redirect, and panics.
func (a *API) guard(mux *http.ServeMux) http.Handler {
	return Rescued(a.options.Dispatcher.Panicked, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := unacceptable(r); p != nil {
			note(r.Context(), a.options.Gate, p, gate.Refusal{At: gate.API, From: a.options.Gate.From(r), Detail: "two tokens"})
			p.write(w)
			return
		}
		mux := mux
		if _, streamed := a.streamMux.Handler(r); mux == a.mux && streamed != "" && wantsStream(r) {
			mux = a.streamMux
		}
		handler, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		seen := &statusOnly{header: make(http.Header)}
		handler.ServeHTTP(seen, r)
		if seen.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", seen.header.Get("Allow"))
			problem(http.StatusMethodNotAllowed, codeMethodNotAllowed, "allowed: "+seen.header.Get("Allow")).write(w)
			return
		}
		problem(http.StatusNotFound, codeNotFound, "no such path").write(w)
	}))
}

// Rescued answers with a problem where next panics.
func Rescued(panicked rescue.Told, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := rescue.Call(func() error { next.ServeHTTP(w, r); return nil })
		p, ok := errors.AsType[*rescue.Panic](err)
		if !ok {
			return
		}
		if cause, ok := p.Cause.(error); ok && errors.Is(cause, http.ErrAbortHandler) { // the server's own way to drop a connection
			panic(cause)
		}
		_ = panicked.Tell("answering "+r.Method+" "+r.URL.Path, err) // the client is told here
		problem(http.StatusInternalServerError, codeInternal, "something went wrong here; it was logged").write(w)
	})
}

// unacceptable is the problem with the envelope of a request; nil: none.
func unacceptable(r *http.Request) *Problem {
	switch {
	case !Canonical(r.URL.Path):
		return problem(http.StatusBadRequest, codeInvalidPath, "path: empty segments, . and .. are not names")
	case !storable(r.URL.Path):
		return problem(http.StatusBadRequest, codeInvalidPath, "path: "+errText.Error())
	case !storableQuery(r.URL.RawQuery):
		return problem(http.StatusBadRequest, codeInvalidRequest, "query: "+errText.Error())
	case len(r.Header.Values("Authorization")) > 1: // a proxy in between may have believed the other one
		return problem(http.StatusUnauthorized, codeUnauthenticated, "Authorization: more than one")
	}
	return nil
}

// Canonical says that a path has no empty segments, . and ..: routers redirect others.
func Canonical(path string) bool {
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

// statusOnly learns what the router would answer.
type statusOnly struct {
	header http.Header
	status int
}

// Header of the answer.
func (s *statusOnly) Header() http.Header { return s.header }

// Write drops the body.
func (s *statusOnly) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader notes the status.
func (s *statusOnly) WriteHeader(status int) { s.status = status }
