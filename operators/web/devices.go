package web

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	devicesShown  = 50
	recentShown   = 100
	silentPeriods = 3 // number of report periods without a report after which a device is called silent

	// devicesRereadEvery is the interval at which the page reads again the times at which devices were
	// last seen.
	devicesRereadEvery = 10 * time.Second
)

// devicePages show, block and unblock devices.
type devicePages struct {
	*frame

	api          client
	reportPeriod time.Duration // report period of devices
}

// registerRoutes adds the pages of devices to target.
func (d *devicePages) registerRoutes(target *site) {
	target.addLivePage("/devices", d.list)
	target.addLivePage("/devices/{id}", d.show)
	target.addPage("/devices/{id}/block", d.blockPage)
	target.addForm("/devices/{id}/block", "operator", d.api.entryAction("devices", "block", "blocked"))
	target.addForm("/devices/{id}/unblock", "operator", d.api.entryAction("devices", "unblock", "unblocked"))
}

// list returns the page of devices: devices by id, recently seen devices, or silent devices.
func (d *devicePages) list(r *http.Request) (page, error) {
	filters := nonEmptyParams(r.URL.Query(), "prefix", "part", "tag", "blocked", "noisy", "registered_by")
	pager := newPager(r, filters)
	query := pager.query(devicesShown)
	show := r.URL.Query().Get("show")
	switch show {
	case "recent":
		query = url.Values{"recent": {strconv.Itoa(recentShown)}}
	case "silent":
		query.Set("silent_for_ms", strconv.FormatInt(d.silentAfter().Milliseconds(), 10))
		filters.Set("show", show)
	}
	var list operators.DeviceList
	if err := d.api.get(r, operators.Path("devices"), query, &list); err != nil {
		return page{}, err
	}
	return page{title: "Devices", section: "devices", template: "devices", watch: watch{everyTick: show == "recent", every: devicesRereadEvery}, data: map[string]any{
		"Devices": list.Devices, "Silent": d.silentAfter(), "Show": show, "Next": pager.nextAddress(list.NextPageToken), "First": pager.isFirst(),
		"Prefix": filters.Get("prefix"), "Part": filters.Get("part"), "Tag": filters.Get("tag"), "Blocked": filters.Get("blocked"), "Noisy": filters.Get("noisy"), "RegisteredBy": filters.Get("registered_by"),
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
	stateQuery := func(state string) url.Values {
		return url.Values{"device": {id}, "state": {state}, "page_size": {"20"}}
	}
	if err := d.api.get(r, operators.Path("tasks"), stateQuery("pending"), &open); err != nil {
		return page{}, err
	}
	if err := d.api.get(r, operators.Path("tasks"), stateQuery("dispatched"), &running); err != nil {
		return page{}, err
	}
	pager := newPager(r, nil)
	query := pager.query(devicesShown)
	query.Set("device", id)
	var events operators.EventList
	if err := d.api.get(r, operators.Path("events"), query, &events); err != nil {
		return page{}, err
	}
	grant, err := d.readHeldSlot(r, running.Tasks)
	if err != nil {
		return page{}, err
	}
	quiet := device.QuietUntil != nil && device.QuietUntil.Before(d.now().Add(-d.silentAfter()))
	return page{title: id, section: "devices", template: "device", watch: watch{device: id, every: devicesRereadEvery}, data: map[string]any{
		"Device": device, "Grant": grant, "Tasks": append(running.Tasks, open.Tasks...), "Events": events.Events,
		"Older": pager.nextAddress(events.NextPageToken), "First": pager.isFirst(), "Operator": d.may(r, "operator"), "Silent": quiet, "Period": d.reportPeriod,
	}}, nil
}

// readHeldSlot returns the slot that a device holds for one of its running tasks, or nil if it holds none. A device holds at most one slot.
func (d *devicePages) readHeldSlot(r *http.Request, running []operators.Task) (*heldSlot, error) {
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

// blockPage returns the page that asks for confirmation before a device is blocked.
func (d *devicePages) blockPage(r *http.Request) (page, error) {
	device, err := d.api.Devices.Get(r.Context(), r.PathValue("id"))
	return page{title: "Block " + device.ID, section: "devices", template: "device-block", data: map[string]any{
		"Device": device, "Operator": d.may(r, "operator"),
	}}, err
}

// silentAfter returns the time without a report after which a device is called silent: silentPeriods report periods, plus the precision of
// the stored last_seen time.
func (d *devicePages) silentAfter() time.Duration { return silentPeriods*d.reportPeriod + seenWithin }
