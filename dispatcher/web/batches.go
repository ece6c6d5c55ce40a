package web

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/fleetslots/dispatcher/store"
)

const (
	batchesShown = 30
	errorsSample = 1000 // failed tasks whose errors are grouped, of each state
	errorsShown  = 5
)

func (w *Web) routeBatches() {
	w.page("/batches", w.batchesPage)
	w.page("/batches/{id}", w.batchPage)
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
		"States": stateCounts(b.Counts),
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

// batchForm is what was entered, and what came of counting it.
type batchForm struct {
	Name, Pool, Kind, Payload, Devices, Tags string
	Attempts, Weight, Priority               string
	Key                                      string // Idempotency-Key: sending the form twice creates one batch
	Operator                                 bool
	Counted                                  *int64 // tasks that it would create
	Problem                                  string
}

func (w *Web) newBatchPage(r *http.Request) (page, error) {
	return batchFormPage(batchForm{
		Pool: r.URL.Query().Get("pool"), Attempts: "3", Weight: "1", Priority: "0", Key: newKey(), Operator: w.may(r, "operator"),
	}), nil
}

func batchFormPage(f batchForm) page {
	return page{title: "New batch", section: "batches", template: "batch-new", data: f}
}

// createBatch counts or creates. What is refused comes back as it was entered.
func (w *Web) createBatch(rw http.ResponseWriter, r *http.Request) {
	f := batchForm{
		Name: r.PostFormValue("name"), Pool: r.PostFormValue("pool"), Kind: r.PostFormValue("kind"), Payload: r.PostFormValue("payload"),
		Devices: r.PostFormValue("devices"), Tags: r.PostFormValue("tags"), Attempts: r.PostFormValue("attempts"), Weight: r.PostFormValue("weight"),
		Priority: r.PostFormValue("priority"), Key: r.PostFormValue("key"), Operator: w.may(r, "operator"),
	}
	status := http.StatusOK
	if !f.Operator {
		f.Problem, status = w.refusal("operator"), http.StatusForbidden
	} else if err := w.submit(r, &f); err != nil {
		f.Problem, status = plainError(err), http.StatusUnprocessableEntity
	} else if f.Counted == nil {
		http.Redirect(rw, r, w.url("/batches?done=created"), http.StatusSeeOther)
		return
	}
	made, err := w.sheets.render(batchFormPage(f))
	if err != nil {
		w.fail(rw, r, err)
		return
	}
	w.send(rw, r, status, "batches", made)
}

// submit creates the batch, or counts its tasks if that was asked.
func (w *Web) submit(r *http.Request, f *batchForm) error {
	body, err := f.body()
	if err != nil {
		return err
	}
	what := request{method: http.MethodPost, path: apiPath("batches"), body: body, key: f.Key}
	count := r.PostFormValue("do") == "count"
	if count {
		what.query, what.key = url.Values{"dry_run": {"true"}}, ""
	}
	var made struct {
		Tasks int64 `json:"tasks"`
	}
	if err := w.ask(r.Context(), visitorOf(r.Context()), what, &made); err != nil {
		return err
	}
	if count {
		f.Counted = &made.Tasks
	}
	return nil
}

// body is the request that the form stands for.
func (f batchForm) body() (map[string]any, error) {
	body := map[string]any{"name": f.Name, "pool": f.Pool, "kind": f.Kind}
	for field, text := range map[string]string{"max_attempts": f.Attempts, "weight": f.Weight, "priority": f.Priority} {
		if strings.TrimSpace(text) == "" {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return nil, badForm(strings.ReplaceAll(field, "_", " ") + ": a whole number.")
		}
		body[field] = n
	}
	if payload := strings.TrimSpace(f.Payload); payload != "" {
		if !json.Valid([]byte(payload)) {
			return nil, badForm("Payload: not JSON.")
		}
		body["payload"] = json.RawMessage(payload)
	}
	if list := strings.FieldsFunc(f.Devices, func(c rune) bool { return strings.ContainsRune(" \t\r\n,;", c) }); len(list) > 0 {
		body["devices"] = list
	}
	if strings.TrimSpace(f.Tags) == "" {
		return body, nil
	}
	tags := map[string]string{}
	for pair := range strings.FieldsSeq(strings.ReplaceAll(f.Tags, ",", " ")) {
		name, value, ok := strings.Cut(pair, ":")
		if !ok {
			return nil, badForm("Tags: name:value, with spaces between.")
		}
		tags[name] = value
	}
	body["select"] = map[string]any{"tags": tags}
	return body, nil
}
