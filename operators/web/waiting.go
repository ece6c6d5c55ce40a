package web

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	waitingPerPage  = 100 // tasks on one page
	maxWaitingReads = 5   // maximum number of API pages that are read to find the first listed task
	liveSampleSize  = 200 // sample size on a live page, which is read often

	// waitingReadEvery is the interval at which the sample of a live page is evaluated again. The sample is
	// an estimate, and the most expensive part of its page.
	waitingReadEvery = 5 * time.Second
)

// waitingPages list the waiting tasks of a pool or a batch, with the reasons why they wait.
type waitingPages struct {
	*pageSender

	api client
}

func (w *waitingPages) registerRoutes(target *site) {
	target.addPage("/pools/{id}/waiting", w.newWaitingPageLoader("pools"))
	target.addPage("/batches/{id}/waiting", w.newWaitingPageLoader("batches"))
}

// waitSummary summarizes the reasons why tasks wait, as pages show them.
type waitSummary struct {
	operators.Waiting

	Path     string // path of the page that lists the waiting tasks
	Unknown  bool   // the API refused the summary with status 503
	Code     string // reason whose tasks are listed; empty means all reasons
	Bar      []barSegment
	Named    map[string]*operators.WaitingPart // the parts by the code of their reason
	Remedies remedyRenderer                    // remedies for this visitor; the other fields are the same for all visitors
}

// isStuck reports whether tasks wait, and none of them can start before somebody acts.
func (w waitSummary) isStuck() bool {
	return len(w.Parts) > 0 && !slices.ContainsFunc(w.Parts, func(p operators.WaitingPart) bool { return decision.PassesByItself(decision.Code(p.Code)) })
}

// newWaitSummaryCache returns a cache for the summaries of live pages. It keeps only summaries that were made from a sample.
func newWaitSummaryCache() *ttlCache[waitSummary] {
	l := newTTLCache[waitSummary](waitingReadEvery)
	l.mayKeep = func(w waitSummary) bool { return w.Sampled }
	return l
}

// newWaitSummaryReader returns a function that reads why tasks wait, for a live page of a pool or a batch (poolsOrBatches is "pools" or
// "batches").
func newWaitSummaryReader(api client, cache *ttlCache[waitSummary], now func() time.Time, poolsOrBatches string) (read func(r *http.Request) (waitSummary, error)) {
	return func(r *http.Request) (waitSummary, error) {
		id := r.PathValue("id")
		found, err := cache.getOrRead(r.Context(), poolsOrBatches+" "+id, now(), func(ctx context.Context) (waitSummary, error) {
			return readWaitSummary(r.WithContext(ctx), api, poolsOrBatches, id, liveSampleSize)
		})
		if operators.HasStatus(err, http.StatusServiceUnavailable) {
			return waitSummary{Unknown: true}, nil
		}
		return found, err
	}
}

// readWaitSummary reads why tasks wait in the pool or batch with this id (poolsOrBatches is "pools" or "batches"). It evaluates at most
// maxSampled tasks.
func readWaitSummary(r *http.Request, api client, poolsOrBatches, id string, maxSampled int) (waitSummary, error) {
	w := waitSummary{Path: "/" + poolsOrBatches + "/" + url.PathEscape(id) + "/waiting", Named: map[string]*operators.WaitingPart{}}
	if err := api.get(r, operators.Path(poolsOrBatches, id, "waiting"), url.Values{"sample": {strconv.Itoa(maxSampled)}}, &w.Waiting); err != nil {
		return w, err
	}
	x := 0.0
	for i, p := range w.Parts {
		wide := 100 * float64(p.Count) / float64(w.Total)
		w.Bar, w.Named[p.Code] = append(w.Bar, barSegment{p.Code, p.Count, x, wide}), &w.Parts[i]
		x += wide
	}
	return w, nil
}

// newWaitingPageLoader returns the loader of the page with the waiting tasks of a pool or a batch (poolsOrBatches is "pools" or "batches").
func (w *waitingPages) newWaitingPageLoader(poolsOrBatches string) pageLoader {
	return func(r *http.Request) (page, error) {
		id, filters := r.PathValue("id"), nonEmptyParams(r.URL.Query(), "code")
		pager := newPager(r, filters)
		listed := make(chan operators.WaitingTaskList, 1)
		listing := rescue.Async(func() error { // concurrent with the summary: each may take nearly all of the page's time
			found, err := w.readTasks(r, operators.Path(poolsOrBatches, id, "waiting", "tasks"), pager.query(waitingPerPage))
			listed <- found
			return err
		})
		all, err := readWaitSummary(r, w.api, poolsOrBatches, id, 500)
		if err = cmp.Or(err, <-listing); err != nil {
			return page{}, err
		}
		found := <-listed
		all.Code, all.Remedies = filters.Get("code"), w.newRemedies(r)
		return page{title: "Waiting in " + map[string]string{"batches": "batch "}[poolsOrBatches] + id, section: poolsOrBatches, template: "waiting-list", data: map[string]any{
			"Waits": all, "Tasks": found.Tasks, "Next": pager.nextAddress(found.NextPageToken), "First": pager.isFirst(), "Kind": poolsOrBatches, "ID": id,
		}}, nil
	}
}

// readTasks returns the first page of the API that is not empty. It reads at most maxWaitingReads pages.
func (w *waitingPages) readTasks(r *http.Request, path string, query url.Values) (found operators.WaitingTaskList, err error) {
	for asked := 0; asked == 0 || len(found.Tasks) == 0 && found.NextPageToken != "" && asked < maxWaitingReads; asked++ {
		if asked > 0 {
			query.Set("page_token", found.NextPageToken)
		}
		found = operators.WaitingTaskList{}
		if err := w.api.get(r, path, query, &found); err != nil {
			return found, err
		}
	}
	return found, nil
}
