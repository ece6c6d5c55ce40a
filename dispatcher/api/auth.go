package api

import (
	"context"
	"crypto/subtle"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/dispatcher"
)

// role of an operator token, in rising order; verifier stands apart.
type role string

const (
	roleViewer   role = "viewer"
	roleOperator role = "operator"
	roleAdmin    role = "admin"
	roleVerifier role = "verifier" // only the grant check

	roleKey = "role" // in an operation's metadata
)

// allows says whether a token of role r may do what needs the other one.
func (r role) allows(needed role) bool {
	rank := map[role]int{roleViewer: 1, roleOperator: 2, roleAdmin: 3}
	return r == needed || (rank[needed] > 0 && rank[r] >= rank[needed])
}

// operatorKey holds the name of the operator in a request's context.
type operatorKey struct{}

// actor names who asked, for the audit log.
func actor(ctx context.Context) string {
	name, _ := ctx.Value(operatorKey{}).(string)
	return name
}

// authorize lets an operation run only for a token whose role allows it.
func (a *API) authorize(operations huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		needed, ok := ctx.Operation().Metadata[roleKey].(role)
		if !ok { // every operation names its role
			a.refuse(operations, ctx, dispatcher.ErrForbidden)
			return
		}
		name, has, err := a.operator(ctx.Context(), bearer(ctx.Header("Authorization")))
		if err == nil && !has.allows(needed) {
			err = dispatcher.ErrForbidden
		}
		if err != nil {
			a.refuse(operations, ctx, err)
			return
		}
		next(huma.WithValue(ctx, operatorKey{}, name))
	}
}

// operator looks a token up: the bootstrap token of the configuration or one
// of the ledger.
func (a *API) operator(ctx context.Context, token string) (name string, has role, err error) {
	if a.options.AdminToken != "" && subtle.ConstantTimeCompare([]byte(a.options.AdminToken), []byte(token)) == 1 {
		return "bootstrap", roleAdmin, nil
	}
	t, err := a.options.Dispatcher.TokenOf(ctx, token)
	if err != nil {
		return "", "", err
	}
	if t.Device != "" {
		return "", "", dispatcher.ErrForbidden
	}
	return t.Name, role(t.Role), nil
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

// bearer takes the token out of an Authorization header; empty: none.
func bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func requestBearer(r *http.Request) string { return bearer(r.Header.Get("Authorization")) }

func problemType() reflect.Type { return reflect.TypeFor[Problem]() }
