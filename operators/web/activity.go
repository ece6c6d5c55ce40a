package web

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const eventsShown = 100

// activityPages show the events of the log.
type activityPages struct {
	*frame

	api    client
	rawAPI API // streams the CSV
}

// registerRoutes adds the pages to target.
func (a *activityPages) registerRoutes(target *site) {
	target.addLivePage("/activity", a.list)
	target.pages.HandleFunc("GET /activity.csv", a.serveCSV)
}

// eventFilters returns the names of the API filters that the page offers.
func eventFilters() []string {
	return []string{"kind", "actor", "actor_kind", "pool", "batch", "task", "device"}
}

// list returns the page with the events that match the query of the request.
func (a *activityPages) list(r *http.Request) (page, error) {
	filters := nonEmptyParams(r.URL.Query(), append(eventFilters(), "since", "until")...)
	pager := newPager(r, filters)
	query, err := convertTimes(pager.query(eventsShown))
	if err != nil {
		return page{}, err
	}
	var list operators.EventList
	if err := a.api.get(r, operators.Path("events"), query, &list); err != nil {
		return page{}, err
	}
	return page{title: "Activity", section: "activity", template: "activity", watch: eventsWatch(filters, pager.isFirst()), data: map[string]any{
		"Events": list.Events, "Next": pager.nextAddress(list.NextPageToken), "First": pager.isFirst(), "Filters": filters, "Query": filters.Encode(), "Names": eventFilters(),
	}}, nil
}

// convertTimes converts the times in the query from the format of browsers to the format of the API.
func convertTimes(query url.Values) (url.Values, error) {
	for _, name := range []string{"since", "until"} {
		at, err := parseTimeParam(query, name)
		if err != nil {
			return nil, err
		}
		if !at.IsZero() {
			query.Set(name, at.Format(time.RFC3339Nano))
		}
	}
	return query, nil
}

// eventsWatch returns the watch (the condition for reading the page again) of a list of events with these filters. If the page is not the
// newest one of the list, the watch is zero, because older pages do not change.
func eventsWatch(filters url.Values, isNewestPage bool) watch {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(filters.Get(name), 10, 64)
		return n
	}
	narrow := watch{pool: filters.Get("pool"), batch: number("batch"), task: number("task"), device: filters.Get("device")}
	switch {
	case !isNewestPage:
		return watch{}
	case narrow == watch{}:
		return watch{allEvents: true}
	}
	return narrow
}

// serveCSV streams all events that match the query of the request as CSV. The API writes the CSV.
func (a *activityPages) serveCSV(rw http.ResponseWriter, r *http.Request) {
	query, err := convertTimes(nonEmptyParams(r.URL.Query(), append(eventFilters(), "since", "until")...))
	if err != nil {
		a.sendError(rw, r, err)
		return
	}
	a.streamCSV(rw, r, a.rawAPI, operators.Path("events"), query, "activity")
}
