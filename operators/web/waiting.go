package web

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	waitingListed = 100 // tasks on one page
	waitingAsked  = 5   // maximum number of API pages that are read to find the first tasks of a part
	waitingJudged = 200 // sample size on a live page, which is read often

	// waitingEvery is the interval at which the sample of a live page is evaluated again. The sample is
	// an estimate, and the most expensive part of its page.
	waitingEvery = 5 * time.Second
)

// waitingPages list the waiting tasks of a pool or a batch, with the reasons why they wait.
type waitingPages struct {
	*frame

	api client
}

func (w *waitingPages) route(to *site) {
	to.page("/pools/{id}/waiting", w.list("pools"))
	to.page("/batches/{id}/waiting", w.list("batches"))
}

// waits summarizes the reasons why tasks wait, as pages show them.
type waits struct {
	operators.Waiting

	Path     string // path of the page that lists the waiting tasks
	Unknown  bool   // the API refused the summary with status 503
	Code     string // reason whose tasks are listed; empty means all reasons
	Bar      []part
	Named    map[string]*operators.WaitingPart
	Remedies remedies // remedies for this visitor; the other fields are the same for all visitors
}

// waitsLately returns a cache for the summaries of live pages. It keeps only summaries that were made
// from a sample.
func waitsLately() *lately[waits] {
	l := newLately[waits](waitingEvery)
	l.keeps = func(w waits) bool { return w.Sampled }
	return l
}

// waitsNow returns a function that reads why tasks wait, for a live page of a pool or a batch.
func waitsNow(api client, kept *lately[waits], now func() time.Time, kind string) func(r *http.Request) (waits, error) {
	return func(r *http.Request) (waits, error) {
		id := r.PathValue("id")
		found, err := kept.read(r.Context(), kind+" "+id, now(), func(ctx context.Context) (waits, error) {
			return waitsOf(r.WithContext(ctx), api, kind, id, waitingJudged)
		})
		if operators.Refused(err, http.StatusServiceUnavailable) {
			return waits{Unknown: true}, nil
		}
		return found, err
	}
}

// waitsOf reads why tasks wait in the pool or batch with this id. It evaluates at most sample tasks.
func waitsOf(r *http.Request, api client, kind, id string, sample int) (waits, error) {
	w := waits{Path: "/" + kind + "/" + url.PathEscape(id) + "/waiting", Named: map[string]*operators.WaitingPart{}}
	if err := api.get(r, operators.Path(kind, id, "waiting"), url.Values{"sample": {strconv.Itoa(sample)}}, &w.Waiting); err != nil {
		return w, err
	}
	x := 0.0
	for i, p := range w.Parts {
		wide := 100 * float64(p.Count) / float64(w.Total)
		w.Bar, w.Named[p.Code] = append(w.Bar, part{p.Code, p.Count, x, wide}), &w.Parts[i]
		x += wide
	}
	return w, nil
}

func (w *waitingPages) list(kind string) loader {
	return func(r *http.Request) (page, error) {
		id, filters := r.PathValue("id"), filtersOf(r.URL.Query(), "code")
		pager := pagerOf(r, filters)
		listed := make(chan operators.WaitingTaskList, 1)
		listing := rescue.Async(func() error { // concurrent with the summary: each may take nearly all of the page's time
			found, err := w.tasks(r, operators.Path(kind, id, "waiting", "tasks"), pager.query(waitingListed))
			listed <- found
			return err
		})
		all, err := waitsOf(r, w.api, kind, id, 500)
		if err = cmp.Or(err, <-listing); err != nil {
			return page{}, err
		}
		found := <-listed
		all.Code, all.Remedies = filters.Get("code"), w.remedies(r)
		return page{title: "Waiting in " + map[string]string{"batches": "batch "}[kind] + id, section: kind, template: "waiting-list", data: map[string]any{
			"Waits": all, "Tasks": found.Tasks, "Next": pager.next(found.NextPageToken), "First": pager.first(), "Kind": kind, "ID": id,
		}}, nil
	}
}

// tasks returns the first page of the API that is not empty. It reads at most waitingAsked pages.
func (w *waitingPages) tasks(r *http.Request, path string, query url.Values) (found operators.WaitingTaskList, err error) {
	for asked := 0; asked == 0 || len(found.Tasks) == 0 && found.NextPageToken != "" && asked < waitingAsked; asked++ {
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
