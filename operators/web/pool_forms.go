package web

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
)

// editPage returns the page with the form to change the settings of a pool.
func (p *poolPages) editPage(r *http.Request) (page, error) {
	pool, err := p.api.Pools.Get(r.Context(), r.PathValue("id"))
	return page{title: "Change " + pool.Name, section: "pools", template: "pool-edit", data: map[string]any{
		"Pool": pool, "Form": poolFormValues(pool), "Rows": policyRows(pool.Limits), "Admin": p.may(r, "admin"), "Back": returnPathOr(r, poolPath(pool.Name)),
	}}, err
}

// poolFormValues returns the form inputs for the settings of a pool. The text of the input limits is for comparisons.
func poolFormValues(pool operators.Pool) url.Values {
	return url.Values{
		"capacity": {strconv.Itoa(pool.Capacity)}, "lease": {durationInput(pool.LeaseMS)}, "callers": {callerLimitText(pool.Callers)}, "longest": {durationInput(pool.LongestLeaseMS)},
		"sleep": {durationInput(pool.LongestSleepMS)}, "windows": {windowLines(pool.Windows)}, "limits": {rowsText(policyRows(pool.Limits))},
	}
}

// edit changes the settings of a pool as the submitted form says. next is the path of the page that the browser shows afterwards, and
// messageKey the key of the message on that page. If somebody else has changed a setting since the form was shown, nothing is changed.
func (p *poolPages) edit(r *http.Request) (next, messageKey string, err error) {
	settings, err := poolSettings(r)
	if err != nil {
		return "", "", err
	}
	name := r.PathValue("id")
	current, err := p.api.Pools.Get(r.Context(), name)
	if err == nil {
		err = p.api.checkConflict(r, poolFormValues(current), "pool.changed", "pool", name, p.now())
	}
	if err != nil {
		return "", "", err
	}
	for field, same := range map[string]bool{
		"capacity": isUnchanged(r.PostForm, "capacity"), "lease_ms": isUnchanged(r.PostForm, "lease"), "callers": isUnchanged(r.PostForm, "callers"), "longest_lease_ms": isUnchanged(r.PostForm, "longest"),
		"longest_sleep_ms": isUnchanged(r.PostForm, "sleep"), "windows": isUnchanged(r.PostForm, "windows"),
		"limits": r.PostForm.Get("was.limits") == rowsText(enteredRows(r.PostForm)),
	} {
		if same {
			delete(settings, field)
		}
	}
	return poolPath(name), "pool-changed", p.api.Do(r.Context(), operators.Request{Method: http.MethodPatch, Path: operators.Path("pools", name), Body: settings}, nil)
}

// isUnchanged reports whether the input inputName still has the value that it had when form was shown.
func isUnchanged(form url.Values, inputName string) bool {
	return strings.TrimSpace(strings.ReplaceAll(form.Get(inputName), "\r\n", "\n")) == originalText(form, inputName, "\x00")
}

// poolSettings returns the settings of a pool that were entered into the form in the request, as fields of the API.
func poolSettings(r *http.Request) (map[string]any, error) {
	settings := map[string]any{}
	capacity, err := strconv.Atoi(strings.TrimSpace(r.PostFormValue("capacity")))
	if err != nil {
		return nil, newFormError("Capacity: a whole number, 0 to 10000.")
	}
	lease, err := parseMS(strings.TrimSpace(r.PostFormValue("lease")))
	if err != nil {
		return nil, newFormError("Lease: " + err.Error() + ".")
	}
	settings["capacity"], settings["lease_ms"] = capacity, lease
	if settings["callers"], err = parseCallerLimit(r.PostFormValue("callers")); err != nil {
		return nil, err
	}
	for _, optional := range []struct{ input, field, label string }{
		{"longest", "longest_lease_ms", "Longest lease"}, {"sleep", "longest_sleep_ms", "Longest sleep"},
	} {
		if text := strings.TrimSpace(r.PostFormValue(optional.input)); text != "" {
			if settings[optional.field], err = parseMS(text); err != nil {
				return nil, newFormError(optional.label + ": " + err.Error() + ".")
			}
		}
	}
	if r.PostForm.Has("windows") {
		if settings["windows"], err = parseWindows(r.PostFormValue("windows")); err != nil {
			return nil, newFormError("Windows: " + err.Error())
		}
	}
	if r.PostForm.Has("limit.name") {
		settings["limits"], err = readPolicies(r.PostForm)
	}
	return settings, err
}

// callerLimitText returns maxCallers, the maximum number of slots for callers, as the text of an input. If maxCallers is nil, there is no
// limit, and the text is empty.
func callerLimitText(maxCallers *int) string {
	if maxCallers == nil {
		return ""
	}
	return strconv.Itoa(*maxCallers)
}

// parseCallerLimit parses the text of the input for the maximum number of slots for callers. It returns nil if there is no limit.
func parseCallerLimit(text string) (any, error) {
	if text = strings.TrimSpace(text); text == "" {
		return nil, nil //nolint:nilnil // null is what the API takes
	}
	maxCallers, err := strconv.Atoi(text)
	if err != nil {
		return nil, newFormError("Callers: a whole number, 0 to 10000, or nothing.")
	}
	return maxCallers, nil
}

// windowLines returns windows as text for a form, one in each line.
func windowLines(shown []operators.Window) string {
	lines := make([]string, len(shown))
	for i, w := range shown {
		lines[i] = strings.TrimSpace(w.Cron + " " + w.Duration + " " + w.Timezone)
	}
	return strings.Join(lines, "\n")
}

