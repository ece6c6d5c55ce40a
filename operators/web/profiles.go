package web

import (
	"net/http"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
)

// profilePages show the profiles of devices, and change their policies.
type profilePages struct {
	*frame

	api client
}

func (p *profilePages) route(to *site) {
	to.page("/profiles", p.list)
	to.page("/profiles/{id}", p.editing)
	to.page("/new-profile", p.creating)
	to.act("/profiles/{id}", "admin", func(r *http.Request) (string, string, error) { return p.put(r, r.PathValue("id")) })
	to.act("/new-profile", "admin", p.create)
}

func (p *profilePages) list(r *http.Request) (page, error) {
	pager := pagerOf(r, nil)
	var list operators.ProfileList
	err := p.api.get(r, operators.Path("profiles"), pager.query(devicesShown), &list)
	return page{title: "Profiles", section: "devices", template: "profiles", data: map[string]any{
		"Profiles": list.Profiles, "Next": pager.next(list.NextPageToken), "First": pager.first(), "Admin": p.may(r, "admin"),
	}}, err
}

func (p *profilePages) editing(r *http.Request) (page, error) {
	profile, err := p.api.Profiles.Get(r.Context(), r.PathValue("id"))
	return p.form(r, profile, false), err
}

func (p *profilePages) creating(r *http.Request) (page, error) {
	return p.form(r, operators.Profile{}, true), nil
}

func (p *profilePages) form(r *http.Request, profile operators.Profile, fresh bool) page {
	title := "Profile " + profile.Name
	if fresh {
		title = "New profile"
	}
	return page{title: title, section: "devices", template: "profile-edit", data: map[string]any{
		"Profile": profile, "New": fresh, "Rows": policyRows(profile.Limits), "Admin": p.may(r, "admin"), "Back": backOr(r, "/profiles"),
	}}
}

func (p *profilePages) create(r *http.Request) (next, said string, err error) {
	name := strings.TrimSpace(r.PostFormValue("name"))
	if name == "" {
		return "", "", badForm("Name: 1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit.")
	}
	if _, err = p.api.Profiles.Get(r.Context(), name); err == nil {
		return "", "", &operators.Problem{Status: http.StatusConflict, Detail: "There is a profile of that name already: change that one."}
	}
	if !operators.Refused(err, http.StatusNotFound) {
		return "", "", err
	}
	return p.put(r, name)
}

func (p *profilePages) put(r *http.Request, name string) (next, said string, err error) {
	limits, err := readPolicies(r.PostForm)
	if err != nil {
		return "", "", err
	}
	request := operators.Request{Method: http.MethodPut, Path: operators.Path("profiles", name), Body: map[string]any{"limits": limits}}
	return "/profiles", "profile-changed", p.api.Do(r.Context(), request, nil)
}
