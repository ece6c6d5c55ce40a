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

func (p *profilePages) registerRoutes(to *site) {
	to.addPage("/profiles", p.list)
	to.addPage("/profiles/{id}", p.editPage)
	to.addPage("/new-profile", p.createPage)
	to.addForm("/profiles/{id}", "admin", func(r *http.Request) (string, string, error) { return p.saveProfile(r, r.PathValue("id")) })
	to.addForm("/new-profile", "admin", p.create)
}

func (p *profilePages) list(r *http.Request) (page, error) {
	pager := newPager(r, nil)
	var list operators.ProfileList
	err := p.api.get(r, operators.Path("profiles"), pager.query(devicesShown), &list)
	return page{title: "Profiles", section: "devices", template: "profiles", data: map[string]any{
		"Profiles": list.Profiles, "Next": pager.nextAddress(list.NextPageToken), "First": pager.isFirst(), "Admin": p.may(r, "admin"),
	}}, err
}

func (p *profilePages) editPage(r *http.Request) (page, error) {
	profile, err := p.api.Profiles.Get(r.Context(), r.PathValue("id"))
	return p.formPage(r, profile, false), err
}

func (p *profilePages) createPage(r *http.Request) (page, error) {
	return p.formPage(r, operators.Profile{}, true), nil
}

func (p *profilePages) formPage(r *http.Request, profile operators.Profile, isNew bool) page {
	title := "Profile " + profile.Name
	if isNew {
		title = "New profile"
	}
	return page{title: title, section: "devices", template: "profile-edit", data: map[string]any{
		"Profile": profile, "New": isNew, "Rows": policyRows(profile.Limits), "Admin": p.may(r, "admin"), "Back": returnPathOr(r, "/profiles"),
	}}
}

func (p *profilePages) create(r *http.Request) (next, messageKey string, err error) {
	name := strings.TrimSpace(r.PostFormValue("name"))
	if name == "" {
		return "", "", newFormError("Name: 1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit.")
	}
	if _, err = p.api.Profiles.Get(r.Context(), name); err == nil {
		return "", "", &operators.Problem{Status: http.StatusConflict, Detail: "There is a profile of that name already: change that one."}
	}
	if !operators.HasStatus(err, http.StatusNotFound) {
		return "", "", err
	}
	return p.saveProfile(r, name)
}

func (p *profilePages) saveProfile(r *http.Request, name string) (next, messageKey string, err error) {
	limits, err := readPolicies(r.PostForm)
	if err != nil {
		return "", "", err
	}
	request := operators.Request{Method: http.MethodPut, Path: operators.Path("profiles", name), Body: map[string]any{"limits": limits}}
	return "/profiles", "profile-changed", p.api.Do(r.Context(), request, nil)
}
