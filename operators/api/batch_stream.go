package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	typeEvents = "text/event-stream"

	maxLine = 128 << 10 // bytes of one line; more than maxPayload, because the payload may be escaped
)

// BodyLimits are the limits for a long body. A zero field means the value of DefaultBodyLimits.
type BodyLimits struct {
	MaxStreamBytes int64         // maximum bytes of a streamed batch
	MaxTasks       int           // maximum number of tasks in one batch
	MaxPause       time.Duration // maximum time in which a client may send nothing
}

// DefaultBodyLimits returns the limits that docs/protocol.md promises.
func DefaultBodyLimits() BodyLimits {
	return BodyLimits{MaxStreamBytes: 2 << 30, MaxTasks: 1_000_000, MaxPause: 30 * time.Second}
}

// withDefaults returns the limits with the defaults of the fields that are zero.
func (l BodyLimits) withDefaults() BodyLimits {
	d := DefaultBodyLimits()
	return BodyLimits{cmp.Or(l.MaxStreamBytes, d.MaxStreamBytes), cmp.Or(l.MaxTasks, d.MaxTasks), cmp.Or(l.MaxPause, d.MaxPause)}
}

// checkCount returns an error if tasks exceeds the maximum number of tasks in a batch.
func (l BodyLimits) checkCount(tasks int) error {
	if tasks > l.MaxTasks {
		return fmt.Errorf("at most %d tasks in a batch", l.MaxTasks)
	}
	return nil
}

// streamType returns the media type of a request body in lines, CSV or NDJSON, or an empty string for any other body.
func streamType(ctx huma.Context) string {
	contentType, _, _ := mime.ParseMediaType(ctx.Header("Content-Type"))
	if contentType != operators.TypeCSV && contentType != operators.TypeNDJSON {
		return ""
	}
	return contentType
}

// handleStreamed handles batches whose body is a stream, before huma would read the body into memory. The fields of such a batch
// are in the query.
func (b *batches) handleStreamed(operations huma.API) step {
	return func(ctx huma.Context, next func(huma.Context)) error {
		contentType := streamType(ctx)
		if contentType == "" {
			next(ctx)
			return nil
		}
		url := ctx.URL()
		post, mode, err := readBatchQuery(operations, url.Query())
		if err != nil {
			return err
		}
		made, err := b.createStreamed(ctx, contentType, post, mode)
		if err != nil {
			return err
		}
		ctx.SetHeader("Content-Type", "application/json")
		ctx.SetStatus(made.Status)
		_ = operations.Marshal(ctx.BodyWriter(), "application/json", made.Body) // fails only if the client has disconnected
		return nil
	}
}

// createStreamed creates a batch with these fields, whose tasks are the lines of the body in the media type contentType.
func (b *batches) createStreamed(ctx huma.Context, contentType string, batchFields operators.NewBatch, mode operators.QueueMode) (*createdResponse[operators.BatchCreated], error) {
	batch, err := b.readSettings(batchFields)
	if err != nil {
		return nil, err
	}
	body := b.limits.newBodyReader(ctx, b.limits.MaxStreamBytes)
	stored, release, err := b.spool.storeBody(ctx.Context(), body)
	if err != nil {
		return nil, body.readError(err)
	}
	defer release()
	var list lineReader[operators.NewTask] = newNDJSON[operators.NewTask](stored, taskMembers)
	if contentType == operators.TypeCSV {
		if list, err = newTaskCSV(stored); err != nil {
			return nil, err
		}
	}
	leave, err := b.awaitDuplicateTurn(ctx.Context(), batchFields)
	if err != nil {
		return nil, err
	}
	defer leave()
	return b.queueBatch(ctx.Context(), batchFields, batch, store.NewBatchTasks{Tasks: checkedTasks(batchFields, lineEntries(list), b.limits)}, mode)
}

// lineEntries returns lines, the tasks of a streamed batch, as an entryList, so that errors name line numbers.
func lineEntries(lines lineReader[operators.NewTask]) entryList {
	return entryList{positionFormat: "line %d", position: func(int) int { return lines.lineNumber() }, entryError: lineProblem, entries: func(yield func(operators.NewTask, error) bool) {
		for {
			entry, err := lines.next()
			if errors.Is(err, io.EOF) || !yield(entry, err) {
				return
			}
		}
	}}
}

