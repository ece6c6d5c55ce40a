package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
)

func (p *poolPages) loadEditPage(r *http.Request) (page, error) {
	pool, err := p.api.Pools.Get(r.Context(), r.PathValue("id"))
	return page{title: "Change " + pool.Name, section: "pools", template: "pool-edit", data: map[string]any{
		"Pool": pool, "Form": newObjectForm(r, poolFields().textsOfInputs(pool), pool.Limits), "Admin": p.mayOfferActions(r, "admin"), "Back": returnPathOr(r, poolPath(pool.Name)),
	}}, err
}

// editPool changes the settings of a pool that were changed in the submitted form. If somebody else has changed one of them since the form was
// shown, nothing is changed.
func (p *poolPages) editPool(r *http.Request) (nextPath, messageKey string, err error) {
	name := r.PathValue("id")
	pool, err := p.api.Pools.Get(r.Context(), name)
	if err != nil {
		return "", "", err
	}
	current := inputTextsWithPolicies(poolFields().textsOfInputs(pool), pool.Limits)
	change, err := changedSettings(r.PostForm, poolFields(), current)
	if err == nil {
		err = p.api.checkConflict(r, current, "pool.changed", "pool", name, p.now())
	}
	if err != nil {
		return "", "", err
	}
	return poolPath(name), "pool-changed", p.api.Do(r.Context(), operators.Request{Method: http.MethodPatch, Path: operators.Path("pools", name), Body: change}, nil)
}

func poolPath(name string) string { return "/pools/" + url.PathEscape(name) }

func (p *poolPages) loadCreatePage(r *http.Request) (page, error) {
	byDefault := url.Values{"capacity": {"60"}, "lease": {"5m"}, "longest": {"24h"}, "sleep": {"10m"}}
	return page{title: "New pool", section: "pools", template: "pool-new", data: map[string]any{"Admin": p.mayOfferActions(r, "admin"), "Form": newObjectForm(r, byDefault, nil)}}, nil
}

func (p *poolPages) createPool(r *http.Request) (nextPath, messageKey string, err error) {
	name, err := readNewName(r, "pool", p.api.Pools.Get)
	if err != nil {
		return "", "", err
	}
	settings, err := poolFields().enteredFields(r.PostForm)
	if err != nil {
		return "", "", err
	}
	if settings["limits"], err = readPolicies(r.PostForm); err != nil {
		return "", "", err
	}
	return poolPath(name), "pool-changed", p.api.Do(r.Context(), operators.Request{Method: http.MethodPut, Path: operators.Path("pools", name), Body: settings}, nil)
}

// readNewName returns the name of a new object in the submitted form. If get finds an object with this name, readNewName returns an error.
// noun says what the object is, such as pool.
func readNewName[T any](r *http.Request, noun string, get func(ctx context.Context, name string) (T, error)) (string, error) {
	name := strings.TrimSpace(r.PostFormValue("name"))
	if name == "" {
		return "", newFormError("Name: 1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit.")
	}
	_, err := get(r.Context(), name)
	switch {
	case err == nil:
		return "", &operators.Problem{Status: http.StatusConflict, Detail: "There is a " + noun + " of that name already: change that one."}
	case operators.HasStatus(err, http.StatusNotFound):
		return name, nil
	}
	return "", err
}

func (p *poolPages) loadPausePage(r *http.Request) (page, error) {
	pool, err := p.api.Pools.Get(r.Context(), r.PathValue("id"))
	return page{title: "Pause " + pool.Name, section: "pools", template: "pause", data: map[string]any{
		"Name": pool.Name, "Back": poolPath(pool.Name), "May": p.mayOfferActions(r, "admin"), "Role": "an admin",
	}}, err
}

// loadPauseAllPage returns the page with the forms to pause all pools, and to resume the pools that the visitor paused.
func (p *poolPages) loadPauseAllPage(r *http.Request) (page, error) {
	shown := page{title: "Pause all pools", section: "pools", template: "pause-all", data: map[string]any{"Admin": false}}
	if !p.mayOfferActions(r, "admin") {
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

// pauseAllPools pauses all pools, with the reason in the submitted form.
func (p *poolPages) pauseAllPools(r *http.Request) (nextPath, messageKey string, err error) {
	pause := operators.PauseAll{PauseReason: operators.PauseReason{Reason: r.PostFormValue("reason")}, StopRunning: r.PostFormValue("stop_running") == "true"}
	if pause.StopRunning {
		messageKey = "paused-stopping"
	}
	_, err = p.api.Pools.PauseAll(r.Context(), pause, false)
	return "/", cmp.Or(messageKey, "paused"), err
}

func (p *poolPages) resumePoolsOfVisitor(r *http.Request) (nextPath, messageKey string, err error) {
	_, err = p.api.Pools.ResumeMine(r.Context(), false)
	return "/", "resumed", err
}

// loadReleasePage returns the page that asks for confirmation of a forced release and shows its effects.
func (p *poolPages) loadReleasePage(r *http.Request) (page, error) {
	name := r.PathValue("id")
	slots, err := p.api.Pools.Slots(r.Context(), name)
	if err != nil {
		return page{}, err
	}
	for _, s := range slots.Slots {
		held := s.State == "held" && strconv.Itoa(s.Slot) == r.PathValue("slot")
		if wanted := r.URL.Query().Get("token"); held && (wanted == "" || wanted == strconv.FormatInt(s.Token, 10)) {
			return page{title: fmt.Sprintf("Release slot %d of %s", s.Slot, name), section: "pools", template: "release", data: map[string]any{
				"Pool": name, "Slot": s, "Admin": p.mayOfferActions(r, "admin"),
			}}, nil
		}
	}
	return page{}, &operators.Problem{Status: http.StatusNotFound, Detail: "This grant has ended and its slot is free. There is nothing to release."}
}

// releaseSlot takes a slot back from its holder as the submitted form says.
func (p *poolPages) releaseSlot(r *http.Request) (nextPath, messageKey string, err error) {
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
