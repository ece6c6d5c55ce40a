package web

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
)

const batchesShown = 30

// batchPages show and change batches.
type batchPages struct {
	*pageSender

	api          client
	waitsCache   *ttlCache[waitSummary]
	summaryCache *ttlCache[operators.ResultSummary]
}

func (b *batchPages) registerRoutes(target *site) {
	target.addLivePage("/batches", b.loadList)
	addLivePageWithRedis(target, "/batches/{id}", newWaitSummaryReader(b.api, b.waitsCache, b.now, "batches"), b.loadPage)
	target.addPage("/batches/{id}/cancel", b.loadCancelPage)
	target.addPage("/batches/{id}/pause", b.loadPausePage)
	target.addForm("/batches/{id}/pause", "operator", b.api.newEntryAction("batches", "pause", "paused"))
	target.addForm("/batches/{id}/resume", "operator", b.api.newEntryAction("batches", "resume", "resumed"))
	target.addForm("/batches/{id}/cancel", "operator", b.cancelBatch)
	target.addPage("/batches/{id}/edit", b.loadEditPage)
	target.addForm("/batches/{id}/edit", "operator", b.editBatch)
	target.addCSVDownload("/batches/{id}/results.csv", b.selectResults)
}

// shownBatch is a batch of the API with the methods that the templates of pages need.
type shownBatch struct{ operators.Batch }

// barSegment is the share of one state in the progress bar of a batch. X and Width are in percent.
type barSegment struct {
	State    string
	Count    int64
	X, Width float64
}

// Parts returns the segments of the bar of the batch: one for each state in which the batch has tasks. The states in which tasks have
// ended come first.
func (b shownBatch) Parts() []barSegment {
	var list []barSegment
	x := 0.0
	for _, state := range []string{operators.Succeeded, operators.Failed, operators.TimedOut, operators.Cancelled, operators.Expired, operators.Suppressed, operators.Dispatched, operators.Pending} {
		n := b.Counts[state]
		if n == 0 || b.Total == 0 {
			continue
		}
		wide := 100 * float64(n) / float64(b.Total)
		list = append(list, barSegment{state, n, x, wide})
		x += wide
	}
	return list
}

// IsOpen reports whether tasks of the batch may still run.
func (b shownBatch) IsOpen() bool { return b.EndedTasks() < b.Total }

// countEndedTasks returns the number of tasks that ended in a state. If state is empty, it counts all ended tasks.
func (b shownBatch) countEndedTasks(state string) int64 {
	if state == "" {
		return b.EndedTasks()
	}
	return b.Counts[state]
}

// Label returns the name of the batch, or "batch" and its id if it has no name.
func (b shownBatch) Label() string {
	if b.Name != "" {
		return b.Name
	}
	return "batch " + strconv.FormatInt(b.ID, 10)
}

// RateText returns as text how many tasks of the batch end per minute.
func (b shownBatch) RateText() string {
	if b.RatePerMinute == nil {
		return "–"
	}
	return strconv.FormatFloat(*b.RatePerMinute, 'f', 1, 64)
}

func (b *batchPages) loadList(r *http.Request) (page, error) {
	filters := nonEmptyParams(r.URL.Query(), "name", "pool", "show")
	pager := newPager(r, filters)
	query := pager.query(batchesShown)
	query.Del("show")
	if show := filters.Get("show"); show == "most-failed" || show == "ended" {
		query.Set("sort", strings.TrimPrefix(show, "most-"))
	} else if show != "" {
		query.Set("state", show)
	}
	var list operators.BatchList
	if err := b.api.get(r, operators.Path("batches"), query, &list); err != nil {
		return page{}, err
	}
	shown := make([]shownBatch, len(list.Batches))
	for i, one := range list.Batches {
		shown[i] = shownBatch{one}
	}
	return page{title: "Batches", section: "batches", template: "batches", watch: updateTrigger{allEvents: true, everyTick: slices.ContainsFunc(shown, shownBatch.IsOpen)}, data: map[string]any{
		"Batches": shown, "Next": pager.nextAddress(list.NextPageToken), "First": pager.isFirst(), "Operator": b.mayOfferActions(r, "operator"), "Filters": filters, "Query": filters.Encode(),
	}}, nil
}

// readBatch reads the batch that the path of the request names.
func (b *batchPages) readBatch(r *http.Request) (found shownBatch, err error) {
	err = b.api.get(r, operators.Path("batches", r.PathValue("id")), nil, &found)
	return found, err
}

// loadPage returns the page of one batch. waiting summarizes why its tasks wait.
func (b *batchPages) loadPage(r *http.Request, waiting waitSummary) (page, error) {
	one, err := b.readBatch(r)
	if err != nil {
		return page{}, err
	}
	results, err := b.readResults(r, one)
	if err != nil {
		return page{}, err
	}
	if one.Counts[operators.Pending] == 0 {
		waiting = waitSummary{} // waiting was read before the batch; no task waits any more
	}
	if waiting.isStuck() {
		one.ETA = nil
	}
	waiting.Remedies = b.newRemedies(r)
	policies, err := json.Marshal(one.Limits)
	return page{title: one.Label(), section: "batches", template: "batch", watch: updateTrigger{batch: one.ID, everyTick: one.IsOpen()}, data: map[string]any{
		"Batch": one, "Waits": waiting, "Results": results, "Operator": b.mayOfferActions(r, "operator"), "Course": newProgressChart(results.Progress, one.Total, one.ShownETA()),
		"States": operators.TaskStates(), "Limited": len(one.Limits) > 0, "Limits": json.RawMessage(policies),
	}}, err
}
