package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
)

func templateFuncs(options Options) template.FuncMap {
	timed := newTimesRenderer()
	return template.FuncMap{
		"url":     func(parts ...any) string { return options.Prefix + fmt.Sprint(parts...) },
		"esc":     url.PathEscape,
		"q":       func(v any) string { return url.QueryEscape(fmt.Sprint(v)) },
		"when":    timeHTML,
		"at":      func(t time.Time) template.HTML { return timed(decision.FormatTime(t)) },
		"command": commandHTML,
		"timed":   timed,
		"event":   newEventText,
		"capital": func(s string) string { return strings.ToUpper(s[:1]) + s[1:] },
		"caller":  operators.HolderName,
		"limit":   policyText,
		"list":    func(words ...string) []string { return words },
		"zero":    classAttributeIfZero,
		"inc":     func(i int) int { return i + 1 },
		"periods": func() []string { return []string{"day", "week", "month"} },

		"algorithms": algorithmTexts,
		"copy":       copyButton,
		"clock":      func(t *time.Time) string { return t.UTC().Format("15:04:05") },
		"dur":        durationText,
		"ms":         formatMSValue,
		"num":        groupDigits,
		"about":      approximateCountText,
		"digits":     roundedText,
		"percent":    func(of float64) float64 { return 100 * of },
		"share":      func(of float64) string { return strconv.FormatFloat(100*of, 'g', 4, 64) + " %" },
		"json":       indentJSON,
		"plural":     countText,
		"words":      func(s string) string { return strings.ReplaceAll(s, "_", " ") },
		"dict":       dict,
		"meaning":    stateMeaning,
		"trouble":    troubleText,
		"sum":        func(a, b int64) int64 { return a + b },
		"only":       options.restrictionText,
	}
}

// restrictionText returns the text that explains why a form is missing: the dashboard is read-only, or the action needs another
// role. roleWithArticle is this role with its article, such as "an admin", and action is a verb with its object.
func (o Options) restrictionText(roleWithArticle, action string) string {
	if o.ReadOnly {
		return "This dashboard is read-only: nobody can " + action + " here."
	}
	return "Only " + roleWithArticle + " can " + action + "."
}

// instant is a time of the API or of the ledger. It may be a nil pointer.
type instant interface{ UTC() time.Time }

