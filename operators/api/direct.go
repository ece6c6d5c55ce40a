package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/fleetslots/dispatcher/operators"
)

// The rules for names of limit sets, which are the same as for pools.
const (
	setNamePattern = "^[A-Za-z0-9][A-Za-z0-9._:-]*$"
	setNameRule    = "1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit"
	maxSetName     = 64
)

// maxDirect is the maximum size in bytes of a body that an operation reads itself.
const maxDirect = 1 << 20

// registerDirect adds an operation on a limit set whose handler reads the body and writes the response itself. Huma is too slow for these
// operations: takes arrive thousands of times a second, and huma reads each body twice. requestTypes and responseTypes are the possible types of
// the request and of the response, for the OpenAPI document. Authorization is checked as in all other operations.
func registerDirect(r *routes, op huma.Operation, requestTypes, responseTypes []any, handler func(huma.Context) error) {
	named := regexp.MustCompile(setNamePattern)
	op.Parameters = append([]*huma.Param{{
		Name: "set", In: "path", Required: true, Description: setNameRule,
		Schema: &huma.Schema{Type: huma.TypeString, MaxLength: new(maxSetName), Pattern: setNamePattern},
	}}, op.Parameters...)
	if requestTypes != nil {
		op.RequestBody = &huma.RequestBody{Required: true, Content: describeOneOf(r, requestTypes)}
	}
	op.Responses = map[string]*huma.Response{"200": {Description: http.StatusText(http.StatusOK), Content: describeOneOf(r, responseTypes)}, "default": r.problem}
	r.OpenAPI().AddOperation(&op)
	run := func(ctx huma.Context) error {
		if err := checkQueryNames(ctx); err != nil {
			return err
		}
		if set := ctx.Param("set"); len(set) > maxSetName || !named.MatchString(set) {
			return invalidProblem("path.set: %s", setNameRule)
		}
		return handler(ctx)
	}
	last := r.newMiddlewares(r.limitLargeBodies, func(ctx huma.Context, _ func(huma.Context)) error { return run(ctx) })
	r.Adapter().Handle(&op, r.Middlewares().Handler(last.Handler(func(huma.Context) {})))
}

// describeOneOf returns the description of a JSON body whose type is one of types. It adds the types to the OpenAPI document of r.
func describeOneOf(r *routes, types []any) (mediaTypeByName map[string]*huma.MediaType) {
	schemas := make([]*huma.Schema, len(types))
	for i, one := range types {
		schemas[i] = r.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(one), true, "")
	}
	if len(schemas) == 1 {
		return map[string]*huma.MediaType{operators.TypeJSON: {Schema: schemas[0]}}
	}
	return map[string]*huma.MediaType{operators.TypeJSON: {Schema: &huma.Schema{OneOf: schemas}}}
}

// factsPrefix is the prefix of query parameters that are facts.
const factsPrefix = "facts."

func checkQueryNames(ctx huma.Context) error {
	requestURL := ctx.URL()
	if requestURL.RawQuery == "" {
		return nil
	}
	p := newProblem(http.StatusBadRequest, codeUnknownField, "")
	for name := range requestURL.Query() {
		isKnown := slices.ContainsFunc(ctx.Operation().Parameters, func(p *huma.Param) bool { return p.In == "query" && p.Name == name })
		if !isKnown && (ctx.Method() != http.MethodGet || !strings.HasPrefix(name, factsPrefix)) {
			p.Errors = append(p.Errors, operators.ProblemField{Field: "query." + name, Detail: "unknown query parameter"})
		}
	}
	if len(p.Errors) == 0 {
		return nil
	}
	p.Detail = p.summary()
	return p
}

// readJSONBody decodes a JSON body into the value that the pointer `into` names, with the same strict checks as all other bodies.
func readJSONBody(ctx huma.Context, into any) error {
	r, w := humago.Unwrap(ctx)
	if form := r.Header.Get("Content-Type"); form != "" && form != operators.TypeJSON {
		if kind, _, err := mime.ParseMediaType(form); err != nil || kind != operators.TypeJSON {
			return newProblem(http.StatusUnsupportedMediaType, codeUnsupportedMedia, "Content-Type: must be "+operators.TypeJSON)
		}
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxDirect))
	if err != nil {
		if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return large
		}
		return newProblem(http.StatusRequestTimeout, codeBodyIncomplete, "body: incomplete").withCause(err)
	}
	return decodingProblem(readLine(text, into, "the fields of this request"))
}

// decodingProblem converts err, an error of decoding a body, to a problem with the same codes as in other operations. It returns nil if err
// is nil.
func decodingProblem(err error) error {
	if err == nil {
		return nil
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
		return invalidProblem("%s: must not be a JSON %s", wrong.Field, wrong.Value)
	}
	code := codeInvalidRequest
	if isUnknownFieldError(err) {
		code = codeUnknownField
	}
	return newProblem(http.StatusBadRequest, code, "body: "+err.Error())
}

func writeResponse(ctx huma.Context, status int, contentType string, answer any) error {
	text, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("writing a response: %w", err)
	}
	ctx.SetHeader("Content-Type", contentType)
	ctx.SetStatus(status)
	_, _ = ctx.BodyWriter().Write(append(text, '\n'))
	return nil
}
