package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type profileStore interface {
	PutProfile(ctx context.Context, actor string, settings store.Profile) (profile store.Profile, created bool, err error)
	Profile(ctx context.Context, name string) (store.Profile, error)
	Profiles(ctx context.Context, afterName string, limit int) ([]store.Profile, error)
	DeleteProfile(ctx context.Context, actor, name string) error
}

// profilePut is the body of a PUT of a profile. It accepts the read-only fields of a GET response and ignores them.
type profilePut struct {
	operators.ProfileSettings
	ReadOnlyFields

	Warned json.RawMessage `json:"warnings,omitempty" readOnly:"true"`
}

// ProfilePath is the path parameter {profile}: the name of a profile.
type ProfilePath struct {
	Profile string `path:"profile" maxLength:"64" pattern:"^[A-Za-z0-9][A-Za-z0-9._:-]*$" doc:"1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit"`
}

type profileOperations struct {
	ledger profileStore
	warner policyWarner
}

func (p *profileOperations) register(r *routes) {
	registerList[operators.ProfileList](r, r.describeOperation("listProfiles"), p.list)
	register(r, r.describeOperation("getProfile"), p.get)
	registerResponse(r, documentStatus[operators.ProfileChanged](r, r.describeOperation("putProfile"), http.StatusCreated), p.put)
	registerResponse(r, r.describeOperation("deleteProfile"), p.delete)
}

func (p *profileOperations) list(ctx context.Context, in *Page) (page listPage[operators.Profile], err error) {
	found, err := p.ledger.Profiles(ctx, in.after, in.Size)
	return newPage(found, in.isFull(len(found)), toAPIProfile, func(p store.Profile) string { return p.Name }), err
}

func (p *profileOperations) get(ctx context.Context, in *ProfilePath) (operators.Profile, error) {
	found, err := p.ledger.Profile(ctx, in.Profile)
	return toAPIProfile(found), err
}

func (p *profileOperations) put(ctx context.Context, in *struct {
	ProfilePath
	Body profilePut
},
) (*createdResponse[operators.ProfileChanged], error) {
	limited, err := toStoredLimits(in.Body.Limits)
	if err != nil {
		return nil, err
	}
	warned, err := p.warner.findWarnings(ctx, in.Body.Limits)
	if err != nil {
		return nil, err
	}
	put, isNew, err := p.ledger.PutProfile(ctx, operatorName(ctx), store.Profile{Name: in.Profile, Limits: limited, MetadataOnly: in.Body.MetadataOnly})
	return &createdResponse[operators.ProfileChanged]{createdStatus(isNew), operators.ProfileChanged{Profile: toAPIProfile(put), WarningList: warned}}, err
}

func (p *profileOperations) delete(ctx context.Context, in *ProfilePath) (*struct{}, error) {
	return &struct{}{}, p.ledger.DeleteProfile(ctx, operatorName(ctx), in.Profile)
}

func toAPIProfile(profile store.Profile) operators.Profile {
	return operators.Profile{
		Name: profile.Name, Limits: toAPIPolicies(profile.Limits), MetadataOnly: profile.MetadataOnly, Version: profile.Version, Created: apiTime(profile.CreatedAt), Updated: apiTime(profile.UpdatedAt),
	}
}