// timeHTML renders a time that may be nil. Without the script, a reader sees the exact time. The script
// replaces it by a relative time and shows the exact time as a tooltip.
func timeHTML(at instant) template.HTML {
	switch t := at.(type) {
	case *time.Time:
		if t == nil {
			return "–"
		}
	case *operators.Time:
		if t == nil {
			return "–"
		}
	}
	t := at.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s</time>`, //nolint:gosec // nothing but digits
		t.Format("2006-01-02T15:04:05.000Z"), decision.FormatTime(t), decision.FormatTime(t)))
}

// newTimesRenderer returns a function that renders text of the API with readable times. The script shows the times
// in the reader's time zone.
func newTimesRenderer() func(text string) template.HTML {
	times := regexp.MustCompile(`(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(\.\d+)?Z`)
	return func(text string) template.HTML {
		return template.HTML(times.ReplaceAllString(template.HTMLEscapeString(text), `<time class="at" datetime="${1}T${2}Z" title="$1 ${2}Z">$1 ${2}Z</time>`)) //nolint:gosec // escaped
	}
}

// commandHTML renders command, a command line, with a button that copies it.
func commandHTML(command string) template.HTML {
	return template.HTML("<code>"+template.HTMLEscapeString(command)+"</code> ") + copyButton(command, "command") //nolint:gosec // escaped
}

// copyButton renders a button that copies text. description names the text in the label. Without the script, the button is not visible.
func copyButton(text, description string) template.HTML {
	return template.HTML(fmt.Sprintf(`<button type="button" class="copy script" data-copy="%s" title="Copy the %s">Copy</button>`, //nolint:gosec // escaped
		template.HTMLEscapeString(text), template.HTMLEscapeString(description)))
}

// classAttributeIfZero returns the class attribute that makes count, a number, less visible if it is 0.
func classAttributeIfZero(count any) template.HTMLAttr {
	if n, ok := count.(*int64); ok && n != nil {
		count = *n
	}
	if fmt.Sprint(count) == "0" {
		return `class="zero"`
	}
	return ""
}

// durationText returns a duration in its two largest units.
func durationText(duration time.Duration) string {
	switch {
	case duration < 0:
		return "-" + durationText(-duration)
	case duration < time.Second:
		return strconv.FormatInt(duration.Milliseconds(), 10) + " ms"
	case duration < time.Minute:
		return strconv.FormatFloat(float64(duration.Round(time.Second/10))/float64(time.Second), 'f', -1, 64) + " s"
	case duration < time.Hour:
		return formatTwoUnits(duration, time.Minute, "min", time.Second, "s")
	case duration < 48*time.Hour:
		return formatTwoUnits(duration, time.Hour, "h", time.Minute, "min")
	}
	return formatTwoUnits(duration, 24*time.Hour, "d", time.Hour, "h")
}

// formatMSValue renders milliseconds, a number of ms that may be nil, as a duration.
func formatMSValue(milliseconds any) string {
	switch ms := milliseconds.(type) {
	case int64:
		return durationText(time.Duration(ms) * time.Millisecond)
	case *int64:
		if ms != nil {
			return durationText(time.Duration(*ms) * time.Millisecond)
		}
	}
	return "–"
}

// formatTwoUnits returns duration as text in two units, such as "2 h 5 min". largeName and smallName are the names of the units. The text
// omits smallUnit if its number is 0.
func formatTwoUnits(duration, largeUnit time.Duration, largeName string, smallUnit time.Duration, smallName string) string {
	text := fmt.Sprintf("%d %s", duration/largeUnit, largeName)
	if rest := duration % largeUnit / smallUnit; rest > 0 {
		text += fmt.Sprintf(" %d %s", rest, smallName)
	}
	return text
}

// groupDigits returns a whole number as text with thin spaces between the thousands.
func groupDigits(number any) string {
	if n, ok := number.(*int64); ok {
		number = *n
	}
	digits := fmt.Sprint(number)
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	var out strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && len(digits) > 4 {
			out.WriteRune(' ')
		}
		out.WriteRune(d)
	}
	return sign + out.String()
}

// approximateCountText returns count as text. If isEstimate is true, the text begins with "about".
func approximateCountText(count any, isEstimate bool) string {
	if isEstimate {
		return "about " + groupDigits(count)
	}
	return groupDigits(count)
}

// indentJSON returns JSON with line breaks and indentation. It returns invalid JSON unchanged.
func indentJSON(raw json.RawMessage) string {
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return string(raw)
	}
	return out.String()
}

// countText returns count with its noun: singular for 1, pluralForm for any other number.
func countText(count any, singular, pluralForm string) string {
	text := groupDigits(count)
	if text == "1" {
		return "1 " + singular
	}
	return text + " " + pluralForm
}

// stateMeaning explains a state of tasks. The empty state means all tasks.
func stateMeaning(state string) string {
	return map[string]string{
		"":           "All tasks, in any state",
		"pending":    "They wait: for their device, a slot, a window or another attempt. A task's page says for which",
		"dispatched": "Their device was granted a slot and holds it now",
		"succeeded":  "Their device reported success",
		"failed":     "Their device failed or refused, and no attempt was left",
		"timed_out":  "Their lease ran out before a result came, and no attempt was left",
		"cancelled":  "An operator ended them, or their device was asked to stop and did",
		"expired":    "They still waited at the end of their time (not after, or the longest wait)",
		"retrying":   "They will be tried again: they wait for another attempt, after one that failed or whose lease ended",
		"suppressed": "A policy refused their start and drops refused tasks: they were not tried",
	}[state]
}

// dict builds a map from namesAndValues, pairs of a name and a value, so that a template can pass several values.
func dict(namesAndValues ...any) (dictionary map[string]any, err error) {
	values := make(map[string]any, len(namesAndValues)/2)
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		name, ok := namesAndValues[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is not a name", namesAndValues[i])
		}
		values[name] = namesAndValues[i+1]
	}
	return values, nil
}
