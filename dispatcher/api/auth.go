package api

import (
	"context"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/gate"
	"github.com/fleetslots/dispatcher/operators"
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

// operatorKey holds the operator in a request's context.
type operatorKey struct{}

// operator is the authenticated caller.
type operator struct {
	name  string
	role  role
	token int64 // its id; 0: the bootstrap token
	from  netip.Addr
}

func operatorOf(ctx context.Context) operator {
	o, _ := ctx.Value(operatorKey{}).(operator)
	return o
}

// share is the caller's key for a bound, and whether it is an admin.
func (o operator) share() (who string, admin bool) {
	return o.name + "#" + strconv.FormatInt(o.token, 10), o.role == roleAdmin
}

// actor names who asked, for the audit log.
func actor(ctx context.Context) string { return operatorOf(ctx).name }

// authorize lets an operation run only for a token whose role allows it.
func (a *API) authorize(operations huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		needed, ok := ctx.Operation().Metadata[roleKey].(role)
		if !ok { // every operation names its role
			a.refuse(operations, ctx, devices.ErrForbidden)
			return
		}
		who, guess, err := a.asker(ctx)
		if err == nil && !who.role.allows(needed) {
			err = devices.ErrForbidden
		}
		if err != nil {
			note(ctx.Context(), a.options.Gate, err, gate.Refusal{At: gate.API, Principal: who.name, From: who.from, Detail: ctx.Operation().OperationID, Guess: guess})
			a.refuse(operations, ctx, err)
			return
		}
		next(huma.WithValue(ctx, operatorKey{}, who))
	}
}

// operator looks a token up: the bootstrap token of the configuration or one
// of the ledger.
func (a *API) operator(ctx context.Context, token string) (operator, error) {
	if a.options.AdminToken != "" && subtle.ConstantTimeCompare([]byte(a.options.AdminToken), []byte(token)) == 1 {
		return operator{name: "bootstrap", role: roleAdmin}, nil
	}
	t, err := a.options.Dispatcher.Devices.TokenOf(ctx, token)
	if err != nil {
		return operator{}, err
	}
	if t.Device != "" {
		return operator{name: t.Device}, devices.ErrForbidden
	}
	return operator{name: t.Name, role: role(t.Role), token: t.ID}, nil
}

// note tells the gate of an error if it says that somebody was refused.
func note(ctx context.Context, g *gate.Gate, err error, r gate.Refusal) {
	reasons := map[int]gate.Reason{http.StatusUnauthorized: gate.Unauthenticated, http.StatusForbidden: gate.Forbidden, http.StatusTooManyRequests: gate.LockedOut}
	if reason, ok := reasons[asProblem(err).Status]; ok {
		r.Reason = reason
		g.Refuse(ctx, r)
	}
}

func (a *API) refuse(operations huma.API, ctx huma.Context, err error) {
	p := asProblem(err)
	if p.Status >= http.StatusInternalServerError {
		a.log.ErrorContext(ctx.Context(), "operation not authorized", "operation", ctx.Operation().OperationID, "err", err)
	}
	p.headers(ctx.SetHeader)
	ctx.SetHeader("Content-Type", p.ContentType(""))
	ctx.SetStatus(p.Status)
	_ = operations.Marshal(ctx.BodyWriter(), "application/json", p)
}

func problemType() reflect.Type { return reflect.TypeFor[operators.Problem]() }
