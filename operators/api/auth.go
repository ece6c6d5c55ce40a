package api

import (
	"context"
	"crypto/subtle"
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

// keyOfShare returns the key under which a fair.Shares counts the concurrent operations of o, and whether o is an admin.
func (o Operator) keyOfShare() (key string, isAdmin bool) {
	return o.Name + "#" + strconv.FormatInt(o.Token, 10), o.Role == roleAdmin
}

// startWhenFree waits until limit (a limit on concurrent operations) has room for the operator of the request. The caller must call
// endOperation when its operation has ended.
func startWhenFree(ctx context.Context, limit *fair.Shares) (endOperation func(), err error) {
	key, admin := operatorOf(ctx).keyOfShare()
	return limit.StartWhenFree(ctx, key, admin)
}

func operatorName(ctx context.Context) string { return operatorOf(ctx).Name }

// authenticator finds the operator of a request by its token.
type authenticator struct {
	adminToken, metricsToken string // empty means that there is none

	tokens interface {
		FindStoredToken(ctx context.Context, token string) (store.Token, error)
	}
	tokenUse *seen.TokenUses
	gate     *gate.Gate
}

// authorize runs an operation only if the role of the token allows it. An operation without a role is refused for
// everybody. A live stream of events checks the role again while it runs: see followEvents.
func (a *authenticator) authorize(ctx huma.Context, next func(huma.Context)) error {
	operator, err := a.requestOperator(ctx)
	if err == nil {
		err = operator.checkRights(ctx)
	}
	if err != nil {
		recordRefusal(ctx.Context(), a.gate, err, gate.Refusal{
			EntryPoint: gate.API, Principal: operator.Name, IsDevice: operator.isDevice, From: operator.From, Detail: ctx.Operation().OperationID,
		})
		return err
	}
	if operator.Token != 0 {
		a.tokenUse.RecordUse(operator.Token)
	}
	next(huma.WithValue(ctx, operatorKey{}, operator))
	return nil
}

// tokenOperator returns the operator of a token: the bootstrap token or the metrics token of the configuration, or a token of the ledger.
func (a *authenticator) tokenOperator(ctx context.Context, token string) (Operator, error) {
	switch {
	case equalsConfiguredToken(a.adminToken, token):
		return Operator{Name: "bootstrap", Role: roleAdmin}, nil
	case equalsConfiguredToken(a.metricsToken, token):
		return Operator{Name: "metrics", Role: roleMetrics}, nil
	}
	t, err := a.tokens.FindStoredToken(ctx, token)
	if err != nil {
		return Operator{}, err
	}
	if t.Device != "" {
		return Operator{Name: t.Device, isDevice: true}, devices.ErrForbidden
	}
	return Operator{Name: t.Name, Role: t.Role, Token: t.ID, hash: credentials.HashToken(token), poolPatterns: t.Pools, setPatterns: t.LimitSets}, nil
}

// equalsConfiguredToken reports whether token equals configured, a token of the configuration. If configured is empty,
// equalsConfiguredToken returns false.
func equalsConfiguredToken(configured, token string) bool {
	return configured != "" && subtle.ConstantTimeCompare([]byte(configured), []byte(token)) == 1
}

// recordRefusal passes refusal, a request that was refused because of cause, to refusalGate. The HTTP status of cause determines the
// reason of refusal. If this status is not 401, 403 or 429, recordRefusal does nothing.
func recordRefusal(ctx context.Context, refusalGate *gate.Gate, cause error, refusal gate.Refusal) {
	reasons := map[int]gate.Reason{http.StatusUnauthorized: gate.Unauthenticated, http.StatusForbidden: gate.Forbidden, http.StatusTooManyRequests: gate.LockedOut}
	if reason, ok := reasons[asProblem(cause).Status]; ok {
		refusal.Reason = reason
		refusalGate.CountRefusal(ctx, refusal)
	}
}

func problemType() (errorType reflect.Type) { return reflect.TypeFor[operators.Problem]() }

// ServeAs serves a request that this process makes on behalf of operator: with the same rights, checks, idempotency and audit as a request
// over the network.
func (a *API) ServeAs(operator Operator, w http.ResponseWriter, r *http.Request) {
	a.guardRequests(a.mux).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operatorKey{}, operator)))
}

// requestOperator returns the operator of the request: the operator that ServeAs has set, or the result of bearerTokenOwner.
func (a *authenticator) requestOperator(ctx huma.Context) (operator Operator, err error) {
	if operator, ok := ctx.Context().Value(operatorKey{}).(Operator); ok {
		return operator, nil
	}
	r, _ := humago.Unwrap(ctx)
	return a.bearerTokenOwner(r)
}

// bearerTokenOwner returns the owner of the bearer token of r. If it returns an error, operator still has the address of the sender and,
// for the token of a device, the name of the device.
func (a *authenticator) bearerTokenOwner(r *http.Request) (operator Operator, err error) {
	from, token := a.gate.ClientAddress(r), devicehttp.Bearer(r.Header.Get("Authorization"))
	lockout, err := a.gate.CheckToken(r.Context(), gate.Attempt{EntryPoint: gate.API, From: from, Token: token}, func(ctx context.Context) (err error) {
		operator, err = a.tokenOperator(ctx, token)
		return err
	})
	operator.From = from
	if lockout > 0 {
		p := newProblem(http.StatusTooManyRequests, codeLockedOut, "too many wrong tokens from this address: send again after Retry-After")
		p.RetryAfter = lockout
		return operator, p
	}
	return operator, err
}
