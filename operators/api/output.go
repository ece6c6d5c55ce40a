package api

import (
	"bytes"
	"encoding/json"
	"strings"
)

// rootField is the field name for a complete output that is not an object.
const rootField = "."

// outputMember is one member of a task's output, after nested objects were flattened. Its value is not an object, or
// is an empty object. Its name is prefixed with the names of the enclosing objects, separated by dots.
type outputMember struct {
	name  string
	value json.RawMessage
}

// flattenOutput returns the members of an output, in their order.
func flattenOutput(output json.RawMessage) []outputMember {
	if output = bytes.TrimSpace(output); len(output) == 0 {
		return nil
	}
	if output[0] != '{' {
		return []outputMember{{rootField, output}}
	}
	return appendMembers(nil, "", output)
}

// appendMembers appends to members the members of object, with prefix before their names.
func appendMembers(members []outputMember, prefix string, object json.RawMessage) []outputMember {
	d := json.NewDecoder(bytes.NewReader(object))
	_, _ = d.Token() // stored outputs are valid JSON
	for d.More() {
		token, _ := d.Token()
		name, _ := token.(string)
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return members
		}
		if value[0] == '{' && value[1] != '}' {
			members = appendMembers(members, prefix+name+".", value)
			continue
		}
		members = append(members, outputMember{prefix + name, value})
	}
	return members
}

// fieldFinder finds the fields of a task's output by name.
type fieldFinder struct {
	output  json.RawMessage
	members map[string]json.RawMessage // nil means that the output is not an object
}

func newFieldFinder(output json.RawMessage) fieldFinder {
	p := fieldFinder{output: bytes.TrimSpace(output)}
	if len(p.output) > 0 && p.output[0] == '{' {
		_ = json.Unmarshal(p.output, &p.members) // stored outputs are valid JSON
	}
	return p
}

// find returns the value of a field, or nil if the output does not have the field. A member whose own name contains the
// dots has precedence over nested members.
func (p fieldFinder) find(name string) json.RawMessage {
	if p.members == nil {
		if name == rootField && len(p.output) > 0 {
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
		if inner := newFieldFinder(p.members[name[:i]]); inner.members != nil { // rootField has no meaning inside a member
			if value := inner.find(name[i+1:]); value != nil {
				return value
			}
		}
	}
	return nil
}

// selectFields returns an object with only the named fields of an output. If fields is empty or there is no output, it returns
// output itself.
func selectFields(output json.RawMessage, fields []string) json.RawMessage {
	if len(fields) == 0 || output == nil {
		return output
	}
	from := newFieldFinder(output)
	var text strings.Builder
	for _, name := range fields {
		value := from.find(name)
		if value == nil {
			continue
		}
		if text.Len() > 0 {
			text.WriteByte(',')
		}
		text.WriteString(quoteJSON(name) + ":" + string(value))
	}
	return json.RawMessage("{" + text.String() + "}")
}

func jsonType(value json.RawMessage) (typeName string) {
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
