package api

import (
	"context"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

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
