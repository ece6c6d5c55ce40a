package web

import (
	"net/http"
	"net/url"
	"strconv"

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

// part is one state of a batch in its progress, out of 100.
type part struct {
	State    string
	Count    int64
	X, Width float64
}

// Parts are the states that a batch has tasks in, those that ended first.
func (b batchJSON) Parts() []part {
	var list []part
	x := 0.0
	for _, state := range []string{"succeeded", "failed", "timed_out", "cancelled", "expired", "dispatched", "pending"} {
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

// Ended counts the tasks that will not run any more.
func (b batchJSON) Ended() int64 { return b.Total - b.Counts["pending"] - b.Counts["dispatched"] }

// Open says that something of the batch may still run.
func (b batchJSON) Open() bool { return b.Ended() < b.Total }

// Label is what people call the batch.
func (b batchJSON) Label() string {
	if b.Name != "" {
		return b.Name
	}
	return "batch " + strconv.FormatInt(b.ID, 10)
}

// RateText is how many tasks end in a minute.
func (b batchJSON) RateText() string {
	if b.Rate == nil {
		return "–"
	}
	return strconv.FormatFloat(*b.Rate, 'f', 1, 64)
}

func (w *Web) batchesPage(r *http.Request) (page, error) {
	var list batchListJSON
	query := url.Values{"page_size": {strconv.Itoa(batchesShown)}}
	token := r.URL.Query().Get("page")
	if token != "" {
		query.Set("page_token", token)
	}
	if err := w.get(r, apiPath("batches"), query, &list); err != nil {
		return page{}, err
	}
	next := ""
	if list.Next != "" {
		next = "/batches?" + url.Values{"page": {list.Next}}.Encode()
	}
	return page{title: "Batches", section: "batches", template: "batches", watch: watch{any: true, always: openOf(list.Batches)}, data: map[string]any{
		"Batches": list.Batches, "Next": next, "First": token == "", "Operator": w.may(r, "operator"),
	}}, nil
}

// openOf says whether counts and rates may still change by themselves.
func openOf(list []batchJSON) bool {
	for _, b := range list {
		if b.Open() {
			return true
		}
	}
	return false
}

func (w *Web) batch(r *http.Request) (batchJSON, error) {
	var b batchJSON
	err := w.get(r, apiPath("batches", r.PathValue("id")), nil, &b)
	return b, err
}

func (w *Web) batchPage(r *http.Request) (page, error) {
	b, err := w.batch(r)
	if err != nil {
		return page{}, err
	}
	var top []store.ErrorCount
	if b.Counts["failed"]+b.Counts["timed_out"] > 0 {
		if top, err = w.options.Ledger.TopErrors(r.Context(), b.ID, errorsSample, errorsShown); err != nil {
			return page{}, err
		}
	}
	return page{title: b.Label(), section: "batches", template: "batch", watch: watch{batch: b.ID, always: b.Open()}, data: map[string]any{
		"Batch": b, "Errors": top, "Sampled": b.Counts["failed"] > errorsSample || b.Counts["timed_out"] > errorsSample, "Operator": w.may(r, "operator"),
		"States": stateCounts(b.Counts), "Limited": len(b.Limits) > len("[]"),
	}}, nil
}

// stateCount is a state of tasks and how many are in it.
type stateCount struct {
	State string
	Count int64
}

func stateCounts(counts map[string]int64) []stateCount {
	var list []stateCount
	for _, s := range store.TaskStates() {
		list = append(list, stateCount{string(s), counts[string(s)]})
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
		what := request{method: http.MethodPost, path: apiPath("batches", id, action)}
		if action == "pause" {
			what.body = map[string]any{"reason": r.PostFormValue("reason")}
		}
		return "/batches/" + url.PathEscape(id), said, w.ask(r.Context(), visitorOf(r.Context()), what, nil)
	}
}
