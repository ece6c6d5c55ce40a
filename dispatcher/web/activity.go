package web

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/fleetslots/dispatcher/operators"
)

const eventsShown = 100

func (w *Web) routeActivity() {
	w.livePage("/activity", w.inOneMoment(w.activityPage))
	w.pages.HandleFunc("GET /activity.csv", w.activityCSV)
}

// eventFilters are the filters of the API that the page offers.
func eventFilters() []string { return []string{"kind", "actor", "pool", "batch", "task", "device"} }

func eventQuery(from url.Values) url.Values {
	filters := url.Values{}
	for _, name := range eventFilters() {
		if v := from.Get(name); v != "" {
			filters.Set(name, v)
		}
	}
	return filters
}

func (w *Web) activityPage(r *http.Request) (page, error) {
	filters := eventQuery(r.URL.Query())
	query, onwards := url.Values{"page_size": {strconv.Itoa(eventsShown)}}, url.Values{}
	for name := range filters {
		query.Set(name, filters.Get(name))
		onwards.Set(name, filters.Get(name))
	}
	token := r.URL.Query().Get("page")
	if token != "" {
		query.Set("page_token", token)
	}
	var list operators.EventList
	if err := w.get(r, operators.Path("events"), query, &list); err != nil {
		return page{}, err
	}
	next := ""
	if list.NextPageToken != "" {
		onwards.Set("page", list.NextPageToken)
		next = "/activity?" + onwards.Encode()
	}
	return page{title: "Activity", section: "activity", template: "activity", watch: eventsWatch(filters, token == ""), data: map[string]any{
		"Events": list.Events, "Next": next, "First": token == "", "Filters": filters, "Query": filters.Encode(), "Names": eventFilters(),
	}}, nil
}

// eventsWatch: only the newest page changes.
func eventsWatch(filters url.Values, newest bool) watch {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(filters.Get(name), 10, 64)
		return n
	}
	narrow := watch{pool: filters.Get("pool"), batch: number("batch"), task: number("task"), device: filters.Get("device")}
	switch {
	case !newest:
		return watch{}
	case narrow == watch{}:
		return watch{any: true}
	}
	return narrow
}

// activityCSV streams all events that match, as the API does.
func (w *Web) activityCSV(rw http.ResponseWriter, r *http.Request) {
	in, err := http.NewRequestWithContext(r.Context(), http.MethodGet, operators.Path("events")+"?"+eventQuery(r.URL.Query()).Encode(), nil)
	if err != nil {
		w.fail(rw, r, &operators.Problem{Status: http.StatusBadRequest, Detail: err.Error()})
		return
	}
	in.Header.Set("Accept", "text/csv")
	rw.Header().Set("Content-Disposition", `attachment; filename="activity.csv"`)
	w.options.API.Inside(visitorOf(r.Context()), rw, in)
}
