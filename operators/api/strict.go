package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
)

const (
	maxValues = 25_000 // maximum number of JSON values in a body that is read into memory; longer lists of tasks or devices are streamed
	maxDepth  = 500
)

// strictJSON refuses JSON that encoding/json would accept: duplicate names, of which only the last would count; field
// names in another case; bodies with so many values that checking them takes much more memory than the body; and text that
// no database column can store. It accepts invalid JSON, which the decoder refuses later.
func strictJSON(data []byte) error {
	if !utf8.Valid(data) {
		return errText
	}
	s := strict{decoder: json.NewDecoder(bytes.NewReader(data))}
	s.value("", 0, ours)
	return s.failed
}

type strict struct {
	decoder *json.Decoder
	values  int
	failed  error
}

// next returns the next token. ok is false at the end of the input and if the input is not JSON.
func (s *strict) next() (json.Token, bool) {
	token, err := s.decoder.Token()
	if text, ok := token.(string); ok && !storable(text) {
		s.failed = errText
	}
	return token, err == nil && s.failed == nil
}

// names is the kind of the member names of an object: who defines them.
type names int

const (
	ours   names = iota // field names of the API
	tags                // names of tags or facts, which the operator chooses; each may occur once
	theirs              // names in a payload, which the dispatcher does not read
)

// value checks one value.
func (s *strict) value(path string, depth int, of names) {
	if s.values++; s.values > maxValues || depth > maxDepth {
		s.failed = fmt.Errorf("more than %d values, or %d levels", maxValues, maxDepth)
	}
	token, ok := s.next()
	switch {
	case !ok:
	case token == json.Delim('['):
		for s.failed == nil && s.decoder.More() {
			s.value(path, depth+1, of)
		}
		_, _ = s.next()
	case token == json.Delim('{'):
		s.members(path, depth, of)
		_, _ = s.next()
	}
}

func (s *strict) members(path string, depth int, of names) {
	seen := map[string]bool{}
	for s.failed == nil && s.decoder.More() {
		token, ok := s.next()
		name, isName := token.(string)
		if !ok || !isName {
			return
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		switch {
		case seen[name] && of != theirs:
			s.failed = fmt.Errorf("%s: stands there twice", at)
		case of == ours && strings.ToLower(name) != name: // no field name of the API has a capital letter
			s.failed = fmt.Errorf("%s: %s", at, unexpectedProperty)
		default:
			seen[name] = true
			s.value(at, depth+1, of.below(name))
		}
	}
}

func (n names) below(name string) names {
	switch {
	case n == ours && name == "payload":
		return theirs
	case n == ours && (name == "tags" || name == "facts"):
		return tags
	}
	return n
}

// errText is the error for text that no database column can store.
var errText = errors.New("text must be UTF-8 without U+0000")

// storable reports whether a database column can store s as text.
func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// storableQuery reports whether the names and values of a query string are storable.
func storableQuery(raw string) bool {
	text, err := url.QueryUnescape(raw)
	return err == nil && storable(text)
}

// bodyFormat returns the format with which huma reads the bodies of operators' requests. Huma decodes each body twice: the
// first time into any, to check it against the schema. Absent, null and empty fields mean the same, so empty fields are
// removed before that check.
func bodyFormat() huma.Format {
	format := huma.DefaultJSONFormat
	format.Unmarshal = func(data []byte, v any) error {
		seen, first := v.(*any)
		if first {
			if err := strictJSON(data); err != nil {
				return err
			}
		}
		if err := json.Unmarshal(data, v); err != nil || !first {
			return err
		}
		fields, _ := (*seen).(map[string]any)
		maps.DeleteFunc(fields, func(_ string, value any) bool { return value == "" })
		return nil
	}
	return format
}

// wholeQuery refuses a query if a part of it would be ignored. (Unknown names are refused where the query of an operation
// is read.)
func wholeQuery(ctx huma.Context, next func(huma.Context)) error {
	asked := ctx.URL()
	if err := checkQuery(ctx.Operation().Parameters, asked.RawQuery); err != nil {
		return err
	}
	next(ctx)
	return nil
}

func checkQuery(known []*huma.Param, raw string) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return problem(http.StatusBadRequest, codeInvalidRequest, "query: "+err.Error())
	}
	for _, p := range known {
		values := query[p.Name]
		switch {
		case p.In != "query" || p.Schema.Type == huma.TypeArray:
		case len(values) > 1:
			return invalid("query.%s: given %d times, takes one value", p.Name, len(values))
		case len(values) == 1 && values[0] == "" && p.Schema.Type == huma.TypeBoolean:
			return invalid("query.%s: true or false", p.Name)
		}
	}
	return nil
}
