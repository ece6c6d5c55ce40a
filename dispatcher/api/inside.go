package api

import (
	"context"
	"errors"
	"net/http"
	"net/netip"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/fleetslots/dispatcher/devices"
	devicehttp "github.com/fleetslots/dispatcher/devices/http"
)

// Operator asks something of the API.
type Operator struct {
	Name  string // for the audit log
	Role  string // viewer, operator or admin
	Token int64  // id of their token; 0: the bootstrap token

	From netip.Addr // their address
}

// May says whether the operator's role allows what needs the other one.
func (o Operator) May(needed string) bool { return role(o.Role).allows(role(needed)) }

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
