package api

import (
	"bytes"
	"context"
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

const maxMember = 1 << 20 // maximum size in bytes of a field, and of an entry of a list

// separateTasks is a step that separates the list of tasks of a new batch from its other fields, so that huma reads only these fields into
// memory. With CSV and NDJSON the list is the body, and the fields are in the query.
func (b *batchOperations) separateTasks(operations huma.API) middleware {
	return func(ctx huma.Context, next func(huma.Context)) error {
		switch form, _, _ := mime.ParseMediaType(ctx.Header("Content-Type")); form {
		case operators.TypeCSV, operators.TypeNDJSON:
			url := ctx.URL()
			query := url.Query()
			fields, err := extractFields(operations, query)
			if err != nil {
				return err
			}
			list := taskOpener(func() (taskList, func(), error) { return b.storeTaskLines(ctx, form) })
			useProblemStatus(&bodyContext{huma.WithValue(ctx, taskOpenerKey{}, list), bytes.NewReader(fields), query}, next)
			return nil
		case "", operators.TypeJSON:
			return b.separateJSON(ctx, next)
		}
		return newProblem(http.StatusUnsupportedMediaType, codeUnsupportedMedia, fmt.Sprintf("Content-Type: must be %s, %s or %s", operators.TypeJSON, operators.TypeCSV, operators.TypeNDJSON))
	}
}

// taskOpener opens a list of tasks that was separated from the fields of its batch. The caller must call release when it has read the list.
type taskOpener func() (list taskList, release func(), err error)

// taskOpenerKey is the context key of the taskOpener of a request.
type taskOpenerKey struct{}

// readTasks returns the tasks that a request adds to a new batch. batch has the fields that huma has decoded. The caller must call release
// when the ledger has stored the tasks.
func (b *batchOperations) readTasks(ctx context.Context, batch operators.NewBatch) (tasks store.NewBatchTasks, release func(), err error) {
	open, isSeparate := ctx.Value(taskOpenerKey{}).(taskOpener)
	kinds := 0
	for _, given := range []bool{len(batch.Devices) > 0, len(batch.Tasks) > 0, isSeparate, batch.Select != nil} {
		if given {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return tasks, nil, taskSourceProblem()
	case batch.Select != nil:
		return store.NewBatchTasks{Tags: batch.Select.Tags}, func() {}, nil
	case !isSeparate:
		return store.NewBatchTasks{Tasks: checkedTasks(batch, decodedTasks(batch), b.bodyLimits)}, func() {}, nil
	}
	list, closeList, err := open()
	if err != nil {
		return tasks, nil, err
	}
	endSearch, err := b.startDuplicateSearch(ctx, batch)
	if err != nil {
		closeList()
		return tasks, nil, err
	}
	return store.NewBatchTasks{Tasks: checkedTasks(batch, list, b.bodyLimits)}, func() { endSearch(); closeList() }, nil
}

// taskSourceProblem returns the problem for a batch that does not have exactly one of devices, tasks and select.
func taskSourceProblem() error {
	return invalidProblem("devices, tasks, select: exactly one is required, with at least one entry")
}

// storeTaskLines stores the body of a request. mediaType is the media type of the body, CSV or NDJSON. It returns the tasks in its lines.
func (b *batchOperations) storeTaskLines(ctx huma.Context, mediaType string) (list taskList, release func(), err error) {
	body := b.bodyLimits.newBodyReader(ctx, b.bodyLimits.MaxStreamBytes)
	stored, release, err := b.spool.storeBody(ctx.Context(), body)
	if err != nil {
		return list, nil, body.requestError(err)
	}
	return taskList{linePlace, readLines(stored, mediaType, taskMembers, taskCSVFormat())}, release, nil
}

// extractFields removes the fields of a streamed batch from query, and returns them as a JSON object.
func extractFields(operations huma.API, query url.Values) (fieldsJSON []byte, err error) {
	fields := map[string]json.RawMessage{}
	for name, schema := range streamedBatchFields(operations) {
		if values := query[name]; len(values) > 0 {
			fields[name] = queryValue(schema, values)
			delete(query, name)
		}
	}
	maps.DeleteFunc(fields, func(_ string, value json.RawMessage) bool { return string(value) == "null" })
	return json.Marshal(fields)
}

// queryValue returns the values of one query parameter as JSON. schema is the schema of the parameter. An empty value becomes null.
func queryValue(schema *huma.Schema, values []string) (jsonValue json.RawMessage) {
	value := values[len(values)-1]
	switch {
	case value == "":
		return json.RawMessage("null")
	case schema.Type == huma.TypeArray && !strings.HasPrefix(value, "["):
		list, _ := json.Marshal(strings.Split(strings.Join(values, ","), ",")) // strings always marshal
		return list
	case schema.Type == huma.TypeString || !json.Valid([]byte(value)): // the check against its schema refuses invalid JSON
		return json.RawMessage(quoteJSON(value))
	}
	return json.RawMessage(value)
}

// streamedBatchFields returns the fields of a batch in CSV or NDJSON: the fields of a JSON batch, except those that select devices or tasks.
func streamedBatchFields(operations huma.API) (schemaByField map[string]*huma.Schema) {
	registry := operations.OpenAPI().Components.Schemas
	schema := registry.SchemaFromRef(registry.Schema(reflect.TypeFor[operators.NewBatch](), true, "").Ref)
	fields := maps.Clone(schema.Properties)
	maps.DeleteFunc(fields, func(name string, _ *huma.Schema) bool {
		return name == "devices" || name == "tasks" || name == "select"
	})
	return fields
}

// describeStreamedBatch adds the bodies in CSV and NDJSON to the documentation of the operation.
func describeStreamedBatch(operations huma.API, op *huma.Operation) {
	op.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{operators.TypeCSV: plainTextMediaType(), operators.TypeNDJSON: plainTextMediaType()}}
	fields := streamedBatchFields(operations)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		op.Parameters = append(op.Parameters, &huma.Param{
			Name: name, In: "query", Schema: fields[name],
			Description: "With " + operators.TypeCSV + " and " + operators.TypeNDJSON + " only: the batch's field; objects and lists of them as JSON",
		})
	}
}

