package web

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/operators"
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
	var list operators.DeviceList
	if err := w.get(r, operators.Path("devices"), query, &list); err != nil {
		return page{}, err
	}
	next := ""
	if list.NextPageToken != "" && show != "recent" {
		onwards.Set("page", list.NextPageToken)
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
	d, err := w.client.Devices.Get(r.Context(), id)
	if err != nil {
		return page{}, err
	}
	var open, running operators.TaskList
	of := func(state string) url.Values {
		return url.Values{"device": {id}, "state": {state}, "page_size": {"20"}}
	}
	if err := w.get(r, operators.Path("tasks"), of("pending"), &open); err != nil {
		return page{}, err
	}
	if err := w.get(r, operators.Path("tasks"), of("dispatched"), &running); err != nil {
		return page{}, err
	}
	query := url.Values{"device": {id}, "page_size": {strconv.Itoa(devicesShown)}}
	token := r.URL.Query().Get("page")
	if token != "" {
		query.Set("page_token", token)
	}
	var events operators.EventList
	if err := w.get(r, operators.Path("events"), query, &events); err != nil {
		return page{}, err
	}
	older := ""
	if events.NextPageToken != "" {
		older = "/devices/" + url.PathEscape(id) + "?" + url.Values{"page": {events.NextPageToken}}.Encode()
	}
	quiet := d.LastSeen != nil && d.LastSeen.Before(w.options.Now().Add(-w.silence()))
	return page{title: id, section: "devices", template: "device", watch: watch{device: id}, data: map[string]any{
		"Device": d, "Tasks": append(running.Tasks, open.Tasks...), "More": open.NextPageToken != "", "Events": events.Events, "Older": older, "First": token == "",
		"Operator": w.may(r, "operator"), "Silent": quiet, "Period": w.options.Period,
	}}, nil
}

func (w *Web) blockPage(r *http.Request) (page, error) {
	d, err := w.client.Devices.Get(r.Context(), r.PathValue("id"))
	return page{title: "Block " + d.ID, section: "devices", template: "device-block", data: map[string]any{"Device": d, "Operator": w.may(r, "operator")}}, err
}

func (w *Web) deviceAction(action, said string) func(r *http.Request) (string, string, error) {
	return func(r *http.Request) (string, string, error) {
		id := r.PathValue("id")
		return "/devices/" + url.PathEscape(id), said, w.post(r.Context(), operators.Path("devices", id, action), nil)
	}
}

// silence is how long a device that is well is not seen at most.
func (w *Web) silence() time.Duration { return silentFor*w.options.Period + seenWithin }
