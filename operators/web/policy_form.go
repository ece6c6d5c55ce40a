package web

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// emptyRows is the number of empty rows that a form offers for additional policies.
const emptyRows = 2

// policyRow is one policy as a form shows it.
type policyRow struct {
	Name, Per, Algorithm string
	Rate                 string // such as 1/1m 10/24h; for a calendar period only the number
	Period, Timezone     string // for the calendar algorithm
	OnError, OnLimited   string
	Reveal, Trust        string
}

// algorithmTexts returns the words for each algorithm.
func algorithmTexts() map[string]string {
	return map[string]string{
		"sliding": "in any such time", "fixed": "from the first start on", "calendar": "by the calendar", "duplicate": "of equal content",
	}
}

// policyText describes a policy in one line.
func policyText(shown operators.Policy) string {
	text := shown.Name + ": " + policyRateText(shown)
	if shown.Period != "" {
		text += " a " + string(shown.Period)
	}
	if shown.Per != "" {
		text += " per " + shown.Per
	}
	text += ", " + algorithmTexts()[string(shown.Algorithm)]
	if shown.OnLimited == "drop" {
		text += ", drops refused tasks"
	}
	return text
}

// policyRows returns the rows of a form that shows policies, with empty rows at the end.
func policyRows(policies []operators.Policy) []policyRow {
	rows := make([]policyRow, 0, len(policies)+emptyRows)
	for _, p := range policies {
		rows = append(rows, policyRow{
			Name: p.Name, Per: p.Per, Algorithm: string(p.Algorithm), Rate: policyRateText(p), Period: string(p.Period), Timezone: p.Timezone,
			OnError: string(p.OnError), OnLimited: string(p.OnLimited), Reveal: checkboxValue(p.Reveal), Trust: checkboxValue(p.TrustDevice),
		})
	}
	return appendEmptyRows(rows)
}

// appendEmptyRows adds emptyRows empty rows.
func appendEmptyRows(rows []policyRow) []policyRow {
	return append(rows, slices.Repeat([]policyRow{{Algorithm: "sliding"}}, emptyRows)...)
}

// addToForm adds the row to a form, in the layout that enteredRows reads.
func (r policyRow) addToForm(form url.Values) {
	for field, text := range map[string]string{
		"name": r.Name, "per": r.Per, "algorithm": r.Algorithm, "rate": r.Rate, "period": r.Period, "timezone": r.Timezone, "on_error": r.OnError,
		"on_limited": r.OnLimited, "reveal": r.Reveal, "trust_device": r.Trust,
	} {
		form.Add("limit."+field, text)
	}
}

// checkboxValue returns the value of a checkbox in a form: not empty if it is chosen.
func checkboxValue(isChosen bool) string {
	if isChosen {
		return "true"
	}
	return ""
}

// policyRateText returns the rate of a policy as the text of an input.
func policyRateText(shown operators.Policy) string {
	if shown.Period != "" {
		return strconv.FormatInt(shown.Max, 10)
	}
	if len(shown.Windows) == 0 {
		return rateText(shown.Max, shown.PerMS)
	}
	parts := make([]string, len(shown.Windows))
	for i, w := range shown.Windows {
		parts[i] = rateText(w.Max, w.PerMS)
	}
	return strings.Join(parts, " ")
}

// rateText returns the rate of maxStarts starts in perMS milliseconds as text, such as 10/24h.
func rateText(maxStarts, perMS int64) string {
	return strconv.FormatInt(maxStarts, 10) + "/" + compactDuration(time.Duration(perMS)*time.Millisecond)
}

// compactDuration returns a duration without trailing units that are zero, such as 24h.
func compactDuration(duration time.Duration) string {
	text := duration.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// enteredRows returns the policies that were entered into a submitted form, one row for each.
func enteredRows(form url.Values) []policyRow {
	at := func(field string, i int) string {
		if list := form["limit."+field]; i < len(list) {
			return strings.TrimSpace(list[i])
		}
		return ""
	}
	rows := make([]policyRow, len(form["limit.name"]))
	for i := range rows {
		rows[i] = policyRow{
			Name: at("name", i), Per: at("per", i), Algorithm: at("algorithm", i), Rate: at("rate", i), Period: at("period", i), Timezone: at("timezone", i),
			OnError: at("on_error", i), OnLimited: at("on_limited", i), Reveal: at("reveal", i), Trust: at("trust_device", i),
		}
	}
	return rows
}

// readPolicies returns the policies of a submitted form. It skips rows in which nothing was entered. The API checks the rest.
func readPolicies(form url.Values) ([]map[string]any, error) {
	list := []map[string]any{}
	for i, row := range enteredRows(form) {
		if row.Name+row.Per+row.Rate == "" {
			continue
		}
		policy, err := row.policy()
		if err != nil {
			return nil, newFormError(fmt.Sprintf("Limit %d: %v.", i+1, err))
		}
		list = append(list, policy)
	}
	return list, nil
}

// policy returns the policy of the row as a JSON object of the API.
func (r policyRow) policy() (map[string]any, error) {
	if r.Name == "" {
		return nil, errors.New("a name is required")
	}
	fields := map[string]any{"name": r.Name, "algorithm": r.Algorithm}
	for field, text := range map[string]string{"per": r.Per, "timezone": r.Timezone, "on_error": r.OnError, "on_limited": r.OnLimited} {
		if text != "" {
			fields[field] = text
		}
	}
	for field, text := range map[string]string{"trust_device": r.Trust, "reveal": r.Reveal} {
		if text == "true" {
			fields[field] = true
		}
	}
	return fields, r.addRate(fields)
}

// addRate adds to fields the rate of the policy: how many tasks may start in which period.
func (r policyRow) addRate(fields map[string]any) error {
	if r.Algorithm == "calendar" {
		maxStarts, err := strconv.ParseInt(r.Rate, 10, 64)
		if err != nil {
			return errors.New("at most: must be a whole number in a calendar period, such as 1000")
		}
		fields["max"], fields["period"] = maxStarts, r.Period
		return nil
	}
	var spans []map[string]any
	for _, text := range strings.FieldsFunc(r.Rate, func(c rune) bool { return c == ' ' || c == ',' }) {
		span, err := parseRate(text)
		if err != nil {
			return err
		}
		spans = append(spans, span)
	}
	switch {
	case r.Algorithm == "sliding":
		fields["windows"] = spans
	case len(spans) != 1:
		return errors.New("at most: must be one number and time, such as 10/24h")
	default:
		fields["max"], fields["per_ms"] = spans[0]["max"], spans[0]["per_ms"]
	}
	return nil
}

// parseRate parses the text of the rate of a policy, and returns the fields of the API for it.
func parseRate(text string) (map[string]any, error) {
	most, span, _ := strings.Cut(text, "/")
	n, err := strconv.ParseInt(most, 10, 64)
	per, spanErr := time.ParseDuration(span)
	if err != nil || spanErr != nil {
		return nil, fmt.Errorf("at most: %q must be a number and a time, such as 10/24h", text)
	}
	return map[string]any{"max": n, "per_ms": per.Milliseconds()}, nil
}