// lineProblem returns the problem for err, an error about a line of the body. It returns nil if err is nil.
func lineProblem(line int, err error) error {
	if err == nil {
		return nil
	}
	return problem(http.StatusUnprocessableEntity, entryCode(err, codeInvalidLine), fmt.Sprintf("line %d: %v", line, err)).withCause(err)
}

// streamFields returns the fields of a streamed batch: the fields of a JSON batch, except the fields that the lines replace.
func streamFields(operations huma.API) map[string]*huma.Schema {
	fields := maps.Clone(schemaOf[operators.NewBatch](operations).Properties)
	maps.DeleteFunc(fields, func(name string, _ *huma.Schema) bool {
		return name == "devices" || name == "tasks" || name == "select"
	})
	return fields
}

// schemaOf returns the schema of T in the OpenAPI document of operations.
func schemaOf[T any](operations huma.API) *huma.Schema {
	registry := operations.OpenAPI().Components.Schemas
	schema := registry.Schema(reflect.TypeFor[T](), true, "")
	if schema.Ref != "" {
		schema = registry.SchemaFromRef(schema.Ref)
	}
	return schema
}

// describeStreams adds the streamed forms of a batch to the documentation of its operation.
func describeStreams(operations huma.API, op *huma.Operation) {
	op.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{operators.TypeCSV: textMedia(), operators.TypeNDJSON: textMedia()}}
	fields := streamFields(operations)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		op.Parameters = append(op.Parameters, &huma.Param{
			Name: name, In: "query", Schema: fields[name],
			Description: "With " + operators.TypeCSV + " and " + operators.TypeNDJSON + " only: the batch's field; objects and lists of them as JSON",
		})
	}
}

// readBatchQuery reads the fields of a batch and the mode from query, by the schema of the batch's JSON form.
func readBatchQuery(operations huma.API, query url.Values) (batchFields operators.NewBatch, mode operators.QueueMode, err error) {
	fields, modes := streamFields(operations), schemaOf[operators.QueueMode](operations).Properties
	inBatch, inMode := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	for name, values := range query {
		if schema := fields[name]; schema != nil {
			inBatch[name] = queryValue(schema, values)
		} else if schema := modes[name]; schema != nil {
			inMode[name] = queryValue(schema, values)
		} else {
			return batchFields, mode, problem(http.StatusBadRequest, codeUnknownField, "query."+name+": no such field")
		}
	}
	if err := decodeFields(operations, inBatch, &batchFields); err != nil {
		return batchFields, mode, err
	}
	return batchFields, mode, decodeFields(operations, inMode, &mode)
}

// queryValue returns values, the values of a query parameter with this schema, as JSON.
func queryValue(schema *huma.Schema, values []string) json.RawMessage {
	value := values[len(values)-1]
	switch {
	case value == "":
		return json.RawMessage("null")
	case schema.Type == huma.TypeString:
		text, _ := json.Marshal(value) // a string always marshals
		return text
	case schema.Type == huma.TypeArray && !strings.HasPrefix(value, "["):
		text, _ := json.Marshal(strings.Split(strings.Join(values, ","), ","))
		return text
	case !json.Valid([]byte(value)):
		text, _ := json.Marshal(value) // the check against its schema will refuse it
		return text
	}
	return json.RawMessage(value)
}

// decodeFields checks fields against the schema of T and stores them in *into. A field that is null counts as absent.
func decodeFields[T any](operations huma.API, fields map[string]json.RawMessage, into *T) error {
	maps.DeleteFunc(fields, func(_ string, value json.RawMessage) bool { return string(value) == "null" })
	text, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	var seen any
	if err := json.Unmarshal(text, &seen); err != nil {
		return err
	}
	registry, found := operations.OpenAPI().Components.Schemas, huma.ValidateResult{}
	huma.Validate(registry, schemaOf[T](operations), huma.NewPathBuffer([]byte("query"), len("query")), huma.ModeWriteToServer, seen, &found)
	if len(found.Errors) > 0 {
		return problemFromHuma(&huma.ErrorModel{Status: http.StatusUnprocessableEntity, Errors: details(found.Errors)})
	}
	return json.Unmarshal(text, into)
}

// details converts causes, the errors of a schema, to huma's error details.
func details(causes []error) []*huma.ErrorDetail {
	converted := make([]*huma.ErrorDetail, len(causes))
	for i, err := range causes {
		if !errors.As(err, &converted[i]) {
			converted[i] = &huma.ErrorDetail{Message: err.Error()}
		}
	}
	return converted
}
