package api

import (
	"context"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type tokenStore interface {
	OperatorTokens(ctx context.Context, after int64, limit int) ([]store.Token, error)
	CreateToken(ctx context.Context, actor string, t store.Token, hash []byte) (store.Token, error)
	RevokeToken(ctx context.Context, actor string, id int64) (store.Token, error)
}

// tokens are the operations on operator tokens.
type tokens struct{ ledger tokenStore }

func (t *tokens) register(r *routes) {
	registerList(r, operation("GET", "/v1/tokens", "listTokens", "List operator tokens", roleAdmin, 200), t.list,
		func(p pageOf[operators.Token]) operators.TokenList {
			return operators.TokenList{Tokens: p.entries, NextPageToken: p.next}
		})
	register(r, creating(operation("POST", "/v1/tokens", "createToken", "Create an operator token", roleAdmin, 201)), t.create)
	register(r, operation("DELETE", "/v1/tokens/{id}", "revokeToken", "Revoke an operator token, everywhere within 5 s", roleAdmin, 200), t.revoke)
}

func (t *tokens) list(ctx context.Context, in *Page) (page pageOf[operators.Token], err error) {
	after, err := in.afterNumber()
	if err != nil {
		return page, err
	}
	found, err := t.ledger.OperatorTokens(ctx, after, in.Size)
	return showPage(found, in.full(len(found)), showToken, func(t store.Token) string { return number(t.ID) }), err
}

func (t *tokens) create(ctx context.Context, in *struct{ Body operators.NewToken }) (operators.TokenCreated, error) {
	secret := credentials.NewToken()
	hash := credentials.HashToken(secret)
	made, err := t.ledger.CreateToken(ctx, actor(ctx), store.Token{Name: in.Body.Name, Role: in.Body.Role, ExpiresAt: in.Body.ExpiresAt}, hash[:])
	return operators.TokenCreated{Token: showToken(made), Secret: shownOnce(ctx, secret)}, err
}

func (t *tokens) revoke(ctx context.Context, in *Numbered) (operators.Token, error) {
	gone, err := t.ledger.RevokeToken(ctx, actor(ctx), in.ID)
	return showToken(gone), err
}

func showToken(t store.Token) operators.Token {
	return operators.Token{ID: t.ID, Name: t.Name, Role: t.Role, Created: stamp(t.CreatedAt), ExpiresAt: stampPointer(t.ExpiresAt)}
}
