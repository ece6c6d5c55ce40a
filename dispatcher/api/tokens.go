package api

import (
	"context"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type tokenStore interface {
	OperatorTokens(ctx context.Context, after int64, limit int) ([]store.Token, error)
	CreateToken(ctx context.Context, actor string, t store.Token, hash []byte) (store.Token, error)
	RevokeToken(ctx context.Context, actor string, id int64) (store.Token, error)
}

type tokenID struct {
	ID int64 `path:"id" minimum:"1" maximum:"9007199254740991"`
}

func (a *API) registerTokens(operations huma.API) {
	registerList(a, operations, operation("GET", "/v1/tokens", "listTokens", "List operator tokens", roleAdmin, 200), listing[pageQuery, operators.TokenList, operators.Token]{
		handle: a.listTokens, page: (*pageQuery).page,
		items: func(l operators.TokenList) ([]operators.Token, string) { return l.Tokens, l.NextPageToken },
	})
	register(a, operations, creating(operation("POST", "/v1/tokens", "createToken", "Create an operator token", roleAdmin, 201)), a.createToken)
	register(a, operations, operation("DELETE", "/v1/tokens/{id}", "revokeToken", "Revoke an operator token, everywhere within 5 s", roleAdmin, 200), a.revokeToken)
}

func (a *API) listTokens(ctx context.Context, in *pageQuery) (*body[operators.TokenList], error) {
	after, err := in.afterNumber()
	if err != nil {
		return nil, err
	}
	tokens, err := a.store.OperatorTokens(ctx, after, in.Size)
	if err != nil {
		return nil, err
	}
	list := operators.TokenList{Tokens: make([]operators.Token, len(tokens))}
	for i, t := range tokens {
		list.Tokens[i] = showToken(t)
		list.NextPageToken = nextPage(in.full(len(tokens)), strconv.FormatInt(t.ID, 10))
	}
	return &body[operators.TokenList]{list}, nil
}

func (a *API) createToken(ctx context.Context, in *struct{ Body operators.NewToken }) (*body[operators.TokenCreated], error) {
	secret := credentials.NewToken()
	hash := credentials.HashToken(secret)
	t, err := a.store.CreateToken(ctx, actor(ctx), store.Token{Name: in.Body.Name, Role: in.Body.Role, ExpiresAt: in.Body.ExpiresAt}, hash[:])
	if err != nil {
		return nil, err
	}
	return &body[operators.TokenCreated]{operators.TokenCreated{Token: showToken(t), Secret: shownOnce(ctx, secret)}}, nil
}

func (a *API) revokeToken(ctx context.Context, in *tokenID) (*body[operators.Token], error) {
	t, err := a.store.RevokeToken(ctx, actor(ctx), in.ID)
	if err != nil {
		return nil, err
	}
	return &body[operators.Token]{showToken(t)}, nil
}

func showToken(t store.Token) operators.Token {
	return operators.Token{ID: t.ID, Name: t.Name, Role: t.Role, Created: stamp(t.CreatedAt), ExpiresAt: stampPointer(t.ExpiresAt)}
}
