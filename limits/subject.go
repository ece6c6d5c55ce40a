package limits

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/fleetslots/dispatcher/limits/policy"
)

// Facts are what policies may ask about one start.
type Facts struct {
	Device, Pool, Kind string
	Batch              int64
	Tags               map[string]string // the operator's
	Attributes         json.RawMessage   // the device's: an object, or nothing
	Payload            json.RawMessage   // any JSON, or nothing
	Facts              map[string]string // of a take, for the rules of CompileSet: their only ones
}

// Subject is what a rule counts on its own.
type Subject struct {
	digest string // of its values: Redis sees no payload
	Label  string // for people: values of payloads and facts only as a digest, unless the policy reveals them; at most 200 bytes
}

const maxLabel = 200

// subjectOf is the subject of the fields, whose absent values are a value too: the
// starts that lack a field are counted together, and escape nothing.
func subjectOf(fields []string, f Facts, reveal bool) Subject {
	values, labels := make([]value, len(fields)), make([]string, len(fields))
	for i, field := range fields {
		text, found := f.value(field)
		values[i], labels[i] = value{text, found}, label(field, text, found, reveal)
	}
	sum := digestOf(values)
	text := strings.Join(labels, " ")
	if len(text) > maxLabel {
		text = strings.ToValidUTF8(text[:maxLabel-3], "") + "..."
	}
	return Subject{digest: sum.String(), Label: text}
}

// value of a field; absent is one, too.
type value struct {
	text  string
	found bool
}

// digest tells lists of values apart.
type digest [16]byte

// String is as keys have it.
func (d digest) String() string { return base64.RawURLEncoding.EncodeToString(d[:]) }

func digestOf(values []value) digest {
	sum := sha256.New()
	for _, v := range values {
		// With its length, so that no two lists look the same.
		_, _ = fmt.Fprintf(sum, "%t:%d:%s", v.found, len(v.text), v.text)
	}
	return digest(sum.Sum(nil)[:len(digest{})])
}

func label(field, value string, found, reveal bool) string {
	switch {
	case !found:
		return field + " (none)"
	case (strings.HasPrefix(field, "payload") || strings.HasPrefix(field, policy.AllFacts)) && !reveal:
		sum := sha256.Sum256([]byte(value))
		return field + "#" + hex.EncodeToString(sum[:4])
	}
	return field + "=" + strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, value)
}

func (f Facts) value(field string) (value string, found bool) {
	switch field {
	case "device":
		return f.Device, true
	case "pool":
		return f.Pool, true
	case "kind":
		return f.Kind, true
	case "batch":
		return strconv.FormatInt(f.Batch, 10), true
	case "payload":
		return canonical(f.Payload)
	case policy.AllFacts:
		text, err := json.Marshal(f.Facts) // sorted by their names
		return string(text), err == nil
	}
	group, name, _ := strings.Cut(field, ".")
	switch group {
	case "tags":
		value, found = f.Tags[name]
		return value, found
	case policy.AllFacts:
		value, found = f.Facts[name]
		return value, found
	case "payload":
		return lookup(f.Payload, name)
	}
	return lookup(f.Attributes, name)
}

// canonical writes JSON so that equal documents are equal texts; null is none.
func canonical(raw json.RawMessage) (string, bool) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var document any
	if decoder.Decode(&document) != nil || document == nil {
		return "", false
	}
	text, err := json.Marshal(document)
	return string(text), err == nil
}

// lookup finds a value by its name, or by a path of names joined by dots. Text
// is told apart from other JSON by its quotes.
func lookup(raw json.RawMessage, path string) (string, bool) {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return "", false
	}
	if value, ok := object[path]; ok {
		return canonical(value)
	}
	for i, c := range path {
		if inner, ok := object[path[:i]]; ok && c == '.' {
			return lookup(inner, path[i+1:])
		}
	}
	return "", false
}
