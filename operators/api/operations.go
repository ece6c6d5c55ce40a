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
	auth    *authenticator
	log     *slog.Logger
	problem *huma.Response // the description of an error response, which all operations share
}

// newOperations returns an empty set of operations that are served by mux. version is the version of this program.
func newOperations(mux *http.ServeMux, version string, auth *authenticator, log *slog.Logger) *operations {
	config := huma.DefaultConfig("Dispatcher", version)
	config.Info.Description = "Grants the slots of an external system to the devices of a fleet, and never more slots than the capacity."
	config.DocsPath, config.SchemasPath = "", ""
	config.Formats = map[string]huma.Format{"application/json": bodyFormat(), "json": bodyFormat()}
	config.Components.Schemas = newSchemas()
	config.CreateHooks = nil // no $schema links in the bodies
	config.RejectUnknownQueryParameters = true
	config.Transformers = []huma.Transformer{convertErrorBody}
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"operator": {Type: "http", Scheme: "bearer", Description: "An operator token: viewer, operator, admin, verifier or caller."},
		"device":   {Type: "http", Scheme: "bearer", Description: "The device's own token or a fleet token."},
	}
	o := &operations{API: humago.New(mux, config), auth: auth, log: log, problem: problemResponse(config.Components.Schemas)}
	o.UseMiddleware(o.newMiddlewares(auth.authorize, refuseIgnoredQuery, handleIdempotencyKey)...)
	o.UseMiddleware(useProblemStatus) // last, because the transformers need its context
	return o
}

// useProblemStatus is a middleware that lets a problem set its own status (see problemContext).
func useProblemStatus(ctx huma.Context, next func(huma.Context)) {
	next(&problemContext{humaContext: ctx})
}

// middleware is a step before a handler that can refuse a request with an error. It calls next to continue.
type middleware func(ctx huma.Context, next func(huma.Context)) error

