package operators

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// Profile has policies that hold for what its devices start, wherever they do.
type Profile struct {
	Name    string   `json:"name" readOnly:"true"`
	Limits  []Policy `json:"limits" doc:"How often its devices may start something, in each pool by itself"`
	Version int64    `json:"version" readOnly:"true" doc:"Increases with every change"`
	Created Time     `json:"created_at" readOnly:"true"`
	Updated Time     `json:"updated_at" readOnly:"true"`
}

// ProfileChanged is a profile after a change.
type ProfileChanged struct {
	Profile
	Warned
}

// ProfileSettings are all that an operator decides of a profile.
type ProfileSettings struct {
	Limits []Policy `json:"limits,omitempty" nullable:"true" doc:"All of them; none: its devices are as free as those without a profile"`
}

// ProfileList is a page of profiles.
type ProfileList struct {
	Profiles      []Profile `json:"profiles"`
	NextPageToken string    `json:"next_page_token,omitempty"`
}

// NewToken is an operator token to be made.
type NewToken struct {
	Name      string     `json:"name" minLength:"1" maxLength:"200" doc:"Operator or service that uses it; the log names it"`
	Role      string     `json:"role" enum:"viewer,operator,admin,verifier"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" nullable:"true" doc:"Default: never"`
}

// Token is an operator token, without its secret.
type Token struct {
	ID        int64  `json:"id"`
	Name      string `json:"name"`
	Role      string `json:"role" enum:"viewer,operator,admin,verifier"`
	Created   Time   `json:"created_at"`
	ExpiresAt *Time  `json:"expires_at" nullable:"true"`
}

// TokenCreated is a new operator token with its secret.
type TokenCreated struct {
	Token

	Secret string `json:"token" doc:"Shown once; empty when a request with an Idempotency-Key is sent again"`
}

// TokenList is a page of operator tokens.
type TokenList struct {
	Tokens        []Token `json:"tokens"`
	NextPageToken string  `json:"next_page_token,omitempty"`
}

// Profiles are all profiles by name.
func (c *Client) Profiles(ctx context.Context) iter.Seq2[Profile, error] {
	return listed[Profile](ctx, c, Path("profiles"), nil)
}

// Profile reads a profile.
func (c *Client) Profile(ctx context.Context, name string) (Profile, error) {
	return get[Profile](ctx, c, Path("profiles", name), nil)
}

// PutProfile creates a profile, or replaces its policies.
func (c *Client) PutProfile(ctx context.Context, name string, s ProfileSettings) (ProfileChanged, error) {
	return send[ProfileChanged](ctx, c, http.MethodPut, Path("profiles", name), s)
}

// DeleteProfile deletes a profile that no device has.
func (c *Client) DeleteProfile(ctx context.Context, name string) error {
	return c.Do(ctx, Request{Method: http.MethodDelete, Path: Path("profiles", name)}, nil)
}

// Tokens are all operator tokens.
func (c *Client) Tokens(ctx context.Context) iter.Seq2[Token, error] {
	return listed[Token](ctx, c, Path("tokens"), nil)
}

// CreateToken makes an operator token. Where only the second answer arrives, Secret
// is empty: RevokeToken, and make another.
func (c *Client) CreateToken(ctx context.Context, t NewToken) (made TokenCreated, err error) {
	err = c.Do(ctx, Request{Method: http.MethodPost, Path: Path("tokens"), Body: t, Key: keyOf(ctx)}, &made)
	return made, err
}

// RevokeToken ends an operator token, everywhere within 5 s.
func (c *Client) RevokeToken(ctx context.Context, id int64) (Token, error) {
	return send[Token](ctx, c, http.MethodDelete, Path("tokens", number(id)), nil)
}
