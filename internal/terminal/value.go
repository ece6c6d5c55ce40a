package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

type member struct {
	name  string
	value json.RawMessage
}

// readMembers returns the members of a JSON object in their order.
func readMembers(object json.RawMessage) (members []member, err error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		members = append(members, member{fmt.Sprint(name), value})
	}
	return members, nil
}

// FormatValue formats the value of a JSON member for people. name is the name of the member. Text is unchanged, times are shortened, and
// numbers of ms (name ends in _ms) are durations. Empty objects, empty lists, null and false are empty text.
func FormatValue(name string, value json.RawMessage) string {
	if len(value) == 0 {
		return ""
	}
	switch value[0] {
	case 'n', 'f':
		return ""
	case 't':
		return "yes"
	case '"':
		var text string
		_ = json.Unmarshal(value, &text) // cannot fail: it was decoded before
		return shortenTime(text)
	case '{', '[':
		switch name {
		case "windows":
			return formatWindows(value)
		case "limits":
			return formatLimits(value)
		case "counts":
			return formatCounts(value)
		case "pools", "limit_sets":
			return joinJSONList(value)
		}
		var compact bytes.Buffer
		if json.Compact(&compact, value) != nil || compact.Len() == 2 {
			return ""
		}
		return compact.String()
	}
	return formatNumber(name, json.Number(value))
}

// formatNumber formats a number: as a duration if the name ends in _ms, else with at most two decimals.
func formatNumber(name string, value json.Number) string {
	n, err := value.Int64()
	switch {
	case err == nil && n == 0 && meaningOfZero(name) != "":
		return meaningOfZero(name)
	case err == nil && strings.HasSuffix(name, "_ms"):
		return FormatDuration(time.Duration(n) * time.Millisecond)
	case err == nil:
		return value.String()
	}
	f, err := value.Float64()
	if err != nil {
		return value.String()
	}
	return strings.TrimRight(strings.TrimRight(strconv.FormatFloat(f, 'f', 2, 64), "0"), ".")
}

// meaningOfZero returns the text to show if the setting batchSetting of a batch is 0. It returns "" for a setting whose value 0 does not
// mean a default, and the caller then shows 0.
func meaningOfZero(batchSetting string) string {
	return map[string]string{"lease_ms": "as in the pool", "max_run_ms": "1h", "max_wait_ms": "no limit"}[batchSetting]
}

// formatCounts lists the counts in value, a JSON object of counts by state, that are not zero: 3 failed, 17 pending.
func formatCounts(value json.RawMessage) string {
	var list map[string]int64
	_ = json.Unmarshal(value, &list) // a value of another form is shown as nothing
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if list[name] != 0 {
			texts = append(texts, fmt.Sprintf("%d %s", list[name], strings.ReplaceAll(name, "_", " ")))
		}
	}
	return strings.Join(texts, ", ")
}

// joinJSONList joins the texts in value, a JSON list, with commas.
func joinJSONList(value json.RawMessage) string {
	var texts []string
	_ = json.Unmarshal(value, &texts) // a value of another form is shown as nothing
	return strings.Join(texts, ", ")
}

// formatWindows formats value, a JSON list of windows, as windows are written on the command line.
func formatWindows(value json.RawMessage) string {
	var list []struct{ Cron, Duration, Timezone string }
	_ = json.Unmarshal(value, &list) // a value of another form is shown as nothing
	texts := make([]string, len(list))
	for i, w := range list {
		texts[i] = strings.TrimSpace(w.Cron + " " + w.Duration + " " + w.Timezone)
	}
	return strings.Join(texts, "; ")
}

// formatLimits formats value, a JSON list of policies. Each policy has its name, its maximum numbers of starts per period, and its subject.
// For example: per-account 1/1m 5/1h per tags.account.
func formatLimits(value json.RawMessage) string {
	var list []struct {
		Name, Per, Period, Timezone string

		OnLimited string `json:"on_limited"`
		Max       int64
		PerMS     int64 `json:"per_ms"`
		Windows   []struct {
			Max   int64
			PerMS int64 `json:"per_ms"`
		}
	}
	_ = json.Unmarshal(value, &list) // a value of another form is shown as nothing
	texts := make([]string, len(list))
	perMS := func(maximum, ms int64) string {
		return fmt.Sprintf(" %d/%s", maximum, FormatDuration(time.Duration(ms)*time.Millisecond))
	}
	for i, p := range list {
		texts[i] = p.Name
		for _, w := range p.Windows {
			texts[i] += perMS(w.Max, w.PerMS)
		}
		if p.Period != "" {
			texts[i] += strings.TrimRight(fmt.Sprintf(" %d/%s %s", p.Max, p.Period, p.Timezone), " ")
		} else if p.PerMS != 0 {
			texts[i] += perMS(p.Max, p.PerMS)
		}
		if p.Per != "" {
			texts[i] += " per " + p.Per
		}
		if p.OnLimited == "drop" {
			texts[i] += " drop"
		}
	}
	return strings.Join(texts, "; ")
}

// Label returns the name of a JSON member as a label for people: without _ms at the end.
func Label(name string) string { return strings.TrimSuffix(name, "_ms") }

// TimeLayout is the format of the times that commands, explanations and pages show. They are in UTC.
const TimeLayout = "2006-01-02 15:04:05Z"

// shortenTime shortens a time of the API. It returns other text unchanged.
func shortenTime(text string) string {
	if len(text) < len("2006-01-02T15:04:05Z") || text[4] != '-' || text[10] != 'T' {
		return text
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return text
	}
	return t.UTC().Format(TimeLayout)
}

// FormatDuration formats duration without zeros at the end: 5m, not 5m0s.
func FormatDuration(duration time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(duration.String())
}

// WriteFields writes the members of a JSON object to out, one member a line. It skips the members whose names are in
// omitted, and members that are null or empty. If shown contains a text for a member, it writes this text instead of the
// result of FormatValue.
func WriteFields(out io.Writer, object json.RawMessage, shown map[string]string, omitted ...string) error {
	members, err := readMembers(object)
	if err != nil {
		return err
	}
	var lines strings.Builder
	labelWidth := 0
	for _, m := range members {
		labelWidth = max(labelWidth, len(Label(m.name)))
	}
	for _, m := range members {
		value, ok := shown[m.name]
		if !ok {
			value = FormatValue(m.name, m.value)
		}
		if string(m.value) == "false" {
			value = "no"
		}
		if value != "" && !slices.Contains(omitted, m.name) {
			_, _ = fmt.Fprintf(&lines, "%-*s  %s\n", labelWidth, EscapeUnprintable(Label(m.name)), EscapeUnprintable(value))
		}
	}
	_, err = io.WriteString(out, lines.String())
	return err
}
