package web

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/limits/policy"
	"github.com/fleetslots/dispatcher/operators"
)

// emptyRows is the number of empty rows that a form offers for additional policies.
const emptyRows = 2

// policyInputKeys returns the names of the inputs for one policy. All of them except rate are also names of fields of the API.
func policyInputKeys() []string {
	return []string{"name", "per", "algorithm", "rate", "period", "timezone", "on_error", "on_limited", "reveal", "trust_device"}
}

// policyRow is one policy as a form shows it: the text of each input by its name. The text of rate is, for example, 1/1m 10/24h. For a
// calendar period, rate is only a number.
type policyRow map[string]string

// algorithmTexts returns the text that pages show for each algorithm of policies.
func algorithmTexts() (textByAlgorithm map[string]string) {
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

// policyRows returns the rows of a form that shows policies.
func policyRows(policies []operators.Policy) []policyRow {
	rows := make([]policyRow, len(policies))
	for i, p := range policies {
		rows[i] = policyRow{
			"name": p.Name, "per": p.Per, "algorithm": string(p.Algorithm), "rate": policyRateText(p), "period": string(p.Period), "timezone": p.Timezone,
			"on_error": string(p.OnError), "on_limited": string(p.OnLimited), "reveal": checkboxValue(p.Reveal), "trust_device": checkboxValue(p.TrustDevice),
		}
	}
	return rows
}

func appendEmptyRows(rows []policyRow) []policyRow {
	return append(rows, slices.Repeat([]policyRow{{"algorithm": "sliding"}}, emptyRows)...)
}

// setPolicyRows sets the inputs of rows in a form, in the layout that enteredRows reads.
func setPolicyRows(form url.Values, rows []policyRow) {
	for _, row := range rows {
		for _, input := range policyInputKeys() {
			form.Add("limit."+input, row[input])
		}
	}
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
	return strconv.FormatInt(maxStarts, 10) + "/" + formatMS(perMS)
}

// enteredRows returns the policies that were entered into a submitted form, one row for each.
func enteredRows(form url.Values) []policyRow {
	rows := make([]policyRow, len(form["limit.name"]))
	for i := range rows {
		rows[i] = policyRow{}
		for _, input := range policyInputKeys() {
			rows[i][input] = ""
			if list := form["limit."+input]; i < len(list) {
				rows[i][input] = strings.TrimSpace(list[i])
			}
		}
	}
	return rows
}

func (r policyRow) isEmpty() bool { return r["name"]+r["per"]+r["rate"] == "" }

func filledRows(rows []policyRow) []policyRow {
	return slices.DeleteFunc(slices.Clone(rows), policyRow.isEmpty)
}

// rowsText returns the filled rows as one text. Two lists of rows have the same text only if their filled rows are equal.
func rowsText(rows []policyRow) string { return fmt.Sprintf("%q", filledRows(rows)) }

// readPolicies returns the policies of a submitted form. It skips rows in which nothing was entered. The API checks the rest.
func readPolicies(form url.Values) ([]operators.Policy, error) {
	list := []operators.Policy{}
	for i, row := range enteredRows(form) {
		if row.isEmpty() {
			continue
		}
		read, err := row.parsePolicy()
		if err != nil {
			return nil, newFormError(fmt.Sprintf("Limit %d: %v.", i+1, err))
		}
		list = append(list, read)
	}
	return list, nil
}

func (r policyRow) parsePolicy() (operators.Policy, error) {
	p := operators.Policy{
		Name: r["name"], Per: r["per"], Algorithm: policy.Algorithm(r["algorithm"]), Timezone: r["timezone"],
		OnError: policy.OnError(r["on_error"]), OnLimited: policy.OnLimited(r["on_limited"]), Reveal: r["reveal"] == "true", TrustDevice: r["trust_device"] == "true",
	}
	if p.Name == "" {
		return p, errors.New("a name is required")
	}
	if p.Algorithm == policy.Calendar {
		var err error
		if p.Max, err = strconv.ParseInt(r["rate"], 10, 64); err != nil {
			return p, errors.New("at most: must be a whole number in a calendar period, such as 1000")
		}
		p.Period = policy.Period(r["period"])
		return p, nil
	}
	rates, err := parseRates(r["rate"])
	switch {
	case err != nil:
		return p, err
	case p.Algorithm == policy.Sliding:
		p.Windows = rates
	case len(rates) != 1:
		return p, errors.New("at most: must be one number and time, such as 10/24h")
	default:
		p.Max, p.PerMS = rates[0].Max, rates[0].PerMS
	}
	return p, nil
}

// parseRates parses text such as "1/1m 10/24h": at most 1 start per minute and at most 10 per day.
func parseRates(text string) (rates []operators.PolicyWindow, err error) {
	for _, rate := range strings.FieldsFunc(text, func(c rune) bool { return c == ' ' || c == ',' }) {
		maxText, perText, _ := strings.Cut(rate, "/")
		maxStarts, err := strconv.ParseInt(maxText, 10, 64)
		per, perErr := time.ParseDuration(perText)
		if err != nil || perErr != nil {
			return nil, fmt.Errorf("at most: %q must be a number and a time, such as 10/24h", rate)
		}
		rates = append(rates, operators.PolicyWindow{Max: maxStarts, PerMS: per.Milliseconds()})
	}
	return rates, nil
}
