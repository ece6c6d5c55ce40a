package api_test

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/operators"
)

// requiredRole returns the role that an operation needs according to docs/protocol.md. callers reports whether callers of its pool or
// limit set may use it, too.
func requiredRole(method, path string) (role string, callers bool) {
	callers = strings.HasPrefix(path, "/v1/pools/{pool}/leases") || strings.HasPrefix(path, "/v1/limits/{set}/")
	switch {
	case path == "/v1/pools/{pool}/grants/{token}":
		return "verifier", callers
	case strings.HasPrefix(path, "/v1/tokens"):
		return "admin", callers
	case method == http.MethodGet:
		return "viewer", callers
	case !callers && slices.Contains([]string{"pools", "profiles", "limits"}, strings.Split(path, "/")[2]):
		return "admin", callers
	}
	return "operator", callers
}

// expectedRefusal returns the status and the code with which an operation must refuse a token of the kind bearer: 401 for a token that the
// operators' API does not know, and 403 for a known token that lacks the role. expectedRefusal returns 0 if the operation must accept the token.
func expectedRefusal(row operators.Operation, bearer string) (status int, code string) {
	rising := []string{"verifier", "viewer", "operator", "admin"}
	switch {
	case bearer == "none", bearer == "garbage", bearer == "fleet":
		return http.StatusUnauthorized, "unauthenticated"
	case bearer == "caller" && row.Callers, slices.Contains(rising, bearer) && slices.Index(rising, bearer) >= slices.Index(rising, row.Role):
		return 0, ""
	}
	return http.StatusForbidden, "forbidden"
}

// createBearers returns a token of each kind. The token "caller" may use all pools and limit sets. The token "other-caller" may use neither the
// pools nor the limit sets of the tests. To reveal a mix-up, its limit sets have the names of these pools, and its pool has the name of such a
// limit set.
func (b *testAPI) createBearers() map[string]string {
	b.Helper()
	return map[string]string{
		"none": "", "garbage": "garbage", "fleet": fleetToken, "device": b.createDevice("own"),
		"viewer": b.createToken("viewer"), "operator": b.createToken("operator"), "admin": b.createToken("admin"), "verifier": b.createToken("verifier"),
		"caller": b.createCallerToken(`"pools":["*"],"limit_sets":["*"]`), "other-caller": b.createCallerToken(`"pools":["x"],"limit_sets":["p","leased"]`),
	}
}

// TestEveryOperationAsksForItsRole checks the role of each row of the table of operations: it is the role of the protocol, and the server
// accepts and refuses each kind of token as the row says.
func TestEveryOperationAsksForItsRole(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	g, bearers, table := b.prepareOperations(), b.createBearers(), operators.Operations()
	rows := slices.SortedFunc(maps.Values(table), func(x, y operators.Operation) int {
		return cmp.Or(cmp.Compare(x.Method, y.Method), cmp.Compare(x.Path, y.Path))
	})
	for _, row := range rows {
		if role, callers := requiredRole(row.Method, row.Path); row.Role != role || row.Callers != callers {
			t.Errorf("%s: role %s, callers %t; the protocol says role %s, callers %t", row.ID, row.Role, row.Callers, role, callers)
		}
		if row.Callers && row.Scope != "pool" && row.Scope != "set" {
			t.Errorf("%s: callers may use it, but its path names no pool and no limit set", row.ID)
		}
		for _, bearer := range slices.Sorted(maps.Keys(bearers)) {
			holder := adminToken
			if status, _ := expectedRefusal(table["acquireLease"], bearer); status == 0 { // a token can end only its own leases
				holder = bearers[bearer]
			}
			b.checkRefusal(row, bearer, b.performOperation(row, bearers[bearer], holder, g))
		}
	}
}

// checkRefusal checks that the operation accepted or refused a token of the kind bearer as its row says. a is the response.
func (b *testAPI) checkRefusal(row operators.Operation, bearer string, a rig.Response) {
	b.Helper()
	status, code := expectedRefusal(row, bearer)
	if status == 0 {
		if a.Status > 299 {
			b.Errorf("%s by %s: %d, want success: %s", row.ID, bearer, a.Status, a.Body)
		}
		return
	}
	if p := a.ExpectProblem(status, code); p.ReportAfterMS != 0 {
		b.Errorf("%s by %s: report_after_ms %d", row.ID, bearer, p.ReportAfterMS)
	}
	if challenge := a.Header.Get("WWW-Authenticate"); (challenge != "") != (a.Status == http.StatusUnauthorized) {
		b.Errorf("%s by %s: %d with WWW-Authenticate %q", row.ID, bearer, a.Status, challenge)
	}
}

// TestStreamsAskForTheRoleOfTheirList checks the role that each stream of a list needs: it is the role of the list.
// A stream is a separate route, so it is checked separately.
func TestStreamsAskForTheRoleOfTheirList(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity": 1}`)
	b.CreateBatch(`{"pool": "p", "devices": ["d-1"]}`)
	b.createDevice("1")
	bearers, rows, streams := b.createBearers(), operators.Operations(), 0
	for _, op := range b.readDocument().operations() {
		row := rows[op.OperationID]
		for form := range op.Responses["200"].Content {
			if form == "application/json" || row.Method != http.MethodGet {
				continue
			}
			streams++
			for bearer, token := range bearers {
				if status, _ := expectedRefusal(row, bearer); form == "text/event-stream" && status == 0 {
					continue // a live stream would not end
				}
				path := strings.NewReplacer("{pool}", "p", "{id}", "1").Replace(row.Path)
				b.checkRefusal(row, bearer, b.getWithAcceptToken(path, form, token))
			}
		}
	}
	if streams < 13 { // two forms of each of six lists, and the live events
		t.Errorf("%d streams", streams)
	}
}

func TestAuthorizationHeader(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for name, test := range map[string]struct {
		values []string
		status int
	}{
		"bearer in any case":   {[]string{"bEaReR " + adminToken}, 200},
		"spaces":               {[]string{"Bearer   " + adminToken + "  "}, 200},
		"basic":                {[]string{"Basic " + adminToken}, 401},
		"no scheme":            {[]string{adminToken}, 401},
		"empty bearer":         {[]string{"Bearer "}, 401},
		"two":                  {[]string{"Bearer " + adminToken, "Bearer garbage"}, 401},
		"twice the same":       {[]string{"Bearer " + adminToken, "Bearer " + adminToken}, 401},
		"joined by a comma":    {[]string{"Bearer " + adminToken + ", Bearer " + adminToken}, 401},
		"part of the token":    {[]string{"Bearer " + adminToken[:len(adminToken)-1]}, 401},
		"very long":            {[]string{"Bearer " + strings.Repeat("x", 100_000)}, 401},
		"not ASCII":            {[]string{"Bearer \xff\xfe"}, 401},
		"an operator's expiry": {[]string{"Bearer " + createExpiredToken(b)}, 401},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL+"/v1/pools", http.NoBody)
			request.Header["Authorization"] = test.values
			a := b.DoRequest(request)
			if a.Status != test.status {
				t.Errorf("status %d, want %d: %s", a.Status, test.status, a.Body)
			}
		})
	}
}
