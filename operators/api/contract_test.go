package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/must"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// TestOpenAPIOperationsRefuseAsDescribed sends each operation without a token, and as an invalid request. Each time
// the response must be a problem that the OpenAPI document describes.
func TestOpenAPIOperationsRefuseAsDescribed(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	d := b.readDocument()
	for _, name := range slices.Sorted(maps.Keys(d.operations())) {
		op := d.operations()[name]
		token := adminToken
		if op.OperationID == "report" {
			token = fleetToken
		}
		path, body := invalidRequest(name, op)
		method, _, _ := strings.Cut(name, " ")
		for status, a := range map[int]rig.Response{401: b.Call(method, path, "", body), 0: b.Call(method, path, token, body)} {
			if status == 0 && a.Status != 400 && a.Status != 422 || status != 0 && a.Status != status {
				b.Errorf("%s: %s is answered %d: %.200s", name, path, a.Status, a.Body)
				continue
			}
			var value any
			a.Decode(&value)
			for _, fault := range d.diffSchema(op.Responses["default"].Content["application/problem+json"].Schema, value, "problem") {
				b.Errorf("%s: %s", name, fault)
			}
			if got := a.Header.Get("Content-Type"); got != "application/problem+json" {
				b.Errorf("%s: %d as %s", name, a.Status, got)
			}
		}
	}
}

// invalidRequest returns a request of the operation that is invalid, whatever the state of the server is.
func invalidRequest(name string, op operation) (path string, body any) {
	_, path, _ = strings.Cut(name, " ")
	if op.RequestBody != nil {
		body = `[7]`
	}
	if op.OperationID == "report" { // this operation checks the device id before the token
		return strings.Replace(path, "{device}", "d", 1), body
	}
	if strings.Contains(path, "{") { // "-" is no number, and no valid name of a device or a pool
		return regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "-"), body
	}
	return path + "?page_size=0", body
}

// TestOpenAPIListsArePagedAndStreamed checks each operation whose response is a list: it has pages, and the
// complete list can be requested in both streamed forms.
func TestOpenAPIListsArePagedAndStreamed(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":60}`)
	b.CreateBatch(newBatchBody)
	b.SendReport("d-1", `{}`).Expect(200)
	b.createToken("viewer")
	b.putProfile("x", ``)
	b.putLimitSet("x", limitSetBody())
	d, lists := b.readDocument(), 0
	for name, op := range d.operations() {
		answered := op.Responses["200"].Content
		items := d.listMember(answered["application/json"].Schema)
		method, path, _ := strings.Cut(name, " ")
		if method != http.MethodGet || items == "" || strings.Contains(path, "{") {
			continue
		}
		lists++
		var parameters []string
		for _, p := range op.Parameters {
			parameters = append(parameters, p.Name)
		}
		for _, needed := range []string{"page_size", "page_token"} {
			if !slices.Contains(parameters, needed) {
				t.Errorf("%s: no parameter %s", name, needed)
			}
		}
		entries := listField(b.Get(path).Expect(200).Object(), items)
		if len(entries) == 0 {
			t.Errorf("%s: nothing to list", name)
			continue
		}
		for _, form := range []string{csvType, ndjsonType} {
			if _, ok := answered[form]; !ok {
				t.Errorf("%s: no %s in the document", name, form)
			}
			a := b.getWithAccept(path, form).Expect(200)
			if got := a.Header.Get("Content-Type"); got != form {
				t.Errorf("%s: %s instead of %s", name, got, form)
			}
			if got := countEntries(a, form); got != len(entries) {
				t.Errorf("%s: %d entries as %s, %d as JSON", name, got, form, len(entries))
			}
		}
		last := b.readPages(path, items, "created_at")
		if len(last) != len(entries) {
			t.Errorf("%s: %d entries by pages, %d at once", name, len(last), len(entries))
		}
	}
	if want := 8; lists < want { // pools, batches, tasks, devices, profiles, limit sets, tokens, events
		t.Errorf("%d lists, want at least %d", lists, want)
	}
}

// listMember returns the name of the schema's member that is a list of objects. If there is no such member, it
// returns an empty string.
func (d document) listMember(s schema) string {
	if s.Ref != "" {
		s = d.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
	}
	for name, property := range s.Properties {
		if property.Items != nil {
			return name
		}
	}
	return ""
}

