package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
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
	tags                // the operator's, each once
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
	case n == ours && name == "tags":
		return tags
	}
	return n
}
