package devices

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// DecodeReport decodes and checks one report. If the whole report is refused, the error is an *Error, and only the ID of the returned Report
// is valid, so that the reply can name it. An invalid entry of the list results or running gets a code in its field Invalid, and keeps its task
// and token if they are readable.
//
// An empty body means {}. In every field except output, the values null, "", {} and [] mean the same as an absent field. In output, only
// null does. Field names are case-sensitive. If a field is repeated, the last value counts.
func DecodeReport(body []byte) (Report, error) {
	report := Report{Accept: true}
	text, err := CleanBody(body)
	if err != nil || len(text) == 0 {
		return report, err
	}
	var fields members
	err = json.Unmarshal(text, &fields)
	switch _, isTypeError := errors.AsType[*json.UnmarshalTypeError](err); {
	case err != nil && !isTypeError:
		return report, &Error{ReasonInvalid, CodeInvalidJSON, "body: " + err.Error()}
	case isEmptyJSON(text):
		return report, nil
	case fields == nil:
		return Report{}, invalidFieldError("report", "must be an object")
	}
	for _, decode := range []func(members) error{
		report.decodeID, report.decodeAccept, report.decodeAttributes, report.decodeResults, report.decodeRunning,
	} {
		if err := decode(fields); err != nil {
			return Report{ID: report.ID}, err
		}
	}
	report.UnknownFields += len(fields)
	return report, nil
}

// CleanBody returns the JSON text in body without surrounding white space, or nil if body is empty. It replaces characters that cannot be
// stored with U+FFFD. It returns an error if body is too long or nested too deep.
func CleanBody(body []byte) (cleaned []byte, err error) {
	if len(body) > MaxBody {
		return nil, &Error{ReasonTooLarge, CodeBodyTooLarge, fmt.Sprintf("body: at most %d bytes", MaxBody)}
	}
	cleaned = bytes.Trim(body, " \t\r\n")
	if len(cleaned) == 0 {
		return nil, nil
	}
	if isNestedDeeper(cleaned, MaxDepth) {
		return nil, &Error{ReasonInvalid, CodeTooDeep, fmt.Sprintf("body: at most %d levels of nesting", MaxDepth)}
	}
	return replaceUnstorable(cleaned), nil
}

// members holds the members of a JSON object. The decoders remove each member that they know, so that the unknown fields are left.
type members map[string]json.RawMessage

func parseMembers(value []byte) (parsed members, ok bool) {
	err := json.Unmarshal(value, &parsed)
	return parsed, err == nil && parsed != nil
}

func (m members) removeMember(name string) (removed []byte) {
	value := m[name]
	delete(m, name)
	return value
}

// isEmptyJSON reports whether a JSON value counts as absent: it is missing, null, "", {} or [].
func isEmptyJSON(value []byte) bool {
	switch {
	case len(value) == 0 || string(value) == "null" || string(value) == `""`:
		return true
	case value[0] != '{' && value[0] != '[':
		return false
	}
	return len(bytes.TrimSpace(value[1:])) == 1
}

func parseString(value []byte) (text string, ok bool) {
	err := json.Unmarshal(value, &text)
	return text, err == nil && value[0] == '"'
}

func (r *Report) decodeID(fields members) error {
	id := fields.removeMember("id")
	if isEmptyJSON(id) {
		return nil
	}
	text, ok := parseString(id)
	if !ok {
		return invalidFieldError("id", "must be a string")
	}
	r.ID = text
	if utf8.RuneCountInString(r.ID) > MaxReportID {
		return invalidFieldError("id", fmt.Sprintf("at most %d characters", MaxReportID))
	}
	return nil
}

func (r *Report) decodeAccept(fields members) error {
	accept := fields.removeMember("accept")
	r.Accept = string(accept) != "false"
	if !r.Accept || isEmptyJSON(accept) || string(accept) == "true" {
		return nil
	}
	return invalidFieldError("accept", "must be true or false")
}

func (r *Report) decodeAttributes(fields members) error {
	text := fields.removeMember("attributes")
	if isEmptyJSON(text) {
		return nil
	}
	all, ok := parseMembers(text)
	switch {
	case !ok:
		return invalidFieldError("attributes", "must be an object")
	case len(text) > MaxAttributes:
		return &Error{ReasonInvalid, CodeAttributesTooLarge, fmt.Sprintf("attributes: at most %d bytes", MaxAttributes)}
	case len(all) > MaxAttributeKeys:
		return &Error{ReasonInvalid, CodeAttributesTooLarge, fmt.Sprintf("attributes: at most %d keys", MaxAttributeKeys)}
	}
	r.Attributes = text
	return nil
}

func (r *Report) decodeResults(fields members) (err error) {
	r.Results, err = decodeList(r, fields, "results", MaxResults, CodeTooManyResults, decodeResult)
	return err
}

func (r *Report) decodeRunning(fields members) (err error) {
	r.Running, err = decodeList(r, fields, "running", MaxRunning, CodeTooManyRunning, decodeRunning)
	return err
}

// decodeList decodes each entry of the list in the member with this name, and counts the unknown fields of the entries. A list with more than
// maxEntries entries is an error with the code tooManyCode.
func decodeList[T any](report *Report, fields members, name string, maxEntries int, tooManyCode string, decode func(members) T) ([]T, error) {
	field := fields.removeMember(name)
	if isEmptyJSON(field) {
		return nil, nil
	}
	var entries []json.RawMessage
	switch err := json.Unmarshal(field, &entries); {
	case err != nil:
		return nil, invalidFieldError(name, "must be an array")
	case len(entries) > maxEntries:
		return nil, &Error{ReasonInvalid, tooManyCode, fmt.Sprintf("%s: at most %d entries", name, maxEntries)}
	}
	list := make([]T, len(entries))
	for i, entry := range entries {
		entryMembers, _ := parseMembers(entry)
		list[i] = decode(entryMembers)
		report.UnknownFields += len(entryMembers)
	}
	return list, nil
}

func invalidFieldError(field, rule string) error {
	return &Error{ReasonInvalid, CodeInvalidField, field + ": " + rule}
}

// Encode returns the reply as JSON. If the payload of the task is not valid JSON, the encoded reply has no task and the reason
// ReasonUnavailable.
func (r Reply) Encode() []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		out.Reset()
		r.Task, r.Reason = nil, ReasonUnavailable
		_ = encoder.Encode(r) // Only the payload can fail.
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// EncodeWake returns the message that asks a device to report now. hold is the time for which a slot is reserved for the device. If hold is
// 0, no slot is reserved, and the device is asked for another reason.
func EncodeWake(hold time.Duration) []byte {
	if hold <= 0 {
		return []byte(`{"reason":"wake"}`)
	}
	return fmt.Appendf(nil, `{"reason":"wake","hold_ms":%d}`, hold.Milliseconds())
}
