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
	silentFor    = 3 // report periods

	// devicesFollow is the interval at which the page reads again when devices were last seen.
	devicesFollow = 10 * time.Second
)

// devicePages show, block and unblock devices.
type devicePages struct {
	*frame

	api    client
	period time.Duration // report period of devices
}

func (d *devicePages) route(to *site) {
	to.live("/devices", d.list)
	to.live("/devices/{id}", d.show)
	to.page("/devices/{id}/block", d.blocking)
	to.act("/devices/{id}/block", "operator", d.api.command("devices", "block", "blocked"))
	to.act("/devices/{id}/unblock", "operator", d.api.command("devices", "unblock", "unblocked"))
}

// list returns the page of devices: devices by id, recently seen devices, or silent devices.
func (d *devicePages) list(r *http.Request) (page, error) {
	filters := filtersOf(r.URL.Query(), "prefix", "part", "tag", "blocked")
	pager := pagerOf(r, filters)
	query := pager.query(devicesShown)
	show := r.URL.Query().Get("show")
	switch show {
	case "recent":
		query = url.Values{"recent": {strconv.Itoa(recentShown)}}
	case "silent":
		query.Set("silent_for_ms", strconv.FormatInt(d.silence().Milliseconds(), 10))
		filters.Set("show", show)
	}
	var list operators.DeviceList
	if err := d.api.get(r, operators.Path("devices"), query, &list); err != nil {
		return page{}, err
	}
	return page{title: "Devices", section: "devices", template: "devices", watch: watch{always: show == "recent", every: devicesFollow}, data: map[string]any{
		"Devices": list.Devices, "Silent": d.silence(), "Show": show, "Next": pager.next(list.NextPageToken), "First": pager.first(),
		"Prefix": filters.Get("prefix"), "Part": filters.Get("part"), "Tag": filters.Get("tag"), "Blocked": filters.Get("blocked"),
	}}, nil
}

// show returns the page of one device, with all its events in one time line.
func (d *devicePages) show(r *http.Request) (page, error) {
	id := r.PathValue("id")
	device, err := d.api.Devices.Get(r.Context(), id)
	if err != nil {
		return page{}, err
	}
	var open, running operators.TaskList
	of := func(state string) url.Values {
		return url.Values{"device": {id}, "state": {state}, "page_size": {"20"}}
	}
	if err := d.api.get(r, operators.Path("tasks"), of("pending"), &open); err != nil {
		return page{}, err
	}
	if err := d.api.get(r, operators.Path("tasks"), of("dispatched"), &running); err != nil {
		return page{}, err
	}
	pager := pagerOf(r, nil)
	query := pager.query(devicesShown)
	query.Set("device", id)
	var events operators.EventList
	if err := d.api.get(r, operators.Path("events"), query, &events); err != nil {
		return page{}, err
	}
	grant, err := d.held(r, running.Tasks)
	if err != nil {
		return page{}, err
	}
	quiet := device.LastSeen != nil && device.LastSeen.Before(d.now().Add(-d.silence()))
	return page{title: id, section: "devices", template: "device", watch: watch{device: id, every: devicesFollow}, data: map[string]any{
		"Device": device, "Grant": grant, "Tasks": append(running.Tasks, open.Tasks...), "Events": events.Events,
		"Older": pager.next(events.NextPageToken), "First": pager.first(), "Operator": d.may(r, "operator"), "Silent": quiet, "Period": d.period,
	}}, nil
}

// held returns the slot that a device holds for its running task, or nil if it holds none. A device
// holds at most one slot.
func (d *devicePages) held(r *http.Request, running []operators.Task) (*heldSlot, error) {
	if len(running) == 0 {
		return nil, nil //nolint:nilnil // it holds none
	}
	task, err := d.api.Tasks.Get(r.Context(), running[0].ID)
	if err != nil || task.Grant == nil { // the task has just ended
		return nil, err
	}
	return &heldSlot{*task.Grant, task.ID}, nil
}

// heldSlot is the slot that a device holds, with its task.
type heldSlot struct {
	operators.Grant

	Task int64
}

func (d *devicePages) blocking(r *http.Request) (page, error) {
	device, err := d.api.Devices.Get(r.Context(), r.PathValue("id"))
	return page{title: "Block " + device.ID, section: "devices", template: "device-block", data: map[string]any{
		"Device": device, "Operator": d.may(r, "operator"),
	}}, err
}

// silence returns the time after which a device that was not seen is called silent.
func (d *devicePages) silence() time.Duration { return silentFor*d.period + seenWithin }
