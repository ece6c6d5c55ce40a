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
	waitingListed = 100 // tasks of one page
	waitingAsked  = 5   // pages of the API that are asked for the first of a part
	waitingJudged = 200 // of a live page, which is read often

	// waitingEvery is how often a sample is judged anew: it is an estimate, and the dearest
	// part of its page.
	waitingEvery = 5 * time.Second
)

// waitingPages list what waits in a pool or of a batch.
type waitingPages struct {
	*frame

	api client
}

func (w *waitingPages) route(to *site) {
	to.page("/pools/{id}/waiting", w.list("pools"))
	to.page("/batches/{id}/waiting", w.list("batches"))
}

// waits is what tasks wait for, as pages show it.
type waits struct {
	operators.Waiting

	Path     string // of the page that lists them
	Unknown  bool   // the ledger did not say in time
	Code     string // of the part that is listed; empty: all
	Bar      []part
	Named    map[string]*operators.WaitingPart
	Remedies remedies // to the visitor; all else is of all visitors
}

// waitsLately keeps samples for the live pages.
func waitsLately() *lately[waits] {
	l := newLately[waits](waitingEvery)
	l.keeps = func(w waits) bool { return w.Sampled }
	return l
}

// waitsNow reads what waits, for a live page of a pool or batch.
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

// waitsOf reads what waits in the pool or batch at a path.
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
		listing := rescue.Async(func() error { // beside the summary: each may take nearly all of the page's time
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

// tasks reads the first page of the API that is not empty, of a few pages.
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
