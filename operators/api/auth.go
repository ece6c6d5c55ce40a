package api

import (
	"context"
	"crypto/subtle"
	"errors"
	"net/http"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/fleetslots/dispatcher/devices"
	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/operators/gate"
	"github.com/fleetslots/dispatcher/store"
)

// operatorKey holds the Operator in a request's context. Nothing that comes over the
// network can set it.
type operatorKey struct{}

func operatorOf(ctx context.Context) Operator {
	o, _ := ctx.Value(operatorKey{}).(Operator)
	return o
}

// share is the caller's key for a bound, and whether it is an admin.
func (o Operator) share() (who string, admin bool) {
	return o.Name + "#" + strconv.FormatInt(o.Token, 10), o.Role == roleAdmin
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
	used *seen.Tokens
	gate *gate.Gate
}

// authorize lets an operation run only for a token whose role allows it. One
// without a role runs for nobody.
func (a *authenticator) authorize(ctx huma.Context, next func(huma.Context)) error {
	who, guess, err := a.asker(ctx)
	if err == nil {
		err = who.mayDo(ctx)
	}
	if err != nil {
		note(ctx.Context(), a.gate, err, gate.Refusal{At: gate.API, Principal: who.Name, From: who.From, Detail: ctx.Operation().OperationID, Guess: guess})
		return err
	}
	if who.Token != 0 {
		a.used.Use(who.Token)
	}
	next(huma.WithValue(ctx, operatorKey{}, who))
	return nil
}

// operator looks a token up: the bootstrap token of the configuration or one
// of the ledger.
func (a *authenticator) operator(ctx context.Context, token string) (Operator, error) {
	if a.adminToken != "" && subtle.ConstantTimeCompare([]byte(a.adminToken), []byte(token)) == 1 {
		return Operator{Name: "bootstrap", Role: roleAdmin}, nil
	}
	t, err := a.tokens.TokenOf(ctx, token)
	if err != nil {
		return Operator{}, err
	}
	if t.Device != "" {
		return Operator{Name: t.Device}, devices.ErrForbidden
	}
	return Operator{Name: t.Name, Role: t.Role, Token: t.ID, hash: credentials.HashToken(token), pools: t.Pools, sets: t.LimitSets}, nil
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

// Inside answers requests of this process as the operator: with the rights, the
// checks, the idempotency and the audit of any other request.
func (a *API) Inside(who Operator, w http.ResponseWriter, r *http.Request) {
	a.guard(a.mux).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operatorKey{}, who)))
}

// asker returns the operator that asks: a caller inside, or the bearer of a token. For a refused
// caller it returns the known facts.
func (a *authenticator) asker(ctx huma.Context) (who Operator, guess bool, err error) {
	if who, ok := ctx.Context().Value(operatorKey{}).(Operator); ok {
		return who, false, nil
	}
	r, _ := humago.Unwrap(ctx)
	from, token := a.gate.From(r), devicehttp.Bearer(r.Header.Get("Authorization"))
	if wait := a.gate.Wait(from, token); wait > 0 {
		p := problem(http.StatusTooManyRequests, codeLockedOut, "too many wrong tokens came from this address: try again after Retry-After")
		p.After = wait
		return Operator{From: from}, false, p
	}
	who, err = a.operator(ctx.Context(), token)
	who.From = from
	if err == nil {
		a.gate.Accepted(from, token)
	}
	return who, token != "" && errors.Is(err, devices.ErrUnauthenticated), err
}
