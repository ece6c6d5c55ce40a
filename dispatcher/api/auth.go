package api

import (
	"context"
	"crypto/subtle"
	"net/http"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/gate"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// role of an operator token, in rising order.
type role string

const (
	roleVerifier role = "verifier" // only the grant check
	roleViewer   role = "viewer"
	roleOperator role = "operator"
	roleAdmin    role = "admin"

	roleKey = "role" // in an operation's metadata
)

// allows says whether a token of role r may do what needs the other one.
func (r role) allows(needed role) bool {
	rank := map[role]int{roleVerifier: 1, roleViewer: 2, roleOperator: 3, roleAdmin: 4}
	return rank[needed] > 0 && rank[r] >= rank[needed]
}

// operatorKey holds the Operator in a request's context. Nothing that comes over the
// network can set it.
type operatorKey struct{}

func operatorOf(ctx context.Context) Operator {
	o, _ := ctx.Value(operatorKey{}).(Operator)
	return o
}

// share is the caller's key for a bound, and whether it is an admin.
func (o Operator) share() (who string, admin bool) {
	return o.Name + "#" + strconv.FormatInt(o.Token, 10), o.Role == string(roleAdmin)
}

// await waits for the caller's turn.
func await(ctx context.Context, turns *fair.Shares) (leave func(), err error) {
	who, admin := operatorOf(ctx).share()
	return turns.Await(ctx, who, admin)
}

// actor names who asked, for the audit log.
func actor(ctx context.Context) string { return operatorOf(ctx).Name }

// authenticator finds the operator that asks.
type authenticator struct {
	adminToken string
	tokens     interface {
		TokenOf(ctx context.Context, token string) (store.Token, error)
	}
	gate *gate.Gate
}

// authorize lets an operation run only for a token whose role allows it. One
// without a role runs for nobody.
func (a *authenticator) authorize(ctx huma.Context, next func(huma.Context)) error {
	needed, _ := ctx.Operation().Metadata[roleKey].(role)
	who, guess, err := a.asker(ctx)
	if err == nil && !who.May(string(needed)) {
		err = devices.ErrForbidden
	}
	if err != nil {
		note(ctx.Context(), a.gate, err, gate.Refusal{At: gate.API, Principal: who.Name, From: who.From, Detail: ctx.Operation().OperationID, Guess: guess})
		return err
	}
	next(huma.WithValue(ctx, operatorKey{}, who))
	return nil
}

// operator looks a token up: the bootstrap token of the configuration or one
// of the ledger.
func (a *authenticator) operator(ctx context.Context, token string) (Operator, error) {
	if a.adminToken != "" && subtle.ConstantTimeCompare([]byte(a.adminToken), []byte(token)) == 1 {
		return Operator{Name: "bootstrap", Role: string(roleAdmin)}, nil
	}
	t, err := a.tokens.TokenOf(ctx, token)
	if err != nil {
		return Operator{}, err
	}
	if t.Device != "" {
		return Operator{Name: t.Device}, devices.ErrForbidden
	}
	return Operator{Name: t.Name, Role: t.Role, Token: t.ID}, nil
}

// note tells the gate of an error if it says that somebody was refused.
func note(ctx context.Context, g *gate.Gate, err error, r gate.Refusal) {
	reasons := map[int]gate.Reason{http.StatusUnauthorized: gate.Unauthenticated, http.StatusForbidden: gate.Forbidden, http.StatusTooManyRequests: gate.LockedOut}
	if reason, ok := reasons[asProblem(err).Status]; ok {
		r.Reason = reason
		g.Refuse(ctx, r)
	}
}

func problemType() reflect.Type { return reflect.TypeFor[operators.Problem]() }
