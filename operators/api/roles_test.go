package api_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// allowsCallers reports whether docs/protocol.md allows this call for callers of the pool or limit set.
func allowsCallers(path string) bool {
	return strings.HasPrefix(path, "/v1/pools/{pool}/leases") || strings.HasPrefix(path, "/v1/limits/{set}/")
}

// requiredRole returns the role that a call needs according to docs/protocol.md. For calls of devices it returns
// device.
func requiredRole(method, path string) string {
	switch {
	case path == "/v1/devices/{device}/report":
		return "device"
	case path == "/v1/pools/{pool}/grants/{token}":
		return "verifier"
	case strings.HasPrefix(path, "/v1/tokens"):
		return "admin"
	case allowsCallers(path) && method != http.MethodGet:
		return "operator"
	case method == http.MethodGet:
		return "viewer"
	case strings.HasPrefix(path, "/v1/pools"), strings.HasPrefix(path, "/v1/profiles"), strings.HasPrefix(path, "/v1/limits"):
		return "admin"
	}
	return "operator"
}

// isAllowed reports whether a token of the kind bearer may make a call that needs this role.
func isAllowed(bearer, role string) bool {
	rising := []string{"verifier", "viewer", "operator", "admin"}
	if role == "device" {
		return bearer == "device" || bearer == "fleet"
	}
	return slices.Contains(rising, bearer) && slices.Index(rising, bearer) >= slices.Index(rising, role)
}

// expectedRefusal returns the status and the code with which a call must be refused: 401 for a token that the
// operators' API does not know, and 403 for a known token that lacks the role.
func expectedRefusal(bearer, role string) (status int, code string) {
	unknown := bearer == "none" || bearer == "garbage" || bearer == "scheme"
	if unknown || bearer == "fleet" && role != "device" {
		return http.StatusUnauthorized, "unauthenticated"
	}
	return http.StatusForbidden, "forbidden"
}

func TestEveryOperationAsksForItsRole(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putPool("p", `{"capacity":60}`)
	b.putPool("leased", `{"capacity":200}`)
	b.createBatch(newBatchBody)
	b.reportUntilGranted("d-1") // device d-1 holds slot 0
	b.putProfile("x", ``)
	b.putLimitSet("x", limitSetBody())
	bearers := map[string]string{
		"none": "", "garbage": "garbage", "fleet": fleetToken, "device": b.createDevice("own"),
		"viewer": b.createToken("viewer"), "operator": b.createToken("operator"), "admin": b.createToken("admin"), "verifier": b.createToken("verifier"),
		"caller": b.createCallerToken(`"pools":["*"],"limit_sets":["*"]`), "other-caller": b.createCallerToken(`"pools":["other*"],"limit_sets":["other*"]`),
	}
	operations := b.readDocument().operations()
	if len(operations) < 14 {
		t.Fatalf("only %d operations: the document lost some", len(operations))
	}
	for _, name := range slices.Sorted(maps.Keys(operations)) {
		method, pattern, _ := strings.Cut(name, " ")
		path := strings.NewReplacer("{pool}", "p", "{device}", "own", "{id}", "1", "{slot}", "0", "{token}", "1", "{profile}", "x", "{set}", "x").Replace(pattern)
		for _, bearer := range slices.Sorted(maps.Keys(bearers)) {
			needed := requiredRole(method, pattern)
			if strings.HasPrefix(pattern, "/v1/devices/{id}") { // each call gets its own device, because the device may be deleted afterwards
				id := operations[name].OperationID + "-" + bearer
				b.createDevice(id)
				path = strings.Replace(pattern, "{id}", id, 1)
			}
			if strings.HasPrefix(pattern, "/v1/tokens/{id}") {
				path = strings.ReplaceAll(pattern, "{id}", fmt.Sprint(b.createTokenID()))
			}
			body := validBodies()[name]
			if name == "POST /v1/devices" {
				body = `{"id":"by-` + bearer + `"}`
			}
			if name == "POST /v1/tokens" {
				body = `{"name":"by ` + bearer + `","role":"viewer"}`
			}
			if name == "DELETE /v1/pools/{pool}" {
				b.putPool("empty-"+bearer, `{"capacity":60}`)
				path = "/v1/pools/empty-" + bearer
			}
			if name == "DELETE /v1/profiles/{profile}" {
				b.putProfile("unused-"+bearer, ``)
				path = "/v1/profiles/unused-" + bearer
			}
			if name == "DELETE /v1/limits/{set}" {
				b.putLimitSet("unused-"+bearer, limitSetBody())
				path = "/v1/limits/unused-" + bearer
			}
			if needed == "device" && bearer == "fleet" {
				path = strings.Replace(path, "own", "another", 1) // the device "own" has already used its own token
			}
			if strings.Contains(pattern, "/leases") {
				if path = pattern; method == http.MethodDelete {
					path += "?token={token}"
				}
				path, body = b.fillInLease(path, body, bearers, bearer)
			}
			a := b.call(method, addRequiredFilter(path), bearers[bearer], body)
			if isAllowed(bearer, needed) || bearer == "caller" && allowsCallers(pattern) {
				if a.status > 299 {
					t.Errorf("%s by %s: %d, want success: %s", name, bearer, a.status, a.body)
				}
				continue
			}
			p := a.expectProblem(expectedRefusal(bearer, needed))
			if wait := p.ReportAfterMS; needed == "device" && wait != 600_000 || needed != "device" && wait != 0 {
				t.Errorf("%s by %s: report_after_ms %d", name, bearer, wait)
			}
			if challenge := a.header.Get("WWW-Authenticate"); (challenge != "") != (a.status == http.StatusUnauthorized) {
				t.Errorf("%s by %s: %d with WWW-Authenticate %q", name, bearer, a.status, challenge)
			}
		}
	}
}

