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

// operatorKey is the context key of the Operator of a request. A client cannot set it over the network.
type operatorKey struct{}

func operatorOf(ctx context.Context) Operator {
	o, _ := ctx.Value(operatorKey{}).(Operator)
	return o
}

// share returns the key of the operator for a fair.Shares, and whether the operator is an admin.
func (o Operator) share() (who string, admin bool) {
	return o.Name + "#" + strconv.FormatInt(o.Token, 10), o.Role == roleAdmin
}

// await waits until the operator of the request gets a share of turns. The caller must call leave when it is done.
func await(ctx context.Context, turns *fair.Shares) (leave func(), err error) {
	who, admin := operatorOf(ctx).share()
	return turns.Await(ctx, who, admin)
}

// actor returns the name of the operator of the request, for the audit log.
func actor(ctx context.Context) string { return operatorOf(ctx).Name }

// authenticator finds the operator of a request by its token.
type authenticator struct {
	adminToken string
	tokens     interface {
		TokenOf(ctx context.Context, token string) (store.Token, error)
	}
	used *seen.Tokens
	gate *gate.Gate
}

// authorize runs an operation only if the role of the token allows it. An operation without a role is refused for
// everybody.
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

// operator returns the operator of a token: the bootstrap token of the configuration, or a token of the ledger.
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

// note records the error as a refusal at the gate, if its status is 401, 403 or 429.
func note(ctx context.Context, g *gate.Gate, err error, r gate.Refusal) {
	reasons := map[int]gate.Reason{http.StatusUnauthorized: gate.Unauthenticated, http.StatusForbidden: gate.Forbidden, http.StatusTooManyRequests: gate.LockedOut}
	if reason, ok := reasons[asProblem(err).Status]; ok {
		r.Reason = reason
		g.Refuse(ctx, r)
	}
}

func problemType() reflect.Type { return reflect.TypeFor[operators.Problem]() }

// Inside serves a request of this process as the operator who: with the same rights, checks, idempotency and audit as a
// request over the network.
func (a *API) Inside(who Operator, w http.ResponseWriter, r *http.Request) {
	a.guard(a.mux).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operatorKey{}, who)))
}

// asker returns the operator of the request: the operator that Inside has set, or the owner of the bearer token. guess is
// true if the token is unknown. With an error, it returns the facts about the sender that are known.
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
