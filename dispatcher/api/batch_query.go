package api

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/operators"
)

// streamFields are the fields of a streamed batch: those of a JSON one but for
// what its lines say.
func streamFields(operations huma.API) map[string]*huma.Schema {
	fields := maps.Clone(schemaOf[operators.NewBatch](operations).Properties)
	maps.DeleteFunc(fields, func(name string, _ *huma.Schema) bool {
		return name == "devices" || name == "tasks" || name == "select"
	})
	return fields
}

func schemaOf[T any](operations huma.API) *huma.Schema {
	registry := operations.OpenAPI().Components.Schemas
	schema := registry.Schema(reflect.TypeFor[T](), true, "")
	if schema.Ref != "" {
		schema = registry.SchemaFromRef(schema.Ref)
	}
	return schema
}

// describeStreams adds the streamed forms of a batch to its operation.
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

// queryBatch reads a batch's fields from the query, by the schema that its
// JSON form has.
func queryBatch(operations huma.API, query url.Values) (post operators.NewBatch, mode operators.QueueMode, err error) {
	fields, modes := streamFields(operations), schemaOf[operators.QueueMode](operations).Properties
	inBatch, inMode := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	for name, values := range query {
		if schema := fields[name]; schema != nil {
			inBatch[name] = queryValue(schema, values)
		} else if schema := modes[name]; schema != nil {
			inMode[name] = queryValue(schema, values)
		} else {
			return post, mode, problem(http.StatusBadRequest, codeUnknownField, "query."+name+": no such field")
		}
	}
	if err := fill(operations, inBatch, &post); err != nil {
		return post, mode, err
	}
	return post, mode, fill(operations, inMode, &mode)
}

// queryValue is a value of the query as JSON.
func queryValue(schema *huma.Schema, values []string) json.RawMessage {
	value := values[len(values)-1]
	switch {
	case value == "":
		return json.RawMessage("null")
	case schema.Type == huma.TypeString:
		text, _ := json.Marshal(value) // a string cannot fail
		return text
	case schema.Type == huma.TypeArray && !strings.HasPrefix(value, "["):
		text, _ := json.Marshal(strings.Split(strings.Join(values, ","), ","))
		return text
	case !json.Valid([]byte(value)):
		text, _ := json.Marshal(value) // its schema will refuse it
		return text
	}
	return json.RawMessage(value)
}

// fill checks the fields against the schema of T and reads them.
func fill[T any](operations huma.API, fields map[string]json.RawMessage, into *T) error {
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
		return fromHuma(&huma.ErrorModel{Status: http.StatusUnprocessableEntity, Errors: details(found.Errors)})
	}
	return json.Unmarshal(text, into)
}

func details(errs []error) []*huma.ErrorDetail {
	list := make([]*huma.ErrorDetail, len(errs))
	for i, err := range errs {
		if !errors.As(err, &list[i]) {
			list[i] = &huma.ErrorDetail{Message: err.Error()}
		}
	}
	return list
}
