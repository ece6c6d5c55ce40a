package web

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/fleetslots/dispatcher/operators"
)

const batchesShown = 30

// batchPages show and change batches.
type batchPages struct {
	*frame

	api    client
	inside API
	waits  *lately[waits]
	summed *lately[operators.ResultSummary]
}

func (b *batchPages) route(to *site) {
	to.live("/batches", b.list)
	liveAsked(to, "/batches/{id}", waitsNow(b.api, b.waits, b.now, "batches"), b.show)
	to.page("/batches/{id}/cancel", b.cancelling)
	to.page("/batches/{id}/pause", b.pausing)
	to.act("/batches/{id}/pause", "operator", b.api.command("batches", "pause", "paused"))
	to.act("/batches/{id}/resume", "operator", b.api.command("batches", "resume", "resumed"))
	to.act("/batches/{id}/cancel", "operator", b.cancel)
	to.page("/batches/{id}/edit", b.editing)
	to.act("/batches/{id}/edit", "operator", b.edit)
	to.pages.HandleFunc("GET /batches/{id}/results.csv", b.csv)
}

// batch adds the values that pages show to a batch.
type batch struct{ operators.Batch }

// part is the share of one state in the progress bar of a batch. X and Width are in percent.
type part struct {
	State    string
	Count    int64
	X, Width float64
}

// Parts returns the states in which the batch has tasks. The states in which tasks have ended come
// first.
func (b batch) Parts() []part {
	var list []part
	x := 0.0
	for _, state := range []string{operators.Succeeded, operators.Failed, operators.TimedOut, operators.Cancelled, operators.Expired, operators.Suppressed, operators.Dispatched, operators.Pending} {
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

// Open reports whether tasks of the batch may still run.
func (b batch) Open() bool { return b.Ended() < b.Total }

// endedIn returns the number of tasks that ended in a state. If state is empty, it counts all ended
// tasks.
func (b batch) endedIn(state string) int64 {
	if state == "" {
		return b.Ended()
	}
	return b.Counts[state]
}

// Label returns the name of the batch, or "batch" and its id if it has no name.
func (b batch) Label() string {
	if b.Name != "" {
		return b.Name
	}
	return "batch " + strconv.FormatInt(b.ID, 10)
}

// RateText returns how many tasks end per minute.
func (b batch) RateText() string {
	if b.RatePerMinute == nil {
		return "–"
	}
	return strconv.FormatFloat(*b.RatePerMinute, 'f', 1, 64)
}

func (b *batchPages) list(r *http.Request) (page, error) {
	filters := filtersOf(r.URL.Query(), "name")
	pager := pagerOf(r, filters)
	var list operators.BatchList
	if err := b.api.get(r, operators.Path("batches"), pager.query(batchesShown), &list); err != nil {
		return page{}, err
	}
	shown := make([]batch, len(list.Batches))
	for i, one := range list.Batches {
		shown[i] = batch{one}
	}
	return page{title: "Batches", section: "batches", template: "batches", watch: watch{any: true, always: slices.ContainsFunc(shown, batch.Open)}, data: map[string]any{
		"Batches": shown, "Next": pager.next(list.NextPageToken), "First": pager.first(), "Operator": b.may(r, "operator"), "Name": filters.Get("name"),
	}}, nil
}

func (b *batchPages) read(r *http.Request) (read batch, err error) {
	err = b.api.get(r, operators.Path("batches", r.PathValue("id")), nil, &read)
	return read, err
}

func (b *batchPages) show(r *http.Request, waiting waits) (page, error) {
	one, err := b.read(r)
	if err != nil {
		return page{}, err
	}
	results, err := b.results(r, one)
	if err != nil {
		return page{}, err
	}
	if one.Counts[operators.Pending] == 0 {
		waiting = waits{} // the sample is older than the batch as read here
	}
	waiting.Remedies = b.remedies(r)
	policies, err := json.Marshal(one.Limits)
	return page{title: one.Label(), section: "batches", template: "batch", watch: watch{batch: one.ID, always: one.Open()}, data: map[string]any{
		"Batch": one, "Waits": waiting, "Results": results, "Operator": b.may(r, "operator"), "Course": courseOf(results.Progress, one.Total, one.ETA),
		"States": operators.TaskStates(), "Limited": len(one.Limits) > 0, "Limits": json.RawMessage(policies),
	}}, err
}