// bodyContext is the request for a new batch, with the JSON object of the batch's fields as its body.
type bodyContext struct {
	humaContext
	body  io.Reader
	query url.Values // the other query parameters; nil: the fields were in the body of the client
}

// Unwrap returns the huma context of the request with the body that the client sent.
func (c *bodyContext) Unwrap() huma.Context { return c.humaContext }

// BodyReader returns a reader of the JSON object.
func (c *bodyContext) BodyReader() io.Reader { return c.body }

// URL returns the URL of the request, without the fields that were in its query.
func (c *bodyContext) URL() url.URL {
	address := c.humaContext.URL()
	if c.query != nil {
		address.RawQuery = c.query.Encode()
	}
	return address
}

// Header returns the value of a header of the request. For Content-Type it returns the type of the JSON object, which replaced the body.
func (c *bodyContext) Header(name string) string {
	if name == "Content-Type" {
		return operators.TypeJSON
	}
	return c.humaContext.Header(name)
}

// SetReadDeadline does nothing. If the whole body was read, net/http only watches whether the client disconnects, and a read deadline that
// expires would end the request. If it was not read, longBodyReader sets the deadline.
func (c *bodyContext) SetReadDeadline(time.Time) error { return nil }

// separateJSON separates the list of tasks or devices from a JSON body of more than smallBody bytes, and stores it. The spool limits how
// many of these bodies are stored at once.
func (b *batchOperations) separateJSON(ctx huma.Context, next func(huma.Context)) error {
	body := b.bodyLimits.newBodyReader(ctx, maxBatchBody)
	start := new(bytes.Buffer)
	_, err := io.CopyN(start, body, smallBody)
	if errors.Is(err, io.EOF) {
		useProblemStatus(&bodyContext{ctx, start, nil}, next)
		return nil
	}
	if err != nil {
		return body.requestError(err)
	}
	stored, release, err := b.spool.storeBody(ctx.Context(), io.MultiReader(start, body))
	if err != nil {
		return body.requestError(err)
	}
	defer release()
	l := &bodyList{body: stored}
	fields, err := l.separateListFromBody()
	if err != nil {
		return bodyProblem(err)
	}
	if l.name != "" {
		list := taskOpener(func() (taskList, func(), error) { return taskList{l.name + "[%d]", l.yieldEntries}, func() {}, nil })
		ctx = huma.WithValue(ctx, taskOpenerKey{}, list)
	}
	useProblemStatus(&bodyContext{ctx, bytes.NewReader(fields), nil}, next)
	return nil
}

