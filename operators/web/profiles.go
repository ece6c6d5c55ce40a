package web

import (
	"net/http"
	"net/url"

	"github.com/fleetslots/dispatcher/operators"
)

// profilePages show the profiles of devices, and change their policies.
type profilePages struct {
	*pageSender

	api client
}

func (p *profilePages) registerRoutes(target *site) {
	target.addPage("/profiles", p.loadList)
	target.addPage("/profiles/{id}", p.loadEditPage)
	target.addPage("/new-profile", p.loadCreatePage)
	target.addForm("/profiles/{id}", "admin", func(r *http.Request) (string, string, error) { return p.saveProfile(r, r.PathValue("id")) })
	target.addForm("/new-profile", "admin", p.createProfile)
}

func (p *profilePages) loadList(r *http.Request) (page, error) {
	pager := newPager(r, nil)
	var list operators.ProfileList
	err := p.api.get(r, operators.Path("profiles"), pager.query(devicesShown), &list)
	return page{title: "Profiles", section: "devices", template: "profiles", data: map[string]any{
		"Profiles": list.Profiles, "Next": pager.nextAddress(list.NextPageToken), "First": pager.isFirst(), "Admin": p.mayOfferActions(r, "admin"),
	}}, err
}

func (p *profilePages) loadEditPage(r *http.Request) (page, error) {
	profile, err := p.api.Profiles.Get(r.Context(), r.PathValue("id"))
	return p.newFormPage(r, profile, false), err
}

func (p *profilePages) loadCreatePage(r *http.Request) (page, error) {
	return p.newFormPage(r, operators.Profile{}, true), nil
}

// newFormPage returns the page with the form of a profile. isNew means that the form creates the profile.
func (p *profilePages) newFormPage(r *http.Request, profile operators.Profile, isNew bool) page {
	title := "Profile " + profile.Name
	if isNew {
		title = "New profile"
	}
	return page{title: title, section: "devices", template: "profile-edit", data: map[string]any{
		"Profile": profile, "New": isNew, "Form": newObjectForm(r, profileFormValues(profile), profile.Limits), "Admin": p.mayOfferActions(r, "admin"), "Back": returnPathOr(r, "/profiles"),
	}}
}

// profileFormValues returns the texts for the inputs of a profile's form, without the policies.
func profileFormValues(profile operators.Profile) url.Values {
	return url.Values{"metadata_only": {checkboxValue(profile.MetadataOnly)}}
}

func (p *profilePages) createProfile(r *http.Request) (nextPath, messageKey string, err error) {
	name, err := readNewName(r, "profile", p.api.Profiles.Get)
	if err != nil {
		return "", "", err
	}
	return p.saveProfile(r, name)
}

// saveProfile stores the settings of the submitted form in the profile with this name. A setting that the form did not change keeps its
// present value.
func (p *profilePages) saveProfile(r *http.Request, name string) (nextPath, messageKey string, err error) {
	limits, err := readPolicies(r.PostForm)
	if err != nil {
		return "", "", err
	}
	body := map[string]any{"limits": limits, "metadata_only": r.PostForm.Has("metadata_only")}
	if current, err := p.api.Profiles.Get(r.Context(), name); err == nil {
		if err := p.api.checkConflict(r, inputTextsWithPolicies(profileFormValues(current), current.Limits), "profile.changed", "profile", name, p.now()); err != nil {
			return "", "", err
		}
		if isUnchanged(r.PostForm, "metadata_only") {
			body["metadata_only"] = current.MetadataOnly
		}
		if r.PostForm.Get("was.limits") == rowsText(enteredRows(r.PostForm)) {
			body["limits"] = current.Limits
		}
	}
	return "/profiles", "profile-changed", p.api.Do(r.Context(), operators.Request{Method: http.MethodPut, Path: operators.Path("profiles", name), Body: body}, nil)
}
