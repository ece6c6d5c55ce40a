package api

import (
	"bytes"
	"encoding/json"
	"strings"
)

// wholeOutput is the field name for a complete output that is not an object.
const wholeOutput = "."

// outputMember is a member of an output whose value is not an object, or is an empty object. Its name is prefixed with the
// names of the enclosing objects, separated by dots.
type outputMember struct {
	name  string
	value json.RawMessage
}

// flattened returns the members of an output, in their order.
func flattened(output json.RawMessage) []outputMember {
	if output = bytes.TrimSpace(output); len(output) == 0 {
		return nil
	}
	if output[0] != '{' {
		return []outputMember{{wholeOutput, output}}
	}
	return flatten(nil, "", output)
}

func flatten(list []outputMember, before string, object json.RawMessage) []outputMember {
	d := json.NewDecoder(bytes.NewReader(object))
	_, _ = d.Token() // stored outputs are valid JSON
	for d.More() {
		token, _ := d.Token()
		name, _ := token.(string)
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return list
		}
		if value[0] == '{' && value[1] != '}' {
			list = flatten(list, before+name+".", value)
			continue
		}
		list = append(list, outputMember{before + name, value})
	}
	return list
}

// picker finds fields by name in an output.
type picker struct {
	output  json.RawMessage
	members map[string]json.RawMessage // nil means that the output is not an object
}

func pickerOf(output json.RawMessage) picker {
	p := picker{output: bytes.TrimSpace(output)}
	if len(p.output) > 0 && p.output[0] == '{' {
		_ = json.Unmarshal(p.output, &p.members) // stored outputs are valid JSON
	}
	return p
}

// pick returns the value of a field, or nil if the output does not have the field. A member whose own name contains the
// dots has precedence over nested members.
func (p picker) pick(name string) json.RawMessage {
	if p.members == nil {
		if name == wholeOutput && len(p.output) > 0 {
			return p.output
		}
		return nil
	}
	if value, ok := p.members[name]; ok {
		return value
	}
	for i := range name {
		if name[i] != '.' {
			continue
		}
		if inner, ok := p.members[name[:i]]; ok {
			if value := pickerOf(inner).inside(name[i+1:]); value != nil {
				return value
			}
		}
	}
	return nil
}

// inside is pick for a nested member, where the name wholeOutput has no meaning.
func (p picker) inside(name string) json.RawMessage {
	if p.members == nil {
		return nil
	}
	return p.pick(name)
}

// chosen returns an object with only the named fields of an output. If fields is empty or there is no output, it returns
// output itself.
func chosen(output json.RawMessage, fields []string) json.RawMessage {
	if len(fields) == 0 || output == nil {
		return output
	}
	from := pickerOf(output)
	var text strings.Builder
	for _, name := range fields {
		value := from.pick(name)
		if value == nil {
			continue
		}
		key, _ := json.Marshal(name) // a string always marshals
		if text.Len() > 0 {
			text.WriteByte(',')
		}
		text.Write(key)
		text.WriteByte(':')
		text.Write(value)
	}
	return json.RawMessage("{" + text.String() + "}")
}

// typeOf returns the type name of a JSON value.
func typeOf(value json.RawMessage) string {
	switch value[0] {
	case '"':
		return "text"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	case '[':
		return "list"
	case '{':
		return "object"
	}
	return "number"
}
