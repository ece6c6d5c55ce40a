package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type profileStore interface {
	PutProfile(ctx context.Context, actor string, settings store.Profile) (profile store.Profile, created bool, err error)
	Profile(ctx context.Context, name string) (store.Profile, error)
	Profiles(ctx context.Context, afterName string, limit int) ([]store.Profile, error)
	DeleteProfile(ctx context.Context, actor, name string) error
}

// ReadOnlyFields has the fields of a pool, a profile or a limit set that a GET returns and a PUT ignores.
type ReadOnlyFields struct {
	Name    json.RawMessage `json:"name,omitempty" readOnly:"true" doc:"Ignored, like all other read-only fields"`
	Version json.RawMessage `json:"version,omitempty" readOnly:"true"`
	Created json.RawMessage `json:"created_at,omitempty" readOnly:"true"`
	Updated json.RawMessage `json:"updated_at,omitempty" readOnly:"true"`
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

type tokenStore interface {
	OperatorTokens(ctx context.Context, afterID int64, newestFirst bool, limit int) ([]store.Token, error)
	CreateToken(ctx context.Context, actor string, token store.Token, secretHash []byte) (store.Token, error)
	RotateToken(ctx context.Context, actor string, id int64, secretHash []byte) (store.Token, error)
	RevokeToken(ctx context.Context, actor string, id int64) (store.Token, error)
}

type tokenOperations struct{ ledger tokenStore }

func (t *tokenOperations) register(r *routes) {
	registerList[operators.TokenList](r, r.describeOperation("listTokens"), t.list)
	register(r, r.describeOperation("createToken"), t.create)
	register(r, r.describeOperation("rotateOperatorToken"), t.rotate)
	register(r, r.describeOperation("revokeToken"), t.revoke)
}

func (t *tokenOperations) list(ctx context.Context, in *struct {
	NumberPage
	Order string `query:"order" enum:"newest,oldest" default:"oldest" doc:"Sort order, by number"`
},
) (page listPage[operators.Token], err error) {
	found, err := t.ledger.OperatorTokens(ctx, in.afterNumber, in.Order == "newest", in.Size)
	return newPage(found, in.isFull(len(found)), toAPIToken, func(t store.Token) string { return formatDecimal(t.ID) }), err
}

func (t *tokenOperations) create(ctx context.Context, in *struct{ Body operators.NewToken }) (operators.TokenCreated, error) {
	token := store.Token{Name: in.Body.Name, Role: in.Body.Role, Pools: in.Body.Pools, LimitSets: in.Body.LimitSets, ExpiresAt: in.Body.ExpiresAt}
	if err := credentials.CheckToken(token); err != nil {
		return operators.TokenCreated{}, invalidProblem("%v", err)
	}
	secret := credentials.NewToken()
	hash := credentials.HashToken(secret)
	made, err := t.ledger.CreateToken(ctx, operatorName(ctx), token, hash[:])
	return operators.TokenCreated{Token: toAPIToken(made), Secret: secretUnlessReplay(ctx, secret)}, err
}

func (t *tokenOperations) rotate(ctx context.Context, in *IDPath) (operators.TokenCreated, error) {
	secret := credentials.NewToken()
	hash := credentials.HashToken(secret)
	rotated, err := t.ledger.RotateToken(ctx, operatorName(ctx), in.ID, hash[:])
	return operators.TokenCreated{Token: toAPIToken(rotated), Secret: secret}, err
}

func (t *tokenOperations) revoke(ctx context.Context, in *IDPath) (operators.Token, error) {
	gone, err := t.ledger.RevokeToken(ctx, operatorName(ctx), in.ID)
	return toAPIToken(gone), err
}

func toAPIToken(token store.Token) operators.Token {
	return operators.Token{
		ID: token.ID, Name: token.Name, Role: token.Role, Pools: token.Pools, LimitSets: token.LimitSets,
		Created: apiTime(token.CreatedAt), ExpiresAt: apiTimePointer(token.ExpiresAt), LastUsed: apiTimePointer(token.LastUsed), Requests: token.Requests,
	}
}
