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

// Facts contains the values of one start or take to which policies can refer.
type Facts struct {
	Device, Pool, Kind string
	Batch              int64
	Tags               map[string]string // set by the operator
	Attributes         json.RawMessage   // reported by the device: a JSON object, or empty
	Payload            json.RawMessage   // any JSON, or empty
	Facts              map[string]string // facts of a take: the only values that rules of CompileSet use
}

// Subject is what a rule counts separately, for example one account, or one model at one site. The policy of the rule names the fields of a start or take whose values
// identify the subject.
type Subject struct {
	digest string // hash of the values, so that Redis stores no payload
	// Label is a text for display, at most 200 bytes. It shows a value of a payload or of facts only as a
	// digest, unless the policy reveals it.
	Label string
}

const maxLabel = 200

// newSubject returns the subject that the values of fields in facts identify. All starts without a value of a field are counted together, so
// that no start can escape a limit by leaving out the field. If revealValues is true, the label shows all values.
func newSubject(fields []string, facts Facts, revealValues bool) Subject {
	values, labels := make([]value, len(fields)), make([]string, len(fields))
	for i, field := range fields {
		text, found := facts.value(field)
		values[i], labels[i] = value{text, found}, subjectFieldLabel(field, text, found, revealValues)
	}
	sum := hashValues(values)
	text := strings.Join(labels, " ")
	if len(text) > maxLabel {
		text = strings.ToValidUTF8(text[:maxLabel-3], "") + "..."
	}
	return Subject{digest: sum.String(), Label: text}
}

type value struct {
	text  string
	found bool
}

type digest [16]byte

func (d digest) String() string { return base64.RawURLEncoding.EncodeToString(d[:]) }

func hashValues(values []value) digest {
	sum := sha256.New()
	for _, v := range values {
		// The hash includes the length of each value, so that different lists never have the same input.
		_, _ = fmt.Fprintf(sum, "%t:%d:%s", v.found, len(v.text), v.text)
	}
	return digest(sum.Sum(nil)[:len(digest{})])
}

// subjectFieldLabel returns the text for one field in the label of a subject. found is false if the field has no value. If revealValue is false,
// a value of a payload or of facts is replaced by a digest.
func subjectFieldLabel(field, value string, found, revealValue bool) string {
	switch {
	case !found:
		return field + " (none)"
	case (strings.HasPrefix(field, "payload") || strings.HasPrefix(field, policy.AllFacts)) && !revealValue:
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

// value returns the value of the field that a policy names, for example tags.account.
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
		return formatCanonical(f.Payload)
	case policy.AllFacts:
		text, err := json.Marshal(f.Facts) // Marshal sorts the facts by name
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
		return lookupField(f.Payload, name)
	}
	return lookupField(f.Attributes, name)
}

// formatCanonical formats the JSON document raw so that equal documents have equal texts. ok is false if raw is null or invalid JSON.
func formatCanonical(raw json.RawMessage) (formatted string, ok bool) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var document any
	if decoder.Decode(&document) != nil || document == nil {
		return "", false
	}
	text, err := json.Marshal(document)
	return string(text), err == nil
}

// lookupField returns the value of a field in the JSON document raw. path is one name, or several names joined with dots. A JSON string keeps
// its quotes, so that it differs from other JSON values.
func lookupField(raw json.RawMessage, path string) (value string, found bool) {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return "", false
	}
	if value, ok := object[path]; ok {
		return formatCanonical(value)
	}
	for i, c := range path {
		if inner, ok := object[path[:i]]; ok && c == '.' {
			return lookupField(inner, path[i+1:])
		}
	}
	return "", false
}
