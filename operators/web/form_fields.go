package web

import (
	"encoding/json"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/windows"
	"github.com/fleetslots/dispatcher/operators"
)

// formField is an input of a form that sets one field of an object T of the API.
type formField[T any] struct {
	input, label string // name of the input, and its label for messages
	name         string // name of the field in the API
	parse        func(text string) (any, error)
	show         func(T) string // the text of the input for an object; empty means the default of the API
}

type formFields[T any] []formField[T]

// poolFields returns the inputs of the forms of pools.
func poolFields() formFields[operators.Pool] {
	return formFields[operators.Pool]{
		{"capacity", "Capacity", "capacity", parseInteger, func(p operators.Pool) string { return strconv.Itoa(p.Capacity) }},
		{"lease", "Lease", "lease_ms", parseMS, func(p operators.Pool) string { return durationInputText(p.LeaseMS) }},
		{"callers", "Callers", "callers", parseInteger, func(p operators.Pool) string { return pointerInputText(p.Callers, strconv.Itoa) }},
		{"longest", "Longest lease", "longest_lease_ms", parseMS, func(p operators.Pool) string { return durationInputText(p.LongestLeaseMS) }},
		{"sleep", "Longest sleep", "longest_sleep_ms", parseMS, func(p operators.Pool) string { return durationInputText(p.LongestSleepMS) }},
		{"windows", "Windows", "windows", parseWindows, func(p operators.Pool) string { return formatWindows(p.Windows) }},
	}
}

// batchChangeFields returns the inputs of the form that changes a batch. Each sets a field of operators.BatchPatch.
func batchChangeFields() formFields[operators.NewBatch] {
	return formFields[operators.NewBatch]{
		{"weight", "Weight", "weight", parseInteger, func(b operators.NewBatch) string { return strconv.Itoa(b.Weight) }},
		{"priority", "Priority", "priority", parseInteger, func(b operators.NewBatch) string { return strconv.Itoa(b.Priority) }},
		{"attempts", "Attempts", "max_attempts", parseInteger, func(b operators.NewBatch) string { return strconv.Itoa(b.MaxAttempts) }},
		{"lane", "Lane", "lane", parseText, func(b operators.NewBatch) string { return b.Lane }},
		{"not_after", "Not after", "not_after", toRFC3339, func(b operators.NewBatch) string { return pointerInputText(b.NotAfter, dateInputText) }},
		{"max_wait", "Longest wait", "max_wait_ms", parseMS, func(b operators.NewBatch) string { return durationInputText(b.MaxWaitMS) }},
		{"windows", "Windows", "windows", parseWindows, func(b operators.NewBatch) string { return formatWindows(b.Windows) }},
	}
}

// batchCreationFields returns the inputs of the form for a new batch, except for finish_inside, the tasks, the limits and the abort rule.
func batchCreationFields() formFields[operators.NewBatch] {
	return append(batchChangeFields(), formFields[operators.NewBatch]{
		{"name", "Name", "name", parseText, func(b operators.NewBatch) string { return b.Name }},
		{"pool", "Pool", "pool", parseText, func(b operators.NewBatch) string { return b.Pool }},
		{"kind", "Kind", "kind", parseText, func(b operators.NewBatch) string { return b.Kind }},
		{"payload", "Payload", "payload", parseJSON, func(b operators.NewBatch) string { return indentJSON(b.Payload) }},
		{"not_before", "Not before", "not_before", toRFC3339, func(b operators.NewBatch) string { return pointerInputText(b.NotBefore, dateInputText) }},
		{"backoff", "Wait before another attempt", "retry_backoff_ms", parseMS, func(b operators.NewBatch) string { return pointerInputText(b.RetryBackoffMS, formatMS) }},
		{"retry_on", "Retry on", "retry_on", func(text string) (any, error) { return []string{text}, nil }, func(b operators.NewBatch) string { return onlyEntry(b.RetryOn) }},
		{"on_lost", "When a lease runs out", "on_lost", parseText, func(b operators.NewBatch) string { return b.OnLost }},
		{"lease", "Lease", "lease_ms", parseMS, func(b operators.NewBatch) string { return durationInputText(b.LeaseMS) }},
		{"max_run", "Longest run", "max_run_ms", parseMS, func(b operators.NewBatch) string { return durationInputText(b.MaxRunMS) }},
		{"duplicates", "Equal tasks", "duplicates", parseText, func(b operators.NewBatch) string { return b.Duplicates }},
	}...)
}

func (f formFields[T]) textsOfInputs(object T) url.Values {
	values := url.Values{}
	for _, field := range f {
		values.Set(field.input, field.show(object))
	}
	return values
}

