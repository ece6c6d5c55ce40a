package web

import (
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	devicesShown = 50
	recentShown  = 100
	silentLooked = 1000        // devices of one page that are looked at for silence
	silentFor    = 3           // periods
	seenWithin   = time.Minute // how exact it is known when a device was seen
)

func (w *Web) routeDevices() {
	w.livePage("/devices", w.inOneMoment(w.devicesPage))
	w.livePage("/devices/{id}", w.inOneMoment(w.devicePage))
	w.page("/devices/{id}/block", w.blockPage)
	w.act("/devices/{id}/block", "operator", w.deviceAction("block", "blocked"))
	w.act("/devices/{id}/unblock", "operator", w.deviceAction("unblock", "unblocked"))
}

// devicesPage lists devices by id, those seen last, or, of many of them at once,
// those that are silent.
func (w *Web) devicesPage(r *http.Request) (page, error) {
	q := r.URL.Query()
	show, token := q.Get("show"), q.Get("page")
	query := url.Values{"page_size": {strconv.Itoa(devicesShown)}}
	onwards := url.Values{}
	set := func(name, parameter string) {
		if v := q.Get(name); v != "" {
			query.Set(parameter, v)
			onwards.Set(name, v)
		}
	}
	switch show {
	case "recent":
		query = url.Values{"recent": {strconv.Itoa(recentShown)}}
	case "silent":
		return w.silentPage(r)
	case "":
		set("prefix", "prefix")
		set("tag", "tag")
		set("blocked", "blocked")
		if token != "" {
			query.Set("page_token", token)
		}
	}
	var list deviceListJSON
	if err := w.get(r, apiPath("devices"), query, &list); err != nil {
		return page{}, err
	}
	next := ""
	if list.Next != "" && show != "recent" {
		onwards.Set("page", list.Next)
		next = "/devices?" + onwards.Encode()
	}
	return page{title: "Devices", section: "devices", template: "devices", watch: watch{always: show == "recent"}, data: map[string]any{
		"Devices": list.Devices, "Next": next, "First": token == "", "Show": show, "Silent": w.silence(),
		"Prefix": q.Get("prefix"), "Tag": q.Get("tag"), "Blocked": q.Get("blocked"),
	}}, nil
}

// devicePage shows one device and all that happened to it, in one line of time.
func (w *Web) devicePage(r *http.Request) (page, error) {
	id := r.PathValue("id")
	var d deviceJSON
	if err := w.get(r, apiPath("devices", id), nil, &d); err != nil {
		return page{}, err
	}
	var open, running taskListJSON
	of := func(state string) url.Values {
		return url.Values{"device": {id}, "state": {state}, "page_size": {"20"}}
	}
	if err := w.get(r, apiPath("tasks"), of("pending"), &open); err != nil {
		return page{}, err
	}
	if err := w.get(r, apiPath("tasks"), of("dispatched"), &running); err != nil {
		return page{}, err
	}
	query := url.Values{"device": {id}, "page_size": {strconv.Itoa(devicesShown)}}
	token := r.URL.Query().Get("page")
	if token != "" {
		query.Set("page_token", token)
	}
	var events eventListJSON
	if err := w.get(r, apiPath("events"), query, &events); err != nil {
		return page{}, err
	}
	older := ""
	if events.Next != "" {
		older = "/devices/" + url.PathEscape(id) + "?" + url.Values{"page": {events.Next}}.Encode()
	}
	quiet := d.LastSeen != nil && d.LastSeen.Before(w.options.Now().Add(-w.silence()))
	return page{title: id, section: "devices", template: "device", watch: watch{device: id}, data: map[string]any{
		"Device": d, "Tasks": append(running.Tasks, open.Tasks...), "More": open.Next != "", "Events": events.Events, "Older": older, "First": token == "",
		"Operator": w.may(r, "operator"), "Silent": quiet, "Period": w.options.Period,
	}}, nil
}

func (w *Web) blockPage(r *http.Request) (page, error) {
	var d deviceJSON
	err := w.get(r, apiPath("devices", r.PathValue("id")), nil, &d)
	return page{title: "Block " + d.ID, section: "devices", template: "device-block", data: map[string]any{"Device": d, "Operator": w.may(r, "operator")}}, err
}

func (w *Web) deviceAction(action, said string) func(r *http.Request) (string, string, error) {
	return func(r *http.Request) (string, string, error) {
		id := r.PathValue("id")
		err := w.ask(r.Context(), visitorOf(r.Context()), request{method: http.MethodPost, path: apiPath("devices", id, action)}, nil)
		return "/devices/" + url.PathEscape(id), said, err
	}
}

// silence is how long a device that is well is not seen at most.
func (w *Web) silence() time.Duration { return silentFor*w.options.Period + seenWithin }
