package api

import (
	"context"
	"net/http"
)

// Operator is somebody whom a caller in this process has authenticated.
type Operator struct {
	Name  string // for the audit log
	Role  string // viewer, operator or admin
	Token int64  // id of their token; 0: the bootstrap token
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

// asker is who asks: a caller inside, or the bearer of a token.
func (a *API) asker(ctx context.Context, authorization string) (operator, error) {
	if who, ok := ctx.Value(insideKey{}).(Operator); ok {
		return operator{name: who.Name, role: role(who.Role), token: who.Token}, nil
	}
	return a.operator(ctx, bearer(authorization))
}
