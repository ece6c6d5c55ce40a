package web

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	devicesShown  = 50
	recentShown   = 100
	attemptsRead  = 50 // attempts of a device of which its page shows the share that failed
	attemptsShown = 10
	silentPeriods = 3 // number of report periods without a report after which a device is called silent

	// devicesRereadEvery is the interval at which the page reads again the times at which devices were
	// last seen.
	devicesRereadEvery = 10 * time.Second
)

// devicePages show, block and unblock devices, and give them new tokens.
type devicePages struct {
	*pageSender

	api          client
	reportPeriod time.Duration // report period of devices
}

func (d *devicePages) registerRoutes(target *site) {
	target.addLivePage("/devices", d.loadList)
	addLivePageWithRedis(target, "/devices/{id}", d.readWhy, d.loadPage)
	target.addPage("/devices/{id}/block", d.newActionPageLoader("Block", "device-block"))
	target.addPage("/devices/{id}/token", d.newActionPageLoader("New token for", "device-token"))
	target.addSecretForm("/devices/{id}/token", "operator", "devices", d.rotateToken)
	target.addForm("/devices/{id}/block", "operator", d.api.newEntryAction("devices", "block", "blocked"))
	target.addForm("/devices/{id}/unblock", "operator", d.api.newEntryAction("devices", "unblock", "unblocked"))
}

// loadList returns the page of devices: devices by id, recently seen devices, or silent devices.
func (d *devicePages) loadList(r *http.Request) (page, error) {
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
	return page{title: "Devices", section: "devices", template: "devices", watch: updateTrigger{everyTick: show == "recent", every: devicesRereadEvery}, data: map[string]any{
		"Devices": list.Devices, "Silent": d.silentAfter(), "Show": show, "Next": pager.nextAddress(list.NextPageToken), "First": pager.isFirst(),
		"Prefix": filters.Get("prefix"), "Part": filters.Get("part"), "Tag": filters.Get("tag"), "Blocked": filters.Get("blocked"), "Noisy": filters.Get("noisy"), "RegisteredBy": filters.Get("registered_by"),
	}}, nil
}

// readWhy reads the reasons why a device gets no task. It returns nil if they cannot be read in time.
func (d *devicePages) readWhy(r *http.Request) (*operators.DeviceWhy, error) {
	why, err := d.api.Devices.Why(r.Context(), r.PathValue("id"))
	if operators.HasStatus(err, http.StatusServiceUnavailable) {
		return nil, nil //nolint:nilnil // nil means that the reasons are unknown
	}
	return &why, err
}

// deviceAttempts holds the latest ended attempts of a device, the newest first.
type deviceAttempts struct {
	All    []operators.Holding
	Failed int // number of attempts in which the device failed or rejected the task, or the lease ended
}

// Shown returns the attempts that the page lists.
func (a deviceAttempts) Shown() []operators.Holding { return a.All[:min(len(a.All), attemptsShown)] }

// Oldest returns the oldest attempt. There must be at least one.
func (a deviceAttempts) Oldest() operators.Holding { return a.All[len(a.All)-1] }

// readAttempts reads the latest ended attempts of a device.
func (d *devicePages) readAttempts(r *http.Request, id string) (attempts deviceAttempts, err error) {
	var list operators.HoldingList
	err = d.api.get(r, operators.Path("devices", id, "history"), url.Values{"page_size": {strconv.Itoa(attemptsRead)}}, &list)
	for _, one := range list.History {
		if slices.Contains([]string{operators.Failed, "rejected", operators.EndedByLapse}, one.EndedBy) {
			attempts.Failed++
		}
		if one.Ended != nil {
			attempts.All = append(attempts.All, one)
		}
	}
	return attempts, err
}

// loadPage returns the page of one device, with all its events in one time line. why says why the device gets no task. A nil why means unknown.
func (d *devicePages) loadPage(r *http.Request, why *operators.DeviceWhy) (page, error) {
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
	attempts, err := d.readAttempts(r, id)
	if err != nil {
		return page{}, err
	}
	firstTask := int64(0)
	if why != nil && why.Task != nil {
		firstTask = *why.Task
	}
	quiet := device.QuietUntil != nil && device.QuietUntil.Before(d.now().Add(-d.silentAfter()))
	return page{title: id, section: "devices", template: "device", watch: updateTrigger{device: id, every: devicesRereadEvery}, data: map[string]any{
		"Device": device, "Grant": grant, "Tasks": append(running.Tasks, open.Tasks...), "Events": events.Events,
		"Older": pager.nextAddress(events.NextPageToken), "First": pager.isFirst(), "Operator": d.mayOfferActions(r, "operator"), "Silent": quiet, "Period": d.reportPeriod,
		"Why": why, "FirstTask": firstTask, "Remedies": d.newRemedies(r), "Attempts": attempts,
	}}, nil
}

// readHeldSlot returns the slot that a device holds for one of its running tasks, or nil if it holds none. A device holds at most one slot.
func (d *devicePages) readHeldSlot(r *http.Request, running []operators.Task) (*heldSlot, error) {
	if len(running) == 0 {
		return nil, nil //nolint:nilnil // nil means that the device holds no slot
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

// newActionPageLoader returns the loader of a page with the form of an action on one device. title is its title without the id of the device.
func (d *devicePages) newActionPageLoader(title, templateName string) pageLoader {
	return func(r *http.Request) (page, error) {
		device, err := d.api.Devices.Get(r.Context(), r.PathValue("id"))
		return page{title: title + " " + device.ID, section: "devices", template: templateName, data: map[string]any{
			"Device": device, "Operator": d.mayOfferActions(r, "operator"), "Back": returnPathOr(r, "/devices/"+url.PathEscape(device.ID)),
		}}, err
	}
}

// rotateToken gives a device a new token, as the submitted form says.
func (d *devicePages) rotateToken(r *http.Request) (tokenSecret, error) {
	overlap, err := time.ParseDuration(r.PostForm.Get("overlap"))
	if err != nil {
		return tokenSecret{}, newFormError("Older tokens end: a duration such as 1h.")
	}
	id := r.PathValue("id")
	made, err := d.api.Devices.RotateToken(r.Context(), id, operators.Rotation{OverlapMS: new(overlap.Milliseconds())})
	return tokenSecret{"New token of device " + id, made.Token, "Older tokens of the device end at " + decision.FormatTime(made.OlderUntil.Time) + ".", "/devices/" + url.PathEscape(id)}, err
}

// silentAfter returns the time without a report after which a device is called silent: silentPeriods report periods, plus the precision of
// the stored last_seen time.
func (d *devicePages) silentAfter() time.Duration { return silentPeriods*d.reportPeriod + seenWithin }
