package web

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// confirmCountAbove is the number of pending tasks above which an operator has to type the number to cancel
// the batch.
const confirmCountAbove = 1000

// loadCancelPage returns the page that asks for confirmation before a batch is cancelled.
func (b *batchPages) loadCancelPage(r *http.Request) (page, error) {
	one, err := b.readBatch(r)
	return page{title: "Cancel " + one.Label(), section: "batches", template: "batch-cancel", data: map[string]any{
		"Batch": one, "Operator": b.mayOfferActions(r, "operator"), "Typed": one.Counts[operators.Pending] > confirmCountAbove,
	}}, err
}

// cancelBatch cancels the batch that the submitted form in the request names. If more than confirmCountAbove tasks wait, the operator must
// type the number of waiting tasks that the page showed. The batch is not cancelled if more tasks than this number wait now.
func (b *batchPages) cancelBatch(r *http.Request) (nextPath, messageKey string, err error) {
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
	return b.api.newEntryAction("batches", "cancel", "cancelled")(r)
}

func (b *batchPages) loadPausePage(r *http.Request) (page, error) {
	one, err := b.readBatch(r)
	return page{title: "Pause " + one.Label(), section: "batches", template: "pause", data: map[string]any{
		"Name": one.Label(), "Back": fmt.Sprintf("/batches/%d", one.ID), "May": b.mayOfferActions(r, "operator"), "Role": "an operator",
	}}, err
}

func batchSettings(source shownBatch) operators.NewBatch { return source.CloneSettings(time.Time{}) }

func (b *batchPages) loadEditPage(r *http.Request) (page, error) {
	one, err := b.readBatch(r)
	return page{title: "Edit " + one.Label(), section: "batches", template: "batch-edit", data: map[string]any{
		"Batch": one, "Operator": b.mayOfferActions(r, "operator"), "Form": newObjectForm(r, batchChangeFields().textsOfInputs(batchSettings(one)), one.Limits),
		"Back": returnPathOr(r, fmt.Sprintf("/batches/%d", one.ID)),
	}}, err
}

// editBatch changes the settings of a batch that were changed in the submitted form. If somebody else has changed one of them since the form
// was shown, nothing is changed.
func (b *batchPages) editBatch(r *http.Request) (nextPath, messageKey string, err error) {
	one, err := b.readBatch(r)
	if err != nil {
		return "", "", err
	}
	id := r.PathValue("id")
	current := inputTextsWithPolicies(batchChangeFields().textsOfInputs(batchSettings(one)), one.Limits)
	if err := b.api.checkConflict(r, current, "batch.changed", "batch", id, b.now()); err != nil {
		return "", "", err
	}
	change, err := changedSettings(r.PostForm, batchChangeFields(), current)
	if err == nil && len(change) > 0 {
		err = b.api.Do(r.Context(), operators.Request{Method: http.MethodPatch, Path: operators.Path("batches", id), Body: change}, nil)
	}
	return "/batches/" + url.PathEscape(id), "batch-changed", err
}