// bodyProblem returns the problem for a body that is no valid JSON, or err itself if it is a problem.
func bodyProblem(err error) error {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	return newProblem(http.StatusBadRequest, codeInvalidRequest, "body: "+err.Error()).withCause(err)
}

var errLongMember = fmt.Errorf("a field, or an entry of a list, of more than %d bytes", maxMember)

// bodyList is the list of tasks or devices of a long body. The list stays in the storage of the spool.
type bodyList struct {
	name   string // tasks or devices; empty means that there is no list
	offset int64  // offset in bytes at which the list begins
	body   io.ReadSeeker
}

// separateListFromBody returns the body with null in place of its list of tasks or devices. It stores the name and the offset of the list in l.
// An empty list counts as no list.
func (l *bodyList) separateListFromBody() (rest []byte, err error) {
	from := &limitedReader{from: l.body, left: maxMember, limitErr: errLongMember}
	d := json.NewDecoder(from)
	token, err := d.Token()
	if err == nil && token != json.Delim('{') {
		err = errors.New("must be a JSON object")
	}
	rest, seen := []byte{'{'}, map[string]bool{}
	for err == nil && d.More() {
		var name json.Token
		if name, err = d.Token(); err != nil {
			break
		}
		field, _ := name.(string)
		if seen[field] {
			return nil, fmt.Errorf("%s: appears twice", field)
		}
		seen[field] = true
		value := json.RawMessage("null")
		if from.left = maxMember; field == "tasks" || field == "devices" {
			err = l.skipList(d, from, field)
		} else {
			err = d.Decode(&value)
		}
		rest = append(append(rest, quoteJSON(field)+":"...), append(value, ',')...)
		if err == nil && len(rest) > maxMember {
			err = errLongMember
		}
	}
	if err == nil {
		_, err = d.Token()
	}
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return append(bytes.TrimSuffix(rest, []byte{','}), '}'), nil
}

// skipList reads past the list in field, a field of the body. decoder reads the body from input. If the list has an entry, skipList records
// in l the name of the list and the offset of the list in the body.
func (l *bodyList) skipList(decoder *json.Decoder, input *limitedReader, field string) error {
	token, err := decoder.Token()
	if err != nil || token == nil {
		return err
	}
	if token != json.Delim('[') {
		return fmt.Errorf("%s: must be a list", field)
	}
	if offset := decoder.InputOffset() - 1; decoder.More() {
		if l.name != "" {
			return taskSourceProblem()
		}
		l.name, l.offset = field, offset
	}
	for i := 0; decoder.More(); i++ {
		input.left = maxMember
		var entry json.RawMessage
		if err := decoder.Decode(&entry); err != nil {
			return fmt.Errorf("%s[%d]: %w", field, i, err)
		}
	}
	_, err = decoder.Token()
	return err
}

// yieldEntries yields the tasks of the list. Each call reads the list from the beginning.
func (l *bodyList) yieldEntries(yield func(listEntry[operators.NewTask]) bool) {
	from := &limitedReader{from: l.body, left: maxMember, limitErr: errLongMember}
	_, err := l.body.Seek(l.offset, io.SeekStart)
	d := json.NewDecoder(from)
	if err == nil {
		_, err = d.Token()
	}
	for next := (listEntry[operators.NewTask]{}); err != nil || d.More(); next.position++ {
		from.left = maxMember
		var text json.RawMessage
		next.value, next.err = operators.NewTask{}, err
		if next.err == nil {
			next.err = d.Decode(&text)
		}
		if next.err == nil {
			next.err = l.readEntry(text, &next.value)
		}
		if !yield(next) || next.err != nil {
			return
		}
	}
}

// readEntry decodes text, an entry of the list, into task.
func (l *bodyList) readEntry(text []byte, task *operators.NewTask) error {
	if l.name == "tasks" {
		return readLine(text, task, taskMembers)
	}
	if err := json.Unmarshal(text, &task.Device); err != nil {
		return fmt.Errorf("must be a string: %w", err)
	}
	return nil
}

// setFieldLocations corrects the places of errors in humaError. If the client sent the fields in the query, it replaces "body" by "query".
func (c *bodyContext) setFieldLocations(humaError *huma.ErrorModel) {
	for _, detail := range humaError.Errors {
		if field, ok := strings.CutPrefix(detail.Location, "body"); ok && c.query != nil {
			detail.Location = "query" + field
		}
	}
}
