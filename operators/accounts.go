package operators

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// Profile is a named set of policies for devices. The policies limit the task starts of all devices with this profile, in every pool.
type Profile struct {
	Name         string   `json:"name" readOnly:"true"`
	Limits       []Policy `json:"limits" doc:"How often its devices may start tasks; each pool is counted separately"`
	MetadataOnly bool     `json:"metadata_only" doc:"true: devices that report by hawkBit's DDI also get tasks whose payload is no deployment, as a deployment without artifacts"`
	Version      int64    `json:"version" readOnly:"true" doc:"Increases with every change"`
	Created      Time     `json:"created_at" readOnly:"true"`
	Updated      Time     `json:"updated_at" readOnly:"true"`
}

// ProfileChanged is a profile after a change.
type ProfileChanged struct {
	Profile
	WarningList
}

// ProfileSettings has all settings of a profile that an operator can set.
type ProfileSettings struct {
	Limits       []Policy `json:"limits,omitempty" nullable:"true" doc:"The complete list; empty: the profile limits nothing"`
	MetadataOnly bool     `json:"metadata_only,omitempty" doc:"true: devices that report by hawkBit's DDI also get tasks whose payload is no deployment, as a deployment without artifacts"`
}

// ProfileList is a page of profiles.
type ProfileList struct {
	Profiles      []Profile `json:"profiles"`
	NextPageToken string    `json:"next_page_token,omitempty"`
}

// NewToken is the request for an operator token. Package api defines what each role may do.
type NewToken struct {
	Name      string     `json:"name" minLength:"1" maxLength:"200" doc:"Operator or service that uses the token; the audit log shows it"`
	Role      string     `json:"role" enum:"viewer,operator,admin,verifier,caller"`
	Pools     []string   `json:"pools,omitempty" nullable:"true" maxItems:"32" doc:"Role caller only: the pools whose slots it may lease, as patterns: a name in which * stands for any text"`
	LimitSets []string   `json:"limit_sets,omitempty" nullable:"true" maxItems:"32" doc:"Role caller only: the limit sets that it may take from, as patterns. A caller needs pools or limit_sets"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" nullable:"true" doc:"When the token expires; default: never"`
}

// Token is an operator token, without its secret.
type Token struct {
	ID        int64    `json:"id"`
	Name      string   `json:"name"`
	Role      string   `json:"role" enum:"viewer,operator,admin,verifier,caller"`
	Pools     []string `json:"pools,omitempty" doc:"Role caller only"`
	LimitSets []string `json:"limit_sets,omitempty" doc:"Role caller only"`
	Created   Time     `json:"created_at"`
	ExpiresAt *Time    `json:"expires_at" nullable:"true"`
	LastUsed  *Time    `json:"last_used_at" nullable:"true" doc:"Only in lists, accurate to one minute; null: never used"`
	Requests  int64    `json:"requests,omitempty" doc:"Only in lists: number of requests with this token until last_used_at"`
}

// TokenCreated is a new operator token with its secret.
type TokenCreated struct {
	Token

	Secret string `json:"token" doc:"Shown only once; empty when a request with an Idempotency-Key is sent again"`
}

// TokenList is a page of operator tokens.
type TokenList struct {
	Tokens        []Token `json:"tokens"`
	NextPageToken string  `json:"next_page_token,omitempty"`
}

// Profiles has the calls about profiles, whose policies limit how often devices start tasks.
type Profiles struct{ client *Client }

// List yields all profiles by name.
func (c Profiles) List(ctx context.Context) iter.Seq2[Profile, error] {
	return listEntries[Profile](ctx, c.client, Path("profiles"), nil)
}

// Get returns the profile with this name.
func (c Profiles) Get(ctx context.Context, name string) (Profile, error) {
	return getJSON[Profile](ctx, c.client, Path("profiles", name), nil)
}

// Put creates the profile name with these settings, or replaces the settings of an existing profile.
func (c Profiles) Put(ctx context.Context, name string, settings ProfileSettings) (ProfileChanged, error) {
	return sendJSON[ProfileChanged](ctx, c.client, http.MethodPut, Path("profiles", name), settings)
}

// Delete deletes a profile that no device has.
func (c Profiles) Delete(ctx context.Context, name string) error {
	return c.client.Do(ctx, Request{Method: http.MethodDelete, Path: Path("profiles", name)}, nil)
}

// Tokens has the calls about operator tokens.
type Tokens struct{ client *Client }

// List yields all operator tokens.
func (c Tokens) List(ctx context.Context) iter.Seq2[Token, error] {
	return listEntries[Token](ctx, c.client, Path("tokens"), nil)
}

// Create makes an operator token. Only the first response contains the secret. If this response was lost, the Secret of the result is
// empty: revoke the token and make another.
func (c Tokens) Create(ctx context.Context, request NewToken) (TokenCreated, error) {
	return callJSON[TokenCreated](ctx, c.client, Request{Method: http.MethodPost, Path: Path("tokens"), Body: request, Key: idempotencyKey(ctx)})
}

// Rotate replaces the secret of an operator token, and returns the token with its new secret. Within 5 s, all replicas refuse the older
// secret.
func (c Tokens) Rotate(ctx context.Context, id int64) (TokenCreated, error) {
	return sendJSON[TokenCreated](ctx, c.client, http.MethodPost, Path("tokens", decimal(id), "rotate"), nil)
}

// Revoke ends an operator token. Within 5 s, all replicas refuse it.
func (c Tokens) Revoke(ctx context.Context, id int64) (Token, error) {
	return sendJSON[Token](ctx, c.client, http.MethodDelete, Path("tokens", decimal(id)), nil)
}
