package web

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	eventsShown   = 100
	maxPoolsShown = 8 // maximum number of pools that one row of a list of events names
)

// activityPages show the events of the log.
type activityPages struct {
	*pageSender

	api client
}

func (a *activityPages) registerRoutes(target *site) {
	target.addLivePage("/activity", a.loadList)
	target.addCSVDownload("/activity.csv", a.selectEvents)
}

// eventFilterNames returns the names of the API filters that the page offers.
func eventFilterNames() []string {
	return []string{"kind", "actor", "actor_kind", "pool", "batch", "task", "device"}
}

// If the filter actor_kind has the value everybody, the page shows the events of all actors. Without a filter it shows only events of
// operators, because the many grants of devices would hide them.
const everybody = "everybody"

func (a *activityPages) loadList(r *http.Request) (page, error) {
	filters := nonEmptyParams(r.URL.Query(), append(eventFilterNames(), "since", "until")...)
	if len(filters) == 0 {
		filters.Set("actor_kind", "operator")
	}
	pager := newPager(r, filters)
	query, err := toAPIEventQuery(pager.query(eventsShown))
	if err != nil {
		return page{}, err
	}
	var list operators.EventList
	if err := a.api.get(r, operators.Path("events"), query, &list); err != nil {
		return page{}, err
	}
	trigger := newFilterTrigger(filters)
	if !pager.isFirst() {
		trigger = updateTrigger{} // only the first page, which has the newest events, can change
	}
	return page{title: "Activity", section: "activity", template: "activity", watch: trigger, data: map[string]any{
		"Events": list.Events, "Next": pager.nextAddress(list.NextPageToken), "First": pager.isFirst(), "Filters": filters, "Query": filters.Encode(), "Names": eventFilterNames()[3:],
	}}, nil
}

// toAPIEventQuery converts the query of the page to the query of the API. The two queries have different values for "all actors"
// and different formats of times.
func toAPIEventQuery(query url.Values) (apiQuery url.Values, err error) {
	if query.Get("actor_kind") == everybody {
		query.Del("actor_kind")
	}
	return convertTimes(query)
}

// convertTimes converts the times in the query from the format of browsers to the format of the API.
func convertTimes(query url.Values) (converted url.Values, err error) {
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

// eventText is an event as a list shows it. If the event concerns several pools, Detail lacks their names.
type eventText struct {
	operators.Event

	Pools []string // at most maxPoolsShown pools
	More  int      // number of pools that are not in Pools
}

func newEventText(event operators.Event) eventText {
	t := eventText{Event: event}
	switch {
	case strings.HasPrefix(event.Kind, "pools."):
		var names string
		names, t.Detail, _ = strings.Cut(event.Detail, " ")
		t.Pools = strings.Split(names, ",")
	case event.Pool != "":
		t.Pools = []string{event.Pool}
	}
	if t.More = len(t.Pools) - maxPoolsShown; t.More > 0 {
		t.Pools = t.Pools[:maxPoolsShown]
	}
	return t
}

// newFilterTrigger returns the updateTrigger of a page that lists events. The page is read again after an event about one of the objects in filters.
func newFilterTrigger(filters url.Values) updateTrigger {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(filters.Get(name), 10, 64)
		return n
	}
	narrow := updateTrigger{pool: filters.Get("pool"), batch: number("batch"), task: number("task"), device: filters.Get("device")}
	if narrow == (updateTrigger{}) {
		return updateTrigger{allEvents: true}
	}
	return narrow
}

func (a *activityPages) selectEvents(r *http.Request) (csvExport, error) {
	query, err := toAPIEventQuery(nonEmptyParams(r.URL.Query(), append(eventFilterNames(), "since", "until")...))
	return csvExport{operators.Path("events"), query, "activity"}, err
}