// poolPath returns the path of the page of a pool.
func poolPath(name string) string { return "/pools/" + url.PathEscape(name) }

// createPage returns the page with the form for a new pool.
func (p *poolPages) createPage(r *http.Request) (page, error) {
	byDefault := url.Values{"capacity": {"60"}, "lease": {"5m"}, "longest": {"24h"}, "sleep": {"10m"}}
	return page{title: "New pool", section: "pools", template: "pool-new", data: map[string]any{"Admin": p.may(r, "admin"), "Form": byDefault, "Rows": policyRows(nil)}}, nil
}

// create creates a pool as the submitted form says. next is the path of the page that the browser shows afterwards, and messageKey the key
// of the message on that page.
func (p *poolPages) create(r *http.Request) (next, messageKey string, err error) {
	settings, err := poolSettings(r)
	if err != nil {
		return "", "", err
	}
	name := strings.TrimSpace(r.PostFormValue("name"))
	if name == "" {
		return "", "", newFormError("Name: 1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit.")
	}
	if _, err = p.api.Pools.Get(r.Context(), name); err == nil {
		return "", "", &operators.Problem{Status: http.StatusConflict, Detail: "There is a pool of that name already: change that one."}
	}
	if !operators.HasStatus(err, http.StatusNotFound) {
		return "", "", err
	}
	return poolPath(name), "pool-changed", p.api.Do(r.Context(), operators.Request{Method: http.MethodPut, Path: operators.Path("pools", name), Body: settings}, nil)
}

// pausePage returns the page with the form to pause a pool.
func (p *poolPages) pausePage(r *http.Request) (page, error) {
	pool, err := p.api.Pools.Get(r.Context(), r.PathValue("id"))
	return page{title: "Pause " + pool.Name, section: "pools", template: "pause", data: map[string]any{
		"Name": pool.Name, "Back": poolPath(pool.Name), "May": p.may(r, "admin"), "Role": "an admin",
	}}, err
}

// pauseAllPage returns the page with the forms to pause all pools, and to resume the pools that the visitor paused.
func (p *poolPages) pauseAllPage(r *http.Request) (page, error) {
	shown := page{title: "Pause all pools", section: "pools", template: "pause-all", data: map[string]any{"Admin": false}}
	if !p.may(r, "admin") {
		return shown, nil
	}
	pausable, err := p.api.Pools.PauseAll(r.Context(), operators.PauseAll{StopRunning: true}, true)
	if err != nil {
		return page{}, err
	}
	mine, err := p.api.Pools.ResumeMine(r.Context(), true)
	shown.data = map[string]any{"Admin": true, "Pausable": pausable, "Mine": mine}
	return shown, err
}

// pauseAll pauses all pools, with the reason in the submitted form.
func (p *poolPages) pauseAll(r *http.Request) (next, messageKey string, err error) {
	pause := operators.PauseAll{PauseReason: operators.PauseReason{Reason: r.PostFormValue("reason")}, StopRunning: r.PostFormValue("stop_running") == "true"}
	if pause.StopRunning {
		messageKey = "paused-stopping"
	}
	_, err = p.api.Pools.PauseAll(r.Context(), pause, false)
	return "/", cmp.Or(messageKey, "paused"), err
}

// resumeMine resumes the pools that the visitor paused.
func (p *poolPages) resumeMine(r *http.Request) (next, messageKey string, err error) {
	_, err = p.api.Pools.ResumeMine(r.Context(), false)
	return "/", "resumed", err
}

// releasePage returns the page that asks for confirmation of a forced release and shows its effects.
func (p *poolPages) releasePage(r *http.Request) (page, error) {
	name := r.PathValue("id")
	slots, err := p.api.Pools.Slots(r.Context(), name)
	if err != nil {
		return page{}, err
	}
	for _, s := range slots.Slots {
		held := s.State == "held" && strconv.Itoa(s.Slot) == r.PathValue("slot")
		if wanted := r.URL.Query().Get("token"); held && (wanted == "" || wanted == strconv.FormatInt(s.Token, 10)) {
			return page{title: fmt.Sprintf("Release slot %d of %s", s.Slot, name), section: "pools", template: "release", data: map[string]any{
				"Pool": name, "Slot": s, "Admin": p.may(r, "admin"),
			}}, nil
		}
	}
	return page{}, &operators.Problem{Status: http.StatusNotFound, Detail: "This grant has ended and its slot is free. There is nothing to release."}
}

// release takes a slot back from its holder as the submitted form says. next is the path of the page that the browser shows afterwards, and
// messageKey the key of the message on that page.
func (p *poolPages) release(r *http.Request) (next, messageKey string, err error) {
	name := r.PathValue("id")
	token, err := strconv.ParseInt(r.PostFormValue("token"), 10, 64)
	if err != nil {
		return "", "", newFormError("The form does not say which grant is meant.")
	}
	now := r.PostFormValue("now") == "true"
	body := operators.Release{Reason: r.PostFormValue("reason"), AtOnce: now, Token: token}
	path := operators.Path("pools", name, "slots", r.PathValue("slot"), "release")
	messageKey = "release-asked"
	if now {
		messageKey = "released"
	}
	return poolPath(name), messageKey, p.api.post(r.Context(), path, body)
}