// fillInLease puts a lease of the bearer into the path and the body. If the bearer cannot have a lease, it puts in a lease of the admin.
func (b *testAPI) fillInLease(path, body string, bearers map[string]string, bearer string) (filledPath, filledBody string) {
	b.Helper()
	if bearer != "caller" && bearer != "operator" {
		bearer = "admin"
	}
	lease, token := b.acquireLease(bearers[bearer])
	fill := strings.NewReplacer("{pool}", "leased", "{lease}", lease, "{token}", token)
	return fill.Replace(path), fill.Replace(body)
}

// TestStreamsAskForTheRoleOfTheirList checks the role that each stream of a list needs: it is the role of the list.
// A stream is a separate route, so it is checked separately.
func TestStreamsAskForTheRoleOfTheirList(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putPool("p", `{"capacity": 1}`)
	b.createBatch(`{"pool": "p", "devices": ["d-1"]}`)
	b.createDevice("1")
	bearers := map[string]string{
		"none": "", "fleet": fleetToken, "device": b.createDevice("own"),
		"viewer": b.createToken("viewer"), "operator": b.createToken("operator"), "admin": b.createToken("admin"), "verifier": b.createToken("verifier"),
		"caller": b.createCallerToken(`"pools":["*"],"limit_sets":["*"]`),
	}
	streams := 0
	for name, op := range b.readDocument().operations() {
		method, path, _ := strings.Cut(name, " ")
		for form := range op.Responses["200"].Content {
			if form == "application/json" || method != http.MethodGet {
				continue
			}
			streams++
			for bearer, token := range bearers {
				needed := requiredRole(method, path)
				if form == "text/event-stream" && isAllowed(bearer, needed) {
					continue // a live stream would not end
				}
				a := b.getWithAcceptToken(strings.NewReplacer("{pool}", "p", "{id}", "1").Replace(path), form, token)
				if isAllowed(bearer, needed) || bearer == "caller" && allowsCallers(path) {
					a.expectStatus(200)
					continue
				}
				a.expectProblem(expectedRefusal(bearer, needed))
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
			request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/v1/pools", http.NoBody)
			request.Header["Authorization"] = test.values
			a := b.doRequest(request)
			if a.status != test.status {
				t.Errorf("status %d, want %d: %s", a.status, test.status, a.body)
			}
		})
	}
}
