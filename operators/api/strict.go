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
	maxValues = 25_000 // of a body that is read whole; a list of tasks or devices that is longer is read as a stream
	maxDepth  = 500
)

// strictJSON refuses what encoding/json would take: a name that comes twice, of which
// the last would count; fields in another case; and bodies of so many values that
// checking them takes much more memory than they have bytes; and text that no database
// column holds. Invalid JSON passes: the decoder refuses it.
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

// next is the next token; false: the end, or no JSON.
func (s *strict) next() (json.Token, bool) {
	token, err := s.decoder.Token()
	if text, ok := token.(string); ok && !storable(text) {
		s.failed = errText
	}
	return token, err == nil && s.failed == nil
}

// names says whose the names of objects are.
type names int

const (
	ours   names = iota // fields
	tags                // the operator's, or facts: each once
	theirs              // of a payload: nobody here reads them
)

// value reads one value.
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
		case of == ours && strings.ToLower(name) != name: // no field has capitals
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

// errText refuses text that no database column holds.
var errText = errors.New("text must be UTF-8 without U+0000")

// storable says whether s can be kept as text.
func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// storableQuery says the same of a query string's names and values.
func storableQuery(raw string) bool {
	text, err := url.QueryUnescape(raw)
	return err == nil && storable(text)
}

// bodyFormat reads the bodies of operators' requests. Huma reads each twice:
// first as any, to check it against its schema. Absent, null and empty mean the
// same: empty fields are taken out of what is checked.
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

// wholeQuery refuses a query of which a part would count for nothing. (Names
// that an operation does not know are refused where its query is read.)
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