// countEntries returns the number of entries in a response of this media type.
func countEntries(a rig.Response, mediaType string) (n int) {
	a.Helper()
	if mediaType == csvType {
		return len(a.CSVRows()) - 1
	}
	for lines := bufio.NewScanner(strings.NewReader(string(a.Body))); lines.Scan(); n++ {
		if !json.Valid(lines.Bytes()) {
			a.Errorf("%s: line %d is no JSON", a.Line, n+1)
		}
	}
	return n
}

// TestOpenAPICreatingCallsTakeAKey checks each POST that is answered with 201. It takes effect only once for an
// idempotency key, and returns a secret only once.
func TestOpenAPICreatingCallsTakeAKey(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		found := 0
		for name, op := range b.readDocument().operations() {
			method, path, _ := strings.Cut(name, " ")
			if _, creates := op.Responses["201"]; !creates || method != http.MethodPost || op.OperationID == "acquireLease" { // the holder takes the place of a key in this operation
				continue
			}
			found++
			described := slices.ContainsFunc(op.Parameters, func(p struct{ Name, In string }) bool { return p.Name == "Idempotency-Key" && p.In == "header" })
			first := b.postWithKey(path, adminToken, op.OperationID, validBodies()[name]).Expect(201)
			again := b.postWithKey(path, adminToken, op.OperationID, validBodies()[name]).Expect(201)
			if !described || first.Header.Get("Idempotency-Replayed") != "" || again.Header.Get("Idempotency-Replayed") != "true" {
				b.Errorf("%s: described %t, replayed %q", name, described, again.Header.Get("Idempotency-Replayed"))
			}
			want, got := first.Object(), again.Object()
			if _, secret := want["token"]; secret {
				want["token"] = ""
			}
			if diff := cmp.Diff(want, got); diff != "" {
				b.Errorf("%s: %s", name, diff)
			}
			b.postWithKey(path, adminToken, op.OperationID, validBodies()[name]+" ").ExpectProblem(422, "idempotency_key_reused")
		}
		if found < 3 { // batches, devices, tokens
			b.Errorf("%d creating calls", found)
		}
	})
}

// TestOpenAPIDescribesEverySuccess checks the operations whose status of success depends on whether the object existed before. The document
// must describe this status.
func TestOpenAPIDescribesEverySuccess(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	d := b.readDocument()
	for _, test := range []struct {
		name, path, body string
		status           int
	}{
		{"PUT /v1/pools/{pool}", "/v1/pools/p", `{"capacity":60}`, 201},
		{"PUT /v1/pools/{pool}", "/v1/pools/p", `{"capacity":60}`, 200},
		{"PUT /v1/profiles/{profile}", "/v1/profiles/x", `{}`, 201},
		{"PUT /v1/profiles/{profile}", "/v1/profiles/x", `{}`, 200},
		{"POST /v1/batches", "/v1/batches?dry_run=true", newBatchBody, 200},
		{"POST /v1/batches", "/v1/batches", newBatchBody, 201},
	} {
		method, _, _ := strings.Cut(test.name, " ")
		a := b.Call(method, test.path, adminToken, test.body).Expect(test.status)
		described, ok := d.operations()[test.name].Responses[fmt.Sprint(test.status)]
		if !ok {
			b.Errorf("%s: %d is not described", test.name, test.status)
			continue
		}
		var value any
		a.Decode(&value)
		for _, fault := range d.diffSchema(described.Content["application/json"].Schema, value, test.name) {
			b.Error(fault)
		}
	}
}

// TestOnlyTheseRoutesAreNoOperations lists the routes that are missing in the OpenAPI document. The matrix of roles
// does not cover these routes, so no other route may be missing.
func TestOnlyTheseRoutesAreNoOperations(t *testing.T) {
	t.Parallel()
	const direct = "&op" // registered by registerDirect, which also documents it
	allowed := []string{direct, "GET /metrics", "POST /v1/devices/{device}/report", "GET /healthz", "GET /readyz"}
	files, err := os.ReadDir(".")
	must.Succeed(t, err)
	route := regexp.MustCompile(`\.Handle(?:Func)?\(([^,]*),`)
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file.Name(), "_test.go") || !strings.HasSuffix(file.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(file.Name())
		must.Succeed(t, err)
		for _, match := range route.FindAllSubmatch(text, -1) {
			found++
			if pattern := strings.Trim(string(match[1]), `"`); !slices.Contains(allowed, pattern) {
				t.Errorf("%s: %s is a route that asks for no role", file.Name(), pattern)
			}
		}
	}
	if found != len(allowed) {
		t.Errorf("%d routes beside the operations, want %d", found, len(allowed))
	}
}
