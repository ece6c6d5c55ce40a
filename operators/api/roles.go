package api

import (
	"crypto/sha256"
	"net/http"
	"net/netip"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// The roles of operator tokens. The enums of operators.NewToken (which refuses other roles) and operators.Token, the security scheme
// (newOperations) and the command `tokens create` repeat them. The dashboard calls May for its sign-in and its forms.
const (
	roleVerifier = "verifier" // may only check grants
	roleViewer   = "viewer"
	roleOperator = "operator"
	roleAdmin    = "admin"
	roleCaller   = credentials.RoleCaller // may only use the operations for callers, on the pools and limit sets of its token
	roleMetrics  = "metrics"              // may only read /metrics; the role of the metrics token alone

	rowKey = "row" // key in an operation's metadata: its row in the table of operations
)

// Operator is the authenticated sender of a request to the API.
type Operator struct {
	Name  string // name for the audit log: of the token, or of a device that sends its own token
	Role  string // viewer, operator, admin, verifier, caller or metrics
	Token int64  // id of the token; 0 means the bootstrap token, or the dashboard that renders a page for several viewers

	hash                      [sha256.Size]byte // hash of the token; zero for the bootstrap token and for requests of the dashboard
	isDevice                  bool              // the token belongs to a device, so every request is refused
	poolPatterns, setPatterns []string          // patterns of the pools and limit sets that a caller may use

	From netip.Addr // address of the sender
}

// checkRights returns nil if the operator may use the operation, otherwise a problem. A caller gets the same problem for a pool
// that does not exist and for a pool that its token does not cover.
func (o Operator) checkRights(ctx huma.Context) error {
	row := operationOf(ctx)
	if !row.Callers || o.Role != roleCaller {
		if !o.May(row.Role) {
			return newProblem(http.StatusForbidden, codeForbidden, "a token of the role "+row.Role+" is needed")
		}
		return nil
	}
	patterns := map[string][]string{"pool": o.poolPatterns, "set": o.setPatterns}
	if store.Covers(patterns[row.Scope], ctx.Param(row.Scope)) {
		return nil
	}
	return newProblem(http.StatusForbidden, codeForbidden, "the token does not cover this pool or limit set")
}

// May reports whether the operator's role includes the rights of requiredRole. Each role includes the rights of the roles with a lower
// rank. The role caller has no rank, so May returns false for it. The table of operations marks the operations that the role caller may use
// (struct tag callers).
func (o Operator) May(requiredRole string) bool {
	rank := map[string]int{roleVerifier: 1, roleViewer: 2, roleOperator: 3, roleAdmin: 4}
	return rank[requiredRole] > 0 && rank[o.Role] >= rank[requiredRole]
}

// operationOf returns the requested operation, a row of the table of operations.
func operationOf(ctx huma.Context) operators.Operation {
	row, _ := ctx.Operation().Metadata[rowKey].(operators.Operation)
	return row
}