// newMiddlewares returns middlewares that run steps and answer their errors with a problem.
func (o *operations) newMiddlewares(steps ...middleware) huma.Middlewares {
	middlewares := make(huma.Middlewares, len(steps))
	for i, step := range steps {
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

// problemFor returns the problem that the client gets for err, an error of operation. Problems with status 500 or higher are logged,
// unless the client has disconnected.
func (o *operations) problemFor(ctx context.Context, operation *huma.Operation, err error) *Problem {
	p := asProblem(err)
	if p.Status >= http.StatusInternalServerError && ctx.Err() == nil {
		o.log.ErrorContext(ctx, "operation failed", "operation", operation.OperationID, "err", err)
	}
	return p
}

// routes registers the operations on all resources (pools, batches, ...). A list has one description in the OpenAPI document, and is served
// as JSON pages and as a stream.
type routes struct {
	*operations
	streams *operations // the streamed forms of the lists
	table   map[string]operators.Operation

	listTurns, exportTurns, liveTurns, largeTurns *fair.Shares
}

// newRoutes returns routes that register operations in documented and their streamed forms in streams. largeBodyLimit limits how many large
// bodies are read at once.
func newRoutes(documented, streams *operations, largeBodyLimit *fair.Shares) *routes {
	return &routes{
		operations: documented, streams: streams, table: operators.Operations(), largeTurns: largeBodyLimit,
		listTurns: fair.NewShares(maxListReads, maxListReadsPerToken), exportTurns: fair.NewShares(maxExports, maxExportsPerToken), liveTurns: fair.NewShares(maxLiveStreams, maxLivePerToken),
	}
}

// describeOperation returns the description of the operation with this id in the table of operations. It panics if the table has no such row.
func (r *routes) describeOperation(id string) huma.Operation {
	row, ok := r.table[id]
	if !ok {
		panic("the table of operations has no row " + id)
	}
	operation := huma.Operation{
		Method: row.Method, Path: row.Path, OperationID: row.ID, Summary: row.Summary, DefaultStatus: row.Status,
		Metadata: map[string]any{rowKey: row},
		Security: []map[string][]string{{"operator": {}}},
	}
	if row.Once {
		operation.Parameters = []*huma.Param{idempotencyKeyParam()}
	}
	return operation
}

// register adds an operation whose response is a body, which handler returns.
func register[Request, Body any](r *routes, operation huma.Operation, handler func(context.Context, *Request) (Body, error)) {
	registerResponse(r, operation, func(ctx context.Context, in *Request) (*bodyResponse[Body], error) {
		answer, err := handler(ctx, in)
		return &bodyResponse[Body]{answer}, err
	})
}

// registerResponse adds an operation whose handler sets the whole response: a status or headers in addition to the body, or no body.
func registerResponse[Request, Response any](r *routes, operation huma.Operation, handler func(context.Context, *Request) (*Response, error)) {
	addOperation(r, r.operations, operation, handler)
}

// nameChecker is the input of an operation whose path contains a name. checkName refuses an invalid name.
type nameChecker interface{ checkName() error }

// pageDecoder is the input of an operation on a list. decodeToken refuses an invalid page token.
type pageDecoder interface{ decodeToken() error }

// addOperation adds an operation to target. It converts the errors of handler to problems.
func addOperation[Request, Response any](r *routes, target *operations, operation huma.Operation, handler func(context.Context, *Request) (*Response, error)) {
	if operation.Responses == nil {
		operation.Responses = map[string]*huma.Response{}
	}
	operation.Responses["default"] = target.problem
	if operation.MaxBodyBytes == 0 {
		operation.Middlewares = append(operation.Middlewares, target.newMiddlewares(r.limitLargeBodies)...)
	}
	// The argument is target.API and not target, because huma looks for its own configuration type in this argument.
	huma.Register(target.API, operation, func(ctx context.Context, in *Request) (out *Response, err error) {
		if path, ok := any(in).(nameChecker); ok {
			err = path.checkName()
		}
		if page, ok := any(in).(pageDecoder); ok && err == nil {
			err = page.decodeToken()
		}
		if err == nil {
			out, err = handler(ctx, in)
		}
		if err != nil {
			return nil, target.problemFor(ctx, &operation, err)
		}
		return out, nil
	})
}

// documentStatus returns operation with one more success status in its documentation, whose body is a Body.
func documentStatus[Body any](r *routes, operation huma.Operation, status int) huma.Operation {
	if operation.Responses == nil {
		operation.Responses = map[string]*huma.Response{}
	}
	schema := r.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Body](), true, "")
	operation.Responses[strconv.Itoa(status)] = &huma.Response{
		Description: http.StatusText(status), Content: map[string]*huma.MediaType{"application/json": {Schema: schema}},
	}
	return operation
}

func problemResponse(schemas huma.Registry) *huma.Response {
	return &huma.Response{
		Description: "A problem (RFC 9457)",
		Content: map[string]*huma.MediaType{
			"application/problem+json": {Schema: huma.SchemaFromType(schemas, problemType())},
		},
	}
}

// newSchemas returns the registry of the types in the OpenAPI document. It describes the types of package operators, because they have no
// code for this document.
func newSchemas() huma.Registry {
	schemas := huma.NewMapRegistry("#/components/schemas/", openAPITypeName)
	schemas.RegisterTypeAlias(reflect.TypeFor[operators.Time](), reflect.TypeFor[time.Time]())
	addChangeSchema[int](schemas)
	addChangeSchema[int64](schemas)
	addChangeSchema[bool](schemas)
	addChangeSchema[string](schemas)
	addChangeSchema[time.Time](schemas)
	addChangeSchema[map[string]*string](schemas)
	addChangeSchema[[]operators.Window](schemas)
	addChangeSchema[[]operators.Policy](schemas)
	return schemas
}

// addChangeSchema documents Change[T] as its value T in schemas.
func addChangeSchema[Value any](schemas huma.Registry) {
	schemas.RegisterTypeAlias(reflect.TypeFor[operators.Change[Value]](), reflect.TypeFor[Value]())
}

// openAPITypeName returns the name of goType in the OpenAPI document of version v1. A type of package operators that was renamed keeps its old
// name in this document. defaultName is huma's default name.
func openAPITypeName(goType reflect.Type, defaultName string) string {
	name := huma.DefaultSchemaNamer(goType, defaultName)
	if goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	if goType.PkgPath() != reflect.TypeFor[operators.Pool]().PkgPath() {
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
