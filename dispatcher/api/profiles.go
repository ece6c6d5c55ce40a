package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type profileStore interface {
	PutProfile(ctx context.Context, actor, name string, limits json.RawMessage) (store.Profile, bool, error)
	Profile(ctx context.Context, name string) (store.Profile, error)
	Profiles(ctx context.Context, after string, limit int) ([]store.Profile, error)
	DeleteProfile(ctx context.Context, actor, name string) error
}

// profilePut takes what a GET showed as well.
type profilePut struct {
	operators.ProfileSettings

	Name    json.RawMessage `json:"name,omitempty" readOnly:"true" doc:"Ignored, and so are the ones that follow"`
	Version json.RawMessage `json:"version,omitempty" readOnly:"true"`
	Created json.RawMessage `json:"created_at,omitempty" readOnly:"true"`
	Updated json.RawMessage `json:"updated_at,omitempty" readOnly:"true"`
	Warned  json.RawMessage `json:"warnings,omitempty" readOnly:"true"`
}

// ProfilePath names a profile.
type ProfilePath struct {
	Profile string `path:"profile" maxLength:"64" pattern:"^[A-Za-z0-9][A-Za-z0-9._:-]*$" doc:"1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit"`
}

func (a *API) registerProfiles(operations huma.API) {
	registerList(a, operations, operation("GET", "/v1/profiles", "listProfiles", "List profiles by name", roleViewer, 200), listing[pageQuery, operators.ProfileList, operators.Profile]{
		handle: a.listProfiles, page: (*pageQuery).page,
		items: func(l operators.ProfileList) ([]operators.Profile, string) { return l.Profiles, l.NextPageToken },
	})
	register(a, operations, operation("GET", "/v1/profiles/{profile}", "getProfile", "Read a profile", roleViewer, 200), a.getProfile)
	register(a, operations, also[operators.ProfileChanged](operations, operation("PUT", "/v1/profiles/{profile}", "putProfile", "Create a profile or replace its policies", roleAdmin, 200), http.StatusCreated), a.putProfile)
	register(a, operations, operation("DELETE", "/v1/profiles/{profile}", "deleteProfile", "Delete a profile that no device has", roleAdmin, 204), a.deleteProfile)
}

func (a *API) listProfiles(ctx context.Context, in *pageQuery) (*body[operators.ProfileList], error) {
	after, err := in.afterName()
	if err != nil {
		return nil, err
	}
	found, err := a.store.Profiles(ctx, after, in.Size)
	if err != nil {
		return nil, err
	}
	list := operators.ProfileList{Profiles: make([]operators.Profile, len(found))}
	for i, p := range found {
		list.Profiles[i] = showProfile(p)
		list.NextPageToken = nextPage(in.full(len(found)), p.Name)
	}
	return &body[operators.ProfileList]{list}, nil
}

func (a *API) getProfile(ctx context.Context, in *ProfilePath) (*body[operators.Profile], error) {
	p, err := a.store.Profile(ctx, in.Profile)
	if err != nil {
		return nil, err
	}
	return &body[operators.Profile]{showProfile(p)}, nil
}

func (a *API) putProfile(ctx context.Context, in *struct {
	ProfilePath
	Body profilePut
},
) (*created[operators.ProfileChanged], error) {
	limited, err := readLimits(in.Body.Limits)
	if err != nil {
		return nil, err
	}
	warned, err := a.warnings(ctx, in.Body.Limits)
	if err != nil {
		return nil, err
	}
	p, isNew, err := a.store.PutProfile(ctx, actor(ctx), in.Profile, limited)
	if err != nil {
		return nil, err
	}
	return &created[operators.ProfileChanged]{createdStatus(isNew), operators.ProfileChanged{Profile: showProfile(p), Warned: warned}}, nil
}

func (a *API) deleteProfile(ctx context.Context, in *ProfilePath) (*struct{}, error) {
	if err := a.store.DeleteProfile(ctx, actor(ctx), in.Profile); err != nil {
		return nil, err
	}
	return &struct{}{}, nil
}

func showProfile(p store.Profile) operators.Profile {
	return operators.Profile{
		Name: p.Name, Limits: showLimits(p.Limits), Version: p.Version, Created: stamp(p.CreatedAt), Updated: stamp(p.UpdatedAt),
	}
}
