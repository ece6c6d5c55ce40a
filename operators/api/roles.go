package api

import (
	"crypto/sha256"
	"net/http"
	"net/netip"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/store"
)

// The roles of operator tokens.
const (
	roleVerifier = "verifier" // only the grant check
	roleViewer   = "viewer"
	roleOperator = "operator"
	roleAdmin    = "admin"
	roleCaller   = credentials.RoleCaller // only what is for callers, of the pools and limit sets of the token

	roleKey    = "role"    // in an operation's metadata
	callersKey = "callers" // there: it is for callers, too
)

// Operator asks something of the API.
type Operator struct {
	Name  string // for the audit log
	Role  string // viewer, operator, admin, verifier or caller
	Token int64  // id of their token; 0: the bootstrap token

	hash        [sha256.Size]byte // of their token; zero: the bootstrap token
	pools, sets []string          // that a caller may use: patterns

	From netip.Addr // their address
}

// mayDo says whether the operator may ask for the operation. A caller is told the same of a
// pool that is not there and of one that is not its own.
func (o Operator) mayDo(ctx huma.Context) error {
	needed, _ := ctx.Operation().Metadata[roleKey].(string)
	if callers, _ := ctx.Operation().Metadata[callersKey].(bool); !callers || o.Role != roleCaller {
		if !o.May(needed) {
			return problem(http.StatusForbidden, codeForbidden, "a token of the role "+needed+" is needed")
		}
		return nil
	}
	if store.Covers(o.pools, ctx.Param("pool")) || store.Covers(o.sets, ctx.Param("set")) {
		return nil
	}
	return problem(http.StatusForbidden, codeForbidden, "the token is for other pools and limit sets")
}

// May says whether the operator's role allows what needs the other one. The role caller
// allows nothing of this.
func (o Operator) May(needed string) bool {
	rank := map[string]int{roleVerifier: 1, roleViewer: 2, roleOperator: 3, roleAdmin: 4}
	return rank[needed] > 0 && rank[o.Role] >= rank[needed]
}

// forCallers opens an operation to callers, too: its path names a pool or a limit set, which
// their token must cover.
func forCallers(op huma.Operation) huma.Operation {
	op.Metadata[callersKey] = true
	return op
}
