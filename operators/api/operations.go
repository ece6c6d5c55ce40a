package api

import (
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators"
)

// operations is a set of operations with one OpenAPI document and one router.
type operations struct {
	huma.API
	auth *authenticator
	log  *slog.Logger
}

func newOperations(mux *http.ServeMux, version string, auth *authenticator, log *slog.Logger) *operations {
	config := huma.DefaultConfig("Dispatcher", version)
	config.Info.Description = "Grants the slots of an external system to the devices of a fleet, and never more slots than the capacity."
	config.DocsPath, config.SchemasPath = "", ""
	config.Formats = map[string]huma.Format{"application/json": bodyFormat(), "json": bodyFormat()}
	config.Components.Schemas = newSchemas()
	config.CreateHooks = nil // no $schema links in the bodies
	config.RejectUnknownQueryParameters = true
	config.Transformers = []huma.Transformer{shapeProblem}
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"operator": {Type: "http", Scheme: "bearer", Description: "An operator token: viewer, operator, admin, verifier or caller."},
		"device":   {Type: "http", Scheme: "bearer", Description: "The device's own token or a fleet token."},
	}
	o := &operations{API: humago.New(mux, config), auth: auth, log: log}
	o.UseMiddleware(o.newMiddlewares(auth.authorize, refuseIgnoredQuery, handleIdempotencyKey)...)
	o.UseMiddleware(withProblems) // last, because the transformers need its context
	return o
}

func withProblems(ctx huma.Context, next func(huma.Context)) {
	next(&problemContext{humaContext: ctx})
}

// step is a middleware that can refuse a request with an error.
type step func(ctx huma.Context, next func(huma.Context)) error

// newMiddlewares returns middlewares that answer the errors of the steps with a problem.
func (o *operations) newMiddlewares(all ...step) huma.Middlewares {
	middlewares := make(huma.Middlewares, len(all))
	for i, step := range all {
		middlewares[i] = func(ctx huma.Context, next func(huma.Context)) {
			if err := step(ctx, next); err != nil {
				o.writeProblem(ctx, err)
			}
		}
	}
	return middlewares
}

func (o *operations) writeProblem(ctx huma.Context, err error) {
	p := o.problemFor(ctx.Context(), ctx.Operation(), err)
	p.setHeaders(ctx.SetHeader)
	ctx.SetHeader("Content-Type", p.ContentType(""))
	ctx.SetStatus(p.Status)
	_ = o.Marshal(ctx.BodyWriter(), "application/json", p)
}

// problemFor returns the problem that the client gets for err. Problems with status 500 or higher are logged, unless the
// client has disconnected.
func (o *operations) problemFor(ctx context.Context, op *huma.Operation, err error) *Problem {
	p := asProblem(err)
	if p.Status >= http.StatusInternalServerError && ctx.Err() == nil {
		o.log.ErrorContext(ctx, "operation failed", "operation", op.OperationID, "err", err)
	}
	return p
}

// routes registers the operations of all nouns. A list has one description in the OpenAPI document, and is
// served as JSON pages and as a stream.
type routes struct {
	*operations
	streams *operations // the streamed forms of the lists

	listTurns, exportTurns, liveTurns, largeTurns *fair.Shares
}

func newRoutes(documented, streams *operations, large *fair.Shares) *routes {
	return &routes{
		operations: documented, streams: streams, largeTurns: large,
		listTurns: fair.NewShares(maxListReads, maxListReadsPerToken), exportTurns: fair.NewShares(maxExports, maxExportsPerToken), liveTurns: fair.NewShares(maxLiveStreams, maxLivePerToken),
	}
}

// newOperation returns the description of one operation of the operators' API.
func newOperation(method, path, id, summary, role string, status int) huma.Operation {
	return huma.Operation{
		Method: method, Path: path, OperationID: id, Summary: summary, DefaultStatus: status,
		Metadata: map[string]any{roleKey: role},
		Security: []map[string][]string{{"operator": {}}},
	}
}

// register adds an operation whose response is a body.
func register[I, T any](r *routes, op huma.Operation, handle func(context.Context, *I) (T, error)) {
	registerResponse(r, op, func(ctx context.Context, in *I) (*bodyResponse[T], error) {
		answer, err := handle(ctx, in)
		return &bodyResponse[T]{answer}, err
	})
}

// registerResponse adds an operation that sets the whole response: a status or headers in addition to the body, or no body.
func registerResponse[I, O any](r *routes, op huma.Operation, handle func(context.Context, *I) (*O, error)) {
	addOperation(r, r.operations, op, handle)
}

// nameChecker is the input of an operation whose path contains a name. checkName refuses an invalid
// name.
type nameChecker interface{ checkName() error }

// addOperation adds an operation whose errors become problems.
func addOperation[I, O any](r *routes, on *operations, op huma.Operation, handle func(context.Context, *I) (*O, error)) {
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	op.Responses["default"] = problemResponse(on)
	if op.MaxBodyBytes == 0 {
		op.Middlewares = append(op.Middlewares, on.newMiddlewares(r.awaitLargeTurn)...)
	}
	// Registered at on.API, not at on itself, because huma looks for its own configuration type in its argument.
	huma.Register(on.API, op, func(ctx context.Context, in *I) (out *O, err error) {
		if path, ok := any(in).(nameChecker); ok {
			err = path.checkName()
		}
		if err == nil {
			out, err = handle(ctx, in)
		}
		if err != nil {
			return nil, on.problemFor(ctx, &op, err)
		}
		return out, nil
	})
}

// documentStatus documents another success status of an operation, with a body of type T.
func documentStatus[T any](r *routes, op huma.Operation, status int) huma.Operation {
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	schema := r.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
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

// newSchemas returns the registry of the types in the OpenAPI document. The types of package operators have no
// code for this document.
func newSchemas() huma.Registry {
	schemas := huma.NewMapRegistry("#/components/schemas/", schemaName)
	schemas.RegisterTypeAlias(reflect.TypeFor[operators.Time](), reflect.TypeFor[time.Time]())
	describeChange[int](schemas)
	describeChange[int64](schemas)
	describeChange[bool](schemas)
	describeChange[string](schemas)
	describeChange[time.Time](schemas)
	describeChange[map[string]*string](schemas)
	describeChange[[]operators.Window](schemas)
	describeChange[[]operators.Policy](schemas)
	return schemas
}

// describeChange documents Change[T] as its value T.
func describeChange[T any](schemas huma.Registry) {
	schemas.RegisterTypeAlias(reflect.TypeFor[operators.Change[T]](), reflect.TypeFor[T]())
}

// schemaName returns the name of a type in the OpenAPI document. It keeps the names that version v1 of the document has.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.PkgPath() != reflect.TypeFor[operators.Pool]().PkgPath() {
		return name
	}
	switch name {
	case "Pool", "Slots", "Slot", "Window", "Batch", "Abort", "Task", "Grant", "Attempt", "Bulk", "Why", "Reason", "Device", "Profile", "Token", "Event":
		return name + "Body"
	}
	if old, ok := map[string]string{
		"NewBatch": "BatchPost", "NewTask": "BatchTask", "NewDevice": "DevicePost", "NewToken": "OperatorTokenPost",
		"Rotation": "TokenPost", "Release": "ForcePost", "PauseReason": "Reason",
	}[name]; ok {
		return old
	}
	return name
}
