package api

import (
	"bytes"
	"encoding/json"
	"strings"
)

// wholeOutput is the field that stands for an output which is no object.
const wholeOutput = "."

// outputMember is a member of an output that is no object itself, or an empty one. The names
// of the objects around it stand before its own, with dots between.
type outputMember struct {
	name  string
	value json.RawMessage
}

// flattened are the members of an output, in their order.
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
	_, _ = d.Token() // what is kept is JSON
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

// picker finds fields in an output.
type picker struct {
	output  json.RawMessage
	members map[string]json.RawMessage // nil: it is no object
}

func pickerOf(output json.RawMessage) picker {
	p := picker{output: bytes.TrimSpace(output)}
	if len(p.output) > 0 && p.output[0] == '{' {
		_ = json.Unmarshal(p.output, &p.members) // what is kept is JSON
	}
	return p
}

// pick returns a field; nil: the output has none. A member whose own name has the dots comes first.
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

// inside is pick in a member, which has no field for itself.
func (p picker) inside(name string) json.RawMessage {
	if p.members == nil {
		return nil
	}
	return p.pick(name)
}

// chosen is an object of those of the fields that an output has; nil: there is no output.
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
		key, _ := json.Marshal(name) // a string cannot fail
		if text.Len() > 0 {
			text.WriteByte(',')
		}
		text.Write(key)
		text.WriteByte(':')
		text.Write(value)
	}
	return json.RawMessage("{" + text.String() + "}")
}

// typeOf names the type of a value.
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
