package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
)

const (
	maxValues = 25_000 // maximum number of JSON values in a body that is read into memory; longer lists of tasks or devices are streamed
	maxDepth  = 500
)

// checkStrictJSON refuses JSON that encoding/json would accept:
//   - duplicate names, of which only the last would count;
//   - field names in another case;
//   - bodies with so many values that checking them takes much more memory than the body;
//   - text that no database column can store.
//
// It accepts invalid JSON, which the decoder refuses later.
func checkStrictJSON(data []byte) error {
	if !utf8.Valid(data) {
		return errUnstorableText
	}
	s := strictChecker{decoder: json.NewDecoder(bytes.NewReader(data))}
	s.recordErrorInValue("", 0, apiNames)
	return s.failed
}

// strictChecker is one check of a JSON text. The field values counts the values of the text, and the field failed is the first error.
type strictChecker struct {
	decoder *json.Decoder
	values  int
	failed  error
}

// nextToken returns the next token. ok is false at the end of the input and if the input is not JSON.
func (s *strictChecker) nextToken() (token json.Token, ok bool) {
	token, err := s.decoder.Token()
	if text, ok := token.(string); ok && !isStorable(text) {
		s.failed = errUnstorableText
	}
	return token, err == nil && s.failed == nil
}

// memberNameKind says who defines the member names of a JSON object.
type memberNameKind int

const (
	apiNames      memberNameKind = iota // field names of the API
	operatorNames                       // names of tags or facts, which the operator chooses; each may occur once
	payloadNames                        // names in a payload, which the dispatcher does not read
)

// recordErrorInValue checks the next value, whose name in errors is valuePath, and records the first error.
func (s *strictChecker) recordErrorInValue(valuePath string, depth int, nameKind memberNameKind) {
	if s.values++; s.values > maxValues || depth > maxDepth {
		s.failed = fmt.Errorf("more than %d values or more than %d levels", maxValues, maxDepth)
	}
	token, ok := s.nextToken()
	switch {
	case !ok:
	case token == json.Delim('['):
		for s.failed == nil && s.decoder.More() {
			s.recordErrorInValue(valuePath, depth+1, nameKind)
		}
		_, _ = s.nextToken()
	case token == json.Delim('{'):
		s.recordErrorInMembers(valuePath, depth, nameKind)
		_, _ = s.nextToken()
	}
}

// recordErrorInMembers checks the members of the object that has just begun, whose name in errors is objectPath.
func (s *strictChecker) recordErrorInMembers(objectPath string, depth int, nameKind memberNameKind) {
	seen := map[string]bool{}
	for s.failed == nil && s.decoder.More() {
		token, ok := s.nextToken()
		name, isName := token.(string)
		if !ok || !isName {
			return
		}
		memberPath := strings.TrimPrefix(objectPath+"."+name, ".")
		switch {
		case seen[name] && nameKind != payloadNames:
			s.failed = fmt.Errorf("%s: appears twice", memberPath)
		case nameKind == apiNames && strings.ToLower(name) != name: // no field name of the API has a capital letter
			s.failed = fmt.Errorf("%s: %s", memberPath, unexpectedProperty)
		default:
			seen[name] = true
			s.recordErrorInValue(memberPath, depth+1, nameKind.kindOfNamesInMember(name))
		}
	}
}

// kindOfNamesInMember returns who defines the names in the value of member, whose own name is of the kind n.
func (n memberNameKind) kindOfNamesInMember(member string) memberNameKind {
	switch {
	case n == apiNames && member == "payload":
		return payloadNames
	case n == apiNames && slices.Contains([]string{"tags", "facts", "metadata", "set"}, member): // set: the tags that retag sets
		return operatorNames
	}
	return n
}

// errUnstorableText is the error for text that no database column can store.
var errUnstorableText = errors.New("text must be UTF-8 without U+0000")

func isStorable(text string) bool { return utf8.ValidString(text) && strings.IndexByte(text, 0) < 0 }

// isStorableQuery reports whether the names and values of rawQuery, a query string, are storable.
func isStorableQuery(rawQuery string) bool {
	text, err := url.QueryUnescape(rawQuery)
	return err == nil && isStorable(text)
}

// bodyFormat returns the format with which huma reads the bodies of operators' requests. Huma decodes each body twice: the first time into
// a value of the type any, to check it against the schema. Absent, null and empty fields mean the same, so empty fields are removed before
// that check.
func bodyFormat() huma.Format {
	format := huma.DefaultJSONFormat
	format.Unmarshal = func(data []byte, v any) error {
		decoded, isFirstPass := v.(*any)
		if isFirstPass {
			if err := checkStrictJSON(data); err != nil {
				return err
			}
		}
		if err := json.Unmarshal(data, v); err != nil || !isFirstPass {
			return err
		}
		fields, _ := (*decoded).(map[string]any)
		maps.DeleteFunc(fields, func(_ string, value any) bool { return value == "" })
		return nil
	}
	return format
}

// refuseIgnoredQuery refuses a request if a part of its query string would be ignored. (Unknown names are refused
// where the query of an operation is read.)
func refuseIgnoredQuery(ctx huma.Context, next func(huma.Context)) error {
	requestURL := ctx.URL()
	if err := checkQuery(ctx.Operation().Parameters, requestURL.RawQuery); err != nil {
		return err
	}
	next(ctx)
	return nil
}

// checkQuery returns a problem if a part of rawQuery, a query string, would be ignored by an operation with these parameters.
func checkQuery(params []*huma.Param, rawQuery string) error {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return newProblem(http.StatusBadRequest, codeInvalidRequest, "query: "+err.Error())
	}
	for _, p := range params {
		values := query[p.Name]
		switch {
		case p.In != "query" || p.Schema.Type == huma.TypeArray:
		case len(values) > 1:
			return invalidProblem("query.%s: given %d times, takes one value", p.Name, len(values))
		case len(values) == 1 && values[0] == "" && p.Schema.Type == huma.TypeBoolean:
			return invalidProblem("query.%s: must be true or false", p.Name)
		}
	}
	return nil
}
