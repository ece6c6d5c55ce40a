package web

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// typedAbove is how many tasks may be cancelled without their number being typed.
const typedAbove = 1000

func (b *batchPages) cancelling(r *http.Request) (page, error) {
	one, err := b.read(r)
	return page{title: "Cancel " + one.Label(), section: "batches", template: "batch-cancel", data: map[string]any{
		"Batch": one, "Operator": b.may(r, "operator"), "Typed": one.Counts[operators.Pending] > typedAbove,
	}}, err
}

// cancel asks for the number of the tasks that wait, if they are many: the one that the
// page said, and no fewer than wait now.
func (b *batchPages) cancel(r *http.Request) (next, said string, err error) {
	one, err := b.read(r)
	if err != nil {
		return "", "", err
	}
	if waits := one.Counts[operators.Pending]; waits > typedAbove {
		shown, _ := strconv.ParseInt(r.PostForm.Get("waits"), 10, 64)
		typed, err := strconv.ParseInt(strings.Join(strings.Fields(strings.ReplaceAll(r.PostForm.Get("count"), ",", "")), ""), 10, 64)
		switch {
		case err != nil || typed != shown:
			return "", "", badForm(fmt.Sprintf("Count: type %d, the number of tasks that wait. Nothing was cancelled.", max(shown, waits)))
		case shown < waits:
			return "", "", badForm(fmt.Sprintf("Count: %d tasks wait now, and the page said %d. Nothing was cancelled: open it again.", waits, shown))
		}
	}
	return b.api.command("batches", "cancel", "cancelled")(r)
}

func (b *batchPages) pausing(r *http.Request) (page, error) {
	one, err := b.read(r)
	return page{title: "Pause " + one.Label(), section: "batches", template: "pause", data: map[string]any{
		"Name": one.Label(), "Back": fmt.Sprintf("/batches/%d", one.ID), "May": b.may(r, "operator"), "Role": "an operator",
	}}, err
}

func (b *batchPages) editing(r *http.Request) (page, error) {
	one, err := b.read(r)
	return page{title: "Edit " + one.Label(), section: "batches", template: "batch-edit", data: map[string]any{
		"Batch": one, "Operator": b.may(r, "operator"), "Form": changeable(one.Batch), "Rows": policyRows(one.Limits),
		"Back": backOr(r, fmt.Sprintf("/batches/%d", one.ID)),
	}}, err
}

// changeable are the inputs for what a batch can be changed in.
func changeable(b operators.Batch) url.Values {
	return url.Values{
		"weight": {strconv.Itoa(b.Weight)}, "priority": {strconv.Itoa(b.Priority)}, "attempts": {strconv.Itoa(b.MaxAttempts)},
		"not_after": {dateInput(b.NotAfter)}, "max_wait": {durationInput(b.MaxWaitMS)}, "windows": {windowLines(b.Windows)}, "lane": {laneInput(b.Lane)},
	}
}

// edit sends what differs from the batch.
func (b *batchPages) edit(r *http.Request) (next, said string, err error) {
	one, err := b.read(r)
	if err != nil {
		return "", "", err
	}
	now, patch := changeable(one.Batch), map[string]any{}
	for _, entry := range []struct {
		input, label, field string
		read                func(string) (any, error)
	}{
		{"weight", "Weight", "weight", whole},
		{"priority", "Priority", "priority", whole},
		{"attempts", "Attempts", "max_attempts", whole},
		{"lane", "Lane", "lane", func(text string) (any, error) { return text, nil }},
		{"not_after", "Not after", "not_after", utc},
		{"max_wait", "Longest wait", "max_wait_ms", inMS},
		{"windows", "Windows", "windows", openings},
	} {
		text := strings.TrimSpace(strings.ReplaceAll(r.PostForm.Get(entry.input), "\r\n", "\n"))
		if !r.PostForm.Has(entry.input) || text == shownAs(r.PostForm, entry.input, now.Get(entry.input)) {
			continue
		}
		patch[entry.field] = nil
		if text != "" {
			if patch[entry.field], err = entry.read(text); err != nil {
				return "", "", badForm(entry.label + ": " + err.Error())
			}
		}
	}
	if entered := filledRows(enteredRows(r.PostForm)); r.PostForm.Has("limit.name") && rowsText(entered) != shownAs(r.PostForm, "limits", rowsText(policyRows(one.Limits))) {
		if patch["limits"], err = readPolicies(r.PostForm); err != nil {
			return "", "", err
		}
	}
	if len(patch) > 0 {
		err = b.api.Do(r.Context(), operators.Request{Method: http.MethodPatch, Path: operators.Path("batches", r.PathValue("id")), Body: patch}, nil)
	}
	return "/batches/" + url.PathEscape(r.PathValue("id")), "batch-changed", err
}

// shownAs is what an input of a form was filled with: what differs from it was entered, whatever
// others have changed meanwhile.
func shownAs(form url.Values, input, otherwise string) string {
	if !form.Has("was." + input) {
		return otherwise
	}
	return strings.ReplaceAll(form.Get("was."+input), "\r\n", "\n")
}

// rowsText tells rows apart.
func rowsText(rows []policyRow) string { return fmt.Sprintf("%q", filledRows(rows)) }

// filledRows are those in which something was entered.
func filledRows(rows []policyRow) []policyRow {
	return slices.DeleteFunc(slices.Clone(rows), func(r policyRow) bool { return r.Name+r.Per+r.Rate == "" })
}

// dateInput is a time as browsers want it; empty: none.
func dateInput(at *operators.Time) string {
	if at == nil {
		return ""
	}
	return at.UTC().Format("2006-01-02T15:04:05")
}

// laneInput is empty for the default.
func laneInput(lane string) string {
	if lane == "normal" {
		return ""
	}
	return lane
}

// durationInput is a duration to be edited; empty: the default.
func durationInput(ms int64) string {
	if ms == 0 {
		return ""
	}
	return compact(time.Duration(ms) * time.Millisecond)
}
