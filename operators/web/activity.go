package web

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

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
	filters := filtersOf(r.URL.Query(), append(eventFilters(), "since", "until")...)
	pager := pagerOf(r, filters)
	query, err := withTimes(pager.query(eventsShown))
	if err != nil {
		return page{}, err
	}
	var list operators.EventList
	if err := a.api.get(r, operators.Path("events"), query, &list); err != nil {
		return page{}, err
	}
	return page{title: "Activity", section: "activity", template: "activity", watch: eventsWatch(filters, pager.first()), data: map[string]any{
		"Events": list.Events, "Next": pager.next(list.NextPageToken), "First": pager.first(), "Filters": filters, "Query": filters.Encode(), "Names": eventFilters(),
	}}, nil
}

// withTimes makes times as browsers send them those of the API.
func withTimes(query url.Values) (url.Values, error) {
	for _, name := range []string{"since", "until"} {
		at, err := chosenTime(query, name)
		if err != nil {
			return nil, err
		}
		if !at.IsZero() {
			query.Set(name, at.Format(time.RFC3339))
		}
	}
	return query, nil
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
	query, err := withTimes(filtersOf(r.URL.Query(), append(eventFilters(), "since", "until")...))
	if err != nil {
		a.fail(rw, r, err)
		return
	}
	in, err := http.NewRequestWithContext(r.Context(), http.MethodGet, operators.Path("events")+"?"+query.Encode(), nil)
	if err != nil {
		a.fail(rw, r, &operators.Problem{Status: http.StatusBadRequest, Detail: err.Error()})
		return
	}
	in.Header.Set("Accept", "text/csv")
	rw.Header().Set("Content-Disposition", `attachment; filename="activity.csv"`)
	a.inside.Inside(visitorOf(r.Context()), rw, in)
}
