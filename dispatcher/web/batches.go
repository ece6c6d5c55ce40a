package web

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	batchesShown = 30
	errorsSample = 1000 // failed tasks whose errors are grouped, of each state
	errorsShown  = 5
)

func (w *Web) routeBatches() {
	w.livePage("/batches", w.inOneMoment(w.batchesPage))
	w.livePage("/batches/{id}", w.inOneMoment(w.batchPage))
	w.page("/batches/{id}/cancel", w.cancelBatchPage)
	w.page("/new-batch", w.newBatchPage)
	w.act("/batches/{id}/pause", "operator", w.batchAction("pause", "paused"))
	w.act("/batches/{id}/resume", "operator", w.batchAction("resume", "resumed"))
	w.act("/batches/{id}/cancel", "operator", w.batchAction("cancel", "cancelled"))
	w.pages.HandleFunc("POST /new-batch", w.createBatch)
}

// batch is a batch as pages show it.
type batch struct{ operators.Batch }

// part is one state of a batch in its progress, out of 100.
type part struct {
	State    string
	Count    int64
	X, Width float64
}

// Parts are the states that a batch has tasks in, those that ended first.
func (b batch) Parts() []part {
	var list []part
	x := 0.0
	for _, state := range []string{operators.Succeeded, operators.Failed, operators.TimedOut, operators.Cancelled, operators.Expired, operators.Dispatched, operators.Pending} {
		n := b.Counts[state]
		if n == 0 || b.Total == 0 {
			continue
		}
		wide := 100 * float64(n) / float64(b.Total)
		list = append(list, part{state, n, x, wide})
		x += wide
	}
	return list
}

// Open says that tasks of the batch may still run.
func (b batch) Open() bool { return b.Ended() < b.Total }

// Label is what people call the batch.
func (b batch) Label() string {
	if b.Name != "" {
		return b.Name
	}
	return "batch " + strconv.FormatInt(b.ID, 10)
}

// RateText is how many tasks end in a minute.
func (b batch) RateText() string {
	if b.RatePerMinute == nil {
		return "–"
	}
	return strconv.FormatFloat(*b.RatePerMinute, 'f', 1, 64)
}

func (w *Web) batchesPage(r *http.Request) (page, error) {
	var list operators.BatchList
	query := url.Values{"page_size": {strconv.Itoa(batchesShown)}}
	token := r.URL.Query().Get("page")
	if token != "" {
		query.Set("page_token", token)
	}
	if err := w.get(r, operators.Path("batches"), query, &list); err != nil {
		return page{}, err
	}
	shown := make([]batch, len(list.Batches))
	for i, b := range list.Batches {
		shown[i] = batch{b}
	}
	next := ""
	if list.NextPageToken != "" {
		next = "/batches?" + url.Values{"page": {list.NextPageToken}}.Encode()
	}
	return page{title: "Batches", section: "batches", template: "batches", watch: watch{any: true, always: openOf(shown)}, data: map[string]any{
		"Batches": shown, "Next": next, "First": token == "", "Operator": w.may(r, "operator"),
	}}, nil
}

// openOf says whether counts and rates may still change by themselves.
func openOf(list []batch) bool {
	for _, b := range list {
		if b.Open() {
			return true
		}
	}
	return false
}

func (w *Web) batch(r *http.Request) (batch, error) {
	var b batch
	err := w.get(r, operators.Path("batches", r.PathValue("id")), nil, &b)
	return b, err
}

func (w *Web) batchPage(r *http.Request) (page, error) {
	b, err := w.batch(r)
	if err != nil {
		return page{}, err
	}
	var top []store.ErrorCount
	if b.Failed() > 0 {
		if top, err = w.options.Ledger.TopErrors(r.Context(), b.ID, errorsSample, errorsShown); err != nil {
			return page{}, err
		}
	}
	policies, err := json.Marshal(b.Limits)
	return page{title: b.Label(), section: "batches", template: "batch", watch: watch{batch: b.ID, always: b.Open()}, data: map[string]any{
		"Batch": b, "Errors": top, "Sampled": b.Counts[operators.Failed] > errorsSample || b.Counts[operators.TimedOut] > errorsSample, "Operator": w.may(r, "operator"),
		"States": stateCounts(b.Counts), "Limited": len(b.Limits) > 0, "Limits": json.RawMessage(policies),
	}}, err
}

// stateCount is a state of tasks and how many are in it.
type stateCount struct {
	State string
	Count int64
}

func stateCounts(counts map[string]int64) []stateCount {
	var list []stateCount
	for _, s := range operators.TaskStates() {
		list = append(list, stateCount{s, counts[s]})
	}
	return list
}

func (w *Web) cancelBatchPage(r *http.Request) (page, error) {
	b, err := w.batch(r)
	return page{title: "Cancel " + b.Label(), section: "batches", template: "batch-cancel", data: map[string]any{
		"Batch": b, "Operator": w.may(r, "operator"),
	}}, err
}

func (w *Web) batchAction(action, said string) func(r *http.Request) (string, string, error) {
	return func(r *http.Request) (string, string, error) {
		id := r.PathValue("id")
		var body any
		if action == "pause" {
			body = operators.PauseReason{Reason: r.PostFormValue("reason")}
		}
		return "/batches/" + url.PathEscape(id), said, w.post(r.Context(), operators.Path("batches", id, action), body)
	}
}
