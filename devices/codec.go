package devices

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// DecodeReport decodes and checks one report. The error is an *Error: the
// report is refused whole, and only its ID is returned, when it could be read,
// so that the device can be told which one. A bad entry of results or running is marked Invalid
// instead, keeping its task and token when they are readable.
//
// An empty body is {}. Absent, null, "", {} and [] mean the same in every
// field but output, which is opaque: there only absent and null mean none.
// Names of fields are case-sensitive; of a repeated one the last counts.
// Outputs and attributes share the memory of body.
func DecodeReport(body []byte) (Report, error) {
	report := Report{Accept: true}
	text, err := checkText(body)
	if err != nil || isEmpty(text) {
		return report, err
	}
	if !isObject(text) {
		return Report{}, invalidField("report", "must be an object")
	}
	fields := report.scan(text)
	for _, decode := range []func(reportFields) error{
		report.decodeID, report.decodeAccept, report.decodeAttributes, report.decodeResults, report.decodeRunning,
	} {
		if err := decode(fields); err != nil {
			return Report{ID: report.ID}, err
		}
	}
	return report, nil
}

// checkText returns body as valid, bounded and repaired JSON, or nothing.
func checkText(body []byte) ([]byte, error) {
	if len(body) > MaxBody {
		return nil, &Error{ReasonTooLarge, CodeBodyTooLarge, fmt.Sprintf("body: at most %d bytes", MaxBody)}
	}
	text := bytes.Trim(body, " \t\r\n")
	if len(text) == 0 {
		return nil, nil
	}
	if nestsDeeper(text, MaxDepth) {
		return nil, &Error{ReasonInvalid, CodeTooDeep, fmt.Sprintf("body: nested at most %d deep", MaxDepth)}
	}
	text = repair(text)
	if !json.Valid(text) {
		return nil, &Error{ReasonInvalid, CodeInvalidJSON, "body: " + json.Unmarshal(text, new(json.RawMessage)).Error()}
	}
	return text, nil
}

// reportFields are the fields of a report, undecoded.
type reportFields struct{ id, results, running, accept, attributes []byte }

func (r *Report) scan(text []byte) (fields reportFields) {
	for key, value := range members(text) {
		switch string(key) {
		case "id":
			fields.id = value
		case "results":
			fields.results = value
		case "running":
			fields.running = value
		case "accept":
			fields.accept = value
		case "attributes":
			fields.attributes = value
		default:
			r.Unknown++
		}
	}
	return fields
}

func (r *Report) decodeID(fields reportFields) error {
	if isEmpty(fields.id) {
		return nil
	}
	if !isString(fields.id) {
		return invalidField("id", "must be a string")
	}
	r.ID = unquote(fields.id)
	if utf8.RuneCountInString(r.ID) > MaxReportID {
		return invalidField("id", fmt.Sprintf("at most %d characters", MaxReportID))
	}
	return nil
}

func (r *Report) decodeAccept(fields reportFields) error {
	switch {
	case isEmpty(fields.accept), string(fields.accept) == "true":
		return nil
	case string(fields.accept) == "false":
		r.Accept = false
		return nil
	}
	return invalidField("accept", "must be true or false")
}

func (r *Report) decodeAttributes(fields reportFields) error {
	switch {
	case isEmpty(fields.attributes):
		return nil
	case !isObject(fields.attributes):
		return invalidField("attributes", "must be an object")
	case len(fields.attributes) > MaxAttributes:
		return &Error{ReasonInvalid, CodeAttributesTooLarge, fmt.Sprintf("attributes: at most %d bytes", MaxAttributes)}
	}
	keys := 0
	for range members(fields.attributes) {
		keys++
	}
	if keys > MaxAttributeKeys {
		return &Error{ReasonInvalid, CodeAttributesTooLarge, fmt.Sprintf("attributes: at most %d keys", MaxAttributeKeys)}
	}
	r.Attributes = fields.attributes
	return nil
}

func (r *Report) decodeResults(fields reportFields) error {
	return decodeList(r, &r.Results, "results", fields.results, MaxResults, CodeTooManyResults, decodeResult)
}

func (r *Report) decodeRunning(fields reportFields) error {
	return decodeList(r, &r.Running, "running", fields.running, MaxRunning, CodeTooManyRunning, decodeRunning)
}

// decodeList decodes the entries of a list, and counts their unknown fields.
func decodeList[T any](r *Report, list *[]T, name string, field []byte, most int, tooMany string, decode func(entry []byte) (T, int)) error {
	switch {
	case isEmpty(field):
		return nil
	case !isArray(field):
		return invalidField(name, "must be an array")
	}
	count := 0
	for range elements(field) {
		count++
	}
	if count > most {
		return &Error{ReasonInvalid, tooMany, fmt.Sprintf("%s: at most %d", name, most)}
	}
	*list = make([]T, 0, count)
	for entry := range elements(field) {
		decoded, unknown := decode(entry)
		*list = append(*list, decoded)
		r.Unknown += unknown
	}
	return nil
}

func invalidField(name, rule string) error {
	return &Error{ReasonInvalid, CodeInvalidField, name + ": " + rule}
}

// Encode returns the reply as JSON. Should the payload of its task not be
// JSON, the reply says ReasonUnavailable without the task: what cannot be sent
// whole is not granted.
func (r Reply) Encode() []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		out.Reset()
		r.Task, r.Reason = nil, ReasonUnavailable
		_ = encoder.Encode(r) // the payload was all that can fail
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// EncodeWake returns the message that is pushed to a device so that it reports
// now: a slot is kept for it for hold; with 0 there is another reason to report.
func EncodeWake(hold time.Duration) []byte {
	if hold <= 0 {
		return []byte(`{"reason":"wake"}`)
	}
	return fmt.Appendf(nil, `{"reason":"wake","hold_ms":%d}`, hold.Milliseconds())
}
