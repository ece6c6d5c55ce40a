package api

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/fleetslots/dispatcher/devices"
	devicehttp "github.com/fleetslots/dispatcher/devices/http"
)

// Operator is somebody whom a caller in this process has authenticated.
type Operator struct {
	Name  string // for the audit log
	Role  string // viewer, operator or admin
	Token int64  // id of their token; 0: the bootstrap token

	From netip.Addr // their address
}

// May says whether the operator's role allows what needs the other one.
func (o Operator) May(needed string) bool { return role(o.Role).allows(role(needed)) }

// insideKey holds an Operator in the context of a request that was made in this
// process. Nothing that comes over the network can set it.
type insideKey struct{}

// Inside answers requests of this process as the operator: with the rights, the
// checks, the idempotency and the audit of any other request.
func (a *API) Inside(who Operator, w http.ResponseWriter, r *http.Request) {
	a.guard(a.mux).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), insideKey{}, who)))
}

// asker returns the operator that asks: a caller inside, or the bearer of a token. For a refused
// caller it returns the known facts.
func (a *authenticator) asker(ctx huma.Context) (who operator, guess bool, err error) {
	if who, ok := ctx.Context().Value(insideKey{}).(Operator); ok {
		return operator{name: who.Name, role: role(who.Role), token: who.Token, from: who.From}, false, nil
	}
	r, _ := humago.Unwrap(ctx)
	from, token := a.gate.From(r), devicehttp.Bearer(r.Header.Get("Authorization"))
	if wait := a.gate.Wait(from, token); wait > 0 {
		return operator{from: from}, false, lockedOut(wait)
	}
	who, err = a.operator(ctx.Context(), token)
	who.from = from
	if err == nil {
		a.gate.Accepted(from, token)
	}
	return who, token != "" && errors.Is(err, devices.ErrUnauthenticated), err
}

// lockedOut is the answer to an address that wrong tokens came from.
func lockedOut(wait time.Duration) *Problem {
	p := problem(http.StatusTooManyRequests, codeLockedOut, "too many wrong tokens came from this address: try again after Retry-After")
	p.After = wait
	return p
}
