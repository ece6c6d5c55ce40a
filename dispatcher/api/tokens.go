package api

import (
	"context"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/store"
)

type tokenStore interface {
	OperatorTokens(ctx context.Context, after int64, limit int) ([]store.Token, error)
	CreateToken(ctx context.Context, actor string, t store.Token, hash []byte) (store.Token, error)
	RevokeToken(ctx context.Context, actor string, id int64) (store.Token, error)
}

type operatorTokenPost struct {
	Name      string     `json:"name" minLength:"1" maxLength:"200" doc:"Who acts with it: it stands in the log"`
	Role      string     `json:"role" enum:"viewer,operator,admin,verifier"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" nullable:"true" doc:"Default: never"`
}

// TokenBody is an operator token on the wire.
type TokenBody struct {
	ID        int64      `json:"id"`
	Name      string     `json:"name"`
	Role      string     `json:"role" enum:"viewer,operator,admin,verifier"`
	Created   timestamp  `json:"created_at"`
	ExpiresAt *timestamp `json:"expires_at" nullable:"true"`
}

type tokenCreated struct {
	TokenBody
	Token string `json:"token" doc:"Shown once; empty when a request with an Idempotency-Key is sent again"`
}

type tokenList struct {
	Tokens        []TokenBody `json:"tokens"`
	NextPageToken string      `json:"next_page_token,omitempty"`
}

type tokenID struct {
	ID int64 `path:"id" minimum:"1" maximum:"9007199254740991"`
}

func (a *API) registerTokens(operations huma.API) {
	registerList(a, operations, operation("GET", "/v1/tokens", "listTokens", "List operator tokens", roleAdmin, 200), listing[pageQuery, tokenList, TokenBody]{
		handle: a.listTokens, page: (*pageQuery).page,
		items: func(l tokenList) ([]TokenBody, string) { return l.Tokens, l.NextPageToken },
	})
	register(a, operations, creating(operation("POST", "/v1/tokens", "createToken", "Create an operator token", roleAdmin, 201)), a.createToken)
	register(a, operations, operation("DELETE", "/v1/tokens/{id}", "revokeToken", "Revoke an operator token, everywhere within 5 s", roleAdmin, 200), a.revokeToken)
}

func (a *API) listTokens(ctx context.Context, in *pageQuery) (*body[tokenList], error) {
	after, err := in.afterNumber()
	if err != nil {
		return nil, err
	}
	tokens, err := a.store.OperatorTokens(ctx, after, in.Size)
	if err != nil {
		return nil, err
	}
	list := tokenList{Tokens: make([]TokenBody, len(tokens))}
	for i, t := range tokens {
		list.Tokens[i] = showToken(t)
		list.NextPageToken = nextPage(in.full(len(tokens)), strconv.FormatInt(t.ID, 10))
	}
	return &body[tokenList]{list}, nil
}

func (a *API) createToken(ctx context.Context, in *struct{ Body operatorTokenPost }) (*body[tokenCreated], error) {
	secret := credentials.NewToken()
	hash := credentials.HashToken(secret)
	t, err := a.store.CreateToken(ctx, actor(ctx), store.Token{Name: in.Body.Name, Role: in.Body.Role, ExpiresAt: in.Body.ExpiresAt}, hash[:])
	if err != nil {
		return nil, err
	}
	return &body[tokenCreated]{tokenCreated{TokenBody: showToken(t), Token: shownOnce(ctx, secret)}}, nil
}

func (a *API) revokeToken(ctx context.Context, in *tokenID) (*body[TokenBody], error) {
	t, err := a.store.RevokeToken(ctx, actor(ctx), in.ID)
	if err != nil {
		return nil, err
	}
	return &body[TokenBody]{showToken(t)}, nil
}

func showToken(t store.Token) TokenBody {
	return TokenBody{ID: t.ID, Name: t.Name, Role: t.Role, Created: stamp(t.CreatedAt), ExpiresAt: stampPointer(t.ExpiresAt)}
}
