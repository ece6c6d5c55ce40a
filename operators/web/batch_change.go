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

// confirmCountAbove is the number of pending tasks above which an operator has to type the number to cancel
// the batch.
const confirmCountAbove = 1000

// cancelPage returns the page that asks for confirmation before a batch is cancelled.
func (b *batchPages) cancelPage(r *http.Request) (page, error) {
	one, err := b.readBatch(r)
	return page{title: "Cancel " + one.Label(), section: "batches", template: "batch-cancel", data: map[string]any{
		"Batch": one, "Operator": b.may(r, "operator"), "Typed": one.Counts[operators.Pending] > confirmCountAbove,
	}}, err
}

// cancel cancels the batch that the submitted form in the request names. If more than confirmCountAbove tasks wait, the operator must type
// the number of waiting tasks that the page showed. The batch is not cancelled if more tasks than this number wait now. next is the path of
// the page that the browser shows afterwards, and messageKey the key of the message on that page.
func (b *batchPages) cancel(r *http.Request) (next, messageKey string, err error) {
	one, err := b.readBatch(r)
	if err != nil {
		return "", "", err
	}
	if waits := one.Counts[operators.Pending]; waits > confirmCountAbove {
		shown, _ := strconv.ParseInt(r.PostForm.Get("waits"), 10, 64)
		typed, err := strconv.ParseInt(strings.Join(strings.Fields(strings.ReplaceAll(r.PostForm.Get("count"), ",", "")), ""), 10, 64)
		switch {
		case err != nil || typed != shown:
			return "", "", newFormError(fmt.Sprintf("Count: type %d, the number of tasks that wait. Nothing was cancelled.", max(shown, waits)))
		case shown < waits:
			return "", "", newFormError(fmt.Sprintf("Count: %d tasks wait now, but %d when the page was opened. Nothing was cancelled.", waits, shown))
		}
	}
	return b.api.entryAction("batches", "cancel", "cancelled")(r)
}

// pausePage returns the page with the form to pause a batch.
func (b *batchPages) pausePage(r *http.Request) (page, error) {
	one, err := b.readBatch(r)
	return page{title: "Pause " + one.Label(), section: "batches", template: "pause", data: map[string]any{
		"Name": one.Label(), "Back": fmt.Sprintf("/batches/%d", one.ID), "May": b.may(r, "operator"), "Role": "an operator",
	}}, err
}

// editPage returns the page with the form to change the settings of a batch.
func (b *batchPages) editPage(r *http.Request) (page, error) {
	one, err := b.readBatch(r)
	return page{title: "Edit " + one.Label(), section: "batches", template: "batch-edit", data: map[string]any{
		"Batch": one, "Operator": b.may(r, "operator"), "Form": editFormValues(one.Batch), "Rows": policyRows(one.Limits),
		"Back": returnPathOr(r, fmt.Sprintf("/batches/%d", one.ID)),
	}}, err
}

// editFormValues returns the form inputs for the fields of a batch that can be changed. The text of the input limits is for comparisons.
func editFormValues(batch operators.Batch) url.Values {
	return url.Values{
		"weight": {strconv.Itoa(batch.Weight)}, "priority": {strconv.Itoa(batch.Priority)}, "attempts": {strconv.Itoa(batch.MaxAttempts)},
		"not_after": {dateInput(batch.NotAfter)}, "max_wait": {durationInput(batch.MaxWaitMS)}, "windows": {windowLines(batch.Windows)}, "lane": {laneInput(batch.Lane)},
		"limits": {rowsText(policyRows(batch.Limits))},
	}
}

// edit changes the fields of a batch that the operator changed in the submitted form. It sends no other fields to the API. next is the path
// of the page that the browser shows afterwards, and messageKey the key of the message on that page.
func (b *batchPages) edit(r *http.Request) (next, messageKey string, err error) {
	one, err := b.readBatch(r)
	if err != nil {
		return "", "", err
	}
	current, patch := editFormValues(one.Batch), map[string]any{}
	if err := b.api.checkConflict(r, current, "batch.changed", "batch", r.PathValue("id"), b.now()); err != nil {
		return "", "", err
	}
	for _, entry := range []struct {
		input, label, field string
		read                func(string) (any, error)
	}{
		{"weight", "Weight", "weight", parseInteger},
		{"priority", "Priority", "priority", parseInteger},
		{"attempts", "Attempts", "max_attempts", parseInteger},
		{"lane", "Lane", "lane", func(text string) (any, error) { return text, nil }},
		{"not_after", "Not after", "not_after", toRFC3339},
		{"max_wait", "Longest wait", "max_wait_ms", parseMS},
		{"windows", "Windows", "windows", parseWindows},
	} {
		text := strings.TrimSpace(strings.ReplaceAll(r.PostForm.Get(entry.input), "\r\n", "\n"))
		if !r.PostForm.Has(entry.input) || text == originalText(r.PostForm, entry.input, current.Get(entry.input)) {
			continue
		}
		patch[entry.field] = nil
		if text != "" {
			if patch[entry.field], err = entry.read(text); err != nil {
				return "", "", newFormError(entry.label + ": " + err.Error())
			}
		}
	}
	if entered := filledRows(enteredRows(r.PostForm)); r.PostForm.Has("limit.name") && rowsText(entered) != originalText(r.PostForm, "limits", current.Get("limits")) {
		if patch["limits"], err = readPolicies(r.PostForm); err != nil {
			return "", "", err
		}
	}
	if len(patch) > 0 {
		err = b.api.Do(r.Context(), operators.Request{Method: http.MethodPatch, Path: operators.Path("batches", r.PathValue("id")), Body: patch}, nil)
	}
	return "/batches/" + url.PathEscape(r.PathValue("id")), "batch-changed", err
}

// originalText returns the text that the input inputName had when form was shown. If form does not contain this text, it returns fallback.
// If the input differs from the text, the operator changed it, even if another operator has changed the batch since the form was shown.
func originalText(form url.Values, inputName, fallback string) string {
	if !form.Has("was." + inputName) {
		return fallback
	}
	return strings.ReplaceAll(form.Get("was."+inputName), "\r\n", "\n")
}

// rowsText returns the filled rows as one text. Two lists of rows have the same text only if their filled rows are equal.
func rowsText(rows []policyRow) string { return fmt.Sprintf("%q", filledRows(rows)) }

// filledRows returns the rows in which something was entered.
func filledRows(rows []policyRow) []policyRow {
	return slices.DeleteFunc(slices.Clone(rows), func(r policyRow) bool { return r.Name+r.Per+r.Rate == "" })
}

// dateInput formats the time at for an input of a browser. If at is nil, the text is empty.
func dateInput(at *operators.Time) string {
	if at == nil {
		return ""
	}
	return at.UTC().Format("2006-01-02T15:04:05")
}

// laneInput returns the lane of a batch as the text of an input. It is empty for the default lane.
func laneInput(lane string) string {
	if lane == "normal" {
		return ""
	}
	return lane
}

// durationInput returns a duration of ms milliseconds as the text of an input. It is empty for 0: an empty input means the default.
func durationInput(ms int64) string {
	if ms == 0 {
		return ""
	}
	return compactDuration(time.Duration(ms) * time.Millisecond)
}