// enteredFields returns the fields whose inputs are filled in.
func (f formFields[T]) enteredFields(form url.Values) (valueByField map[string]any, err error) {
	fields := map[string]any{}
	for _, field := range f {
		if text := enteredText(form, field.input); text != "" {
			if err := field.addParsedValue(fields, text); err != nil {
				return nil, err
			}
		}
	}
	return fields, nil
}

// changedFields returns the fields whose inputs no longer have the text that the form showed at first. If form does not contain that text,
// the text in current takes its place. If an input was emptied, its field is nil.
func (f formFields[T]) changedFields(form, current url.Values) (valueByField map[string]any, err error) {
	fields := map[string]any{}
	for _, field := range f {
		text := enteredText(form, field.input)
		if !form.Has(field.input) || text == originalText(form, field.input, current.Get(field.input)) {
			continue
		}
		if fields[field.name] = nil; text != "" {
			if err := field.addParsedValue(fields, text); err != nil {
				return nil, err
			}
		}
	}
	return fields, nil
}

// addParsedValue parses text and stores the value in valueByField under the field's name.
func (f formField[T]) addParsedValue(valueByField map[string]any, text string) (err error) {
	if valueByField[f.name], err = f.parse(text); err != nil {
		return newFormError(f.label + ": " + err.Error())
	}
	return nil
}

// enteredText returns the text of an input in a submitted form, without surrounding white space.
func enteredText(form url.Values, input string) string {
	return strings.TrimSpace(strings.ReplaceAll(form.Get(input), "\r\n", "\n"))
}

// originalText returns the text that an input had when form was shown. If form does not contain this text, it returns fallback. If the
// input differs from the text, the operator changed it, even if another operator has changed the object since the form was shown.
func originalText(form url.Values, input, fallback string) string {
	if !form.Has("was." + input) {
		return fallback
	}
	return strings.ReplaceAll(form.Get("was."+input), "\r\n", "\n")
}

// isUnchanged reports whether an input still has the text that it had when form was shown.
func isUnchanged(form url.Values, input string) bool {
	return enteredText(form, input) == originalText(form, input, "\x00")
}

// pointerInputText returns the text of an input for the value that the pointer value points to. If value is nil, the text is empty.
func pointerInputText[T any](value *T, formatValue func(T) string) string {
	if value == nil {
		return ""
	}
	return formatValue(*value)
}

// durationInputText returns a duration of ms milliseconds as the text of an input. It is empty for 0: an empty input means the default.
func durationInputText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return formatMS(ms)
}

// formatMS returns a duration of ms milliseconds as text, without trailing units that are zero, such as 24h.
func formatMS(ms int64) string {
	text := (time.Duration(ms) * time.Millisecond).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// dateInputText formats a time for an input of a browser.
func dateInputText(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05") }

// onlyEntry returns the entry of a list that has exactly one, and an empty text for any other list.
func onlyEntry(list []string) string {
	if len(list) != 1 {
		return ""
	}
	return list[0]
}

// checkboxValue returns the form value of a checkbox. It is empty if the checkbox is not chosen.
func checkboxValue(isChosen bool) string {
	if isChosen {
		return "true"
	}
	return ""
}

// formatWindows returns windows as text for a form, one in each line.
func formatWindows(windows []operators.Window) string {
	lines := make([]string, len(windows))
	for i, w := range windows {
		lines[i] = strings.TrimSpace(w.Cron + " " + w.Duration + " " + w.Timezone)
	}
	return strings.Join(lines, "\n")
}

func parseText(text string) (value any, err error) { return text, nil }

// parseInteger parses the text of an input as a whole number, for a field of the API.
func parseInteger(text string) (value any, err error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return nil, errors.New("a whole number")
	}
	return n, nil
}

// parseMS parses the text of an input as a duration, and returns it in ms, for a field of the API.
func parseMS(text string) (value any, err error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return nil, errors.New("a duration such as 300s or 5m")
	}
	return d.Milliseconds(), nil
}

// toRFC3339 converts the time in the text of an input to RFC 3339, for a field of the API.
func toRFC3339(text string) (value any, err error) {
	t, err := parseUTC(text)
	return t.Format(time.RFC3339), err
}

// parseUTC parses a time in the format of browsers, which counts as UTC, or a time with a zone.
func parseUTC(text string) (time.Time, error) {
	for _, form := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339} {
		if t, err := time.Parse(form, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, errors.New("a time such as 2026-03-01T04:05, in UTC")
}

// parseJSON parses the text of an input as JSON, for a field of the API.
func parseJSON(text string) (value any, err error) {
	if !json.Valid([]byte(text)) {
		return nil, errors.New("not JSON")
	}
	return json.RawMessage(text), nil
}

// parseWindows parses the text of an input that has one window in each line, for a field of the API.
func parseWindows(text string) (value any, err error) {
	var list []operators.Window
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		one, err := windows.FromText(line)
		if err != nil {
			return nil, err
		}
		list = append(list, operators.Window(one))
	}
	return list, nil
}
