package web

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/fleetslots/dispatcher/operators"
)

const eventsShown = 100

// activityPages show the events.
type activityPages struct {
	*frame

	api    client
	inside API
}

func (a *activityPages) route(to *site) {
	to.live("/activity", a.list)
	to.pages.HandleFunc("GET /activity.csv", a.csv)
}

// eventFilters are the filters of the API that the page offers.
func eventFilters() []string { return []string{"kind", "actor", "pool", "batch", "task", "device"} }

func (a *activityPages) list(r *http.Request) (page, error) {
	filters := filtersOf(r.URL.Query(), eventFilters()...)
	pager := pagerOf(r, filters)
	var list operators.EventList
	if err := a.api.get(r, operators.Path("events"), pager.query(eventsShown), &list); err != nil {
		return page{}, err
	}
	return page{title: "Activity", section: "activity", template: "activity", watch: eventsWatch(filters, pager.first()), data: map[string]any{
		"Events": list.Events, "Next": pager.next(list.NextPageToken), "First": pager.first(), "Filters": filters, "Query": filters.Encode(), "Names": eventFilters(),
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

// csv streams all events that match, as the API does.
func (a *activityPages) csv(rw http.ResponseWriter, r *http.Request) {
	in, err := http.NewRequestWithContext(r.Context(), http.MethodGet, operators.Path("events")+"?"+filtersOf(r.URL.Query(), eventFilters()...).Encode(), nil)
	if err != nil {
		a.fail(rw, r, &operators.Problem{Status: http.StatusBadRequest, Detail: err.Error()})
		return
	}
	in.Header.Set("Accept", "text/csv")
	rw.Header().Set("Content-Disposition", `attachment; filename="activity.csv"`)
	a.inside.Inside(visitorOf(r.Context()), rw, in)
}
