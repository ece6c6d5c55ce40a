package api_test

import (
	"bytes"
	"crypto/rand"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/must"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/operators"
)

const goldenDocument = "testdata/openapi.json"

// document has those parts of /openapi.json that the tests use.
type document struct {
	OpenAPI    string
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]schema }
}

type operation struct {
	OperationID string
	Security    []map[string][]string
	RequestBody *struct{ Content content }
	Responses   map[string]struct{ Content content }
	Parameters  []struct{ Name, In string }
}

type content map[string]struct{ Schema schema }

// schema has those parts of JSON Schema that /openapi.json uses.
type schema struct {
	Ref                  string `json:"$ref"`
	Type                 any
	Format               string
	Properties           map[string]schema
	Required             []string
	AdditionalProperties any
	Items                *schema
	Enum                 []any
}

func (b *testAPI) readDocument() document {
	b.Helper()
	var d document
	b.Call("GET", "/openapi.json", "", nil).Expect(200).Decode(&d)
	return d
}

func (d document) operations() map[string]operation {
	all := map[string]operation{}
	for path, methods := range d.Paths {
		for method, op := range methods {
			all[strings.ToUpper(method)+" "+path] = op
		}
	}
	return all
}

func TestOpenAPIDocumentIsTheGoldenOne(t *testing.T) {
	t.Parallel()
	got := indentJSON(t, startEmbedded(t).Call("GET", "/openapi.json", "", nil).Expect(200).Body)
	if flag.Lookup("update").Value.String() == "true" {
		must.Succeed(t, os.WriteFile(goldenDocument, got, 0o644))
	}
	want, err := os.ReadFile(goldenDocument)
	must.Succeed(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("the contract changed; v1 only grows. After a look: go test ./operators/api -run OpenAPI -update\n%s", cmp.Diff(string(want), string(got)))
	}
}

// The routes are the rows of the table of operations, and the report of a device, which is no operation of operators.
func TestOpenAPIHasARouteForEachRow(t *testing.T) {
	t.Parallel()
	got, want := map[string]string{}, map[string]string{"POST /v1/devices/{device}/report": "report"}
	for name, op := range startEmbedded(t).readDocument().operations() {
		got[name] = op.OperationID
	}
	for id, row := range operators.Operations() {
		want[row.Method+" "+row.Path] = id
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The scope of a row must agree with the path, the query, the body and the response of its route.
func TestOpenAPIAgreesWithTheScopeOfEachRow(t *testing.T) {
	t.Parallel()
	d := startEmbedded(t).readDocument()
	routes := d.operations()
	for id, row := range operators.Operations() {
		if want := d.possibleScopes(row.Path, routes[row.Method+" "+row.Path]); !slices.Contains(want, row.Scope) {
			t.Errorf("%s has the scope %q, want one of %q", id, row.Scope, want)
		}
	}
}

// possibleScopes returns the scopes that the operation at path can have.
func (d document) possibleScopes(path string, op operation) []string {
	inPath, inputs := regexp.MustCompile(`{(pool|set)}|^/v1/(batch|task)e?s/{id}`).FindStringSubmatch(path), schema{Properties: map[string]schema{}}
	for _, parameter := range op.Parameters {
		inputs.Properties[parameter.Name] = schema{}
	}
	switch noun := strings.Split(path, "/")[2]; {
	case inPath != nil:
		return []string{inPath[1] + inPath[2]}
	case d.hasMember(inputs, "pool"), op.RequestBody != nil && d.hasMember(op.RequestBody.Content["application/json"].Schema, "pool"):
		return []string{"input"}
	case noun == "devices" && !d.hasMember(op.Responses["200"].Content["application/json"].Schema, "pool"):
		return []string{"none", "all"} // a response may concern pools without naming them
	case noun == "profiles", noun == "tokens":
		return []string{"none"}
	}
	return []string{"all"}
}

// hasMember reports whether values of the schema can have a member with this name, at any depth.
func (d document) hasMember(s schema, name string) bool {
	if s.Ref != "" {
		return d.hasMember(d.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")], name)
	}
	for member, property := range s.Properties {
		if member == name || d.hasMember(property, name) {
			return true
		}
	}
	return s.Items != nil && d.hasMember(*s.Items, name)
}

func TestOpenAPIHasTheReportAndProblems(t *testing.T) {
	t.Parallel()
	d := startEmbedded(t).readDocument()
	if !strings.HasPrefix(d.OpenAPI, "3.1.") {
		t.Errorf("OpenAPI %s, want 3.1", d.OpenAPI)
	}
	if _, ok := d.operations()["POST /v1/devices/{device}/report"]; !ok {
		t.Error("the device's report is not described")
	}
	for name, op := range d.operations() {
		if _, ok := op.Responses["default"].Content["application/problem+json"]; !ok {
			t.Errorf("%s: errors are not described as problem+json", name)
		}
		if len(op.Security) != 1 {
			t.Errorf("%s: does not say which token it takes", name)
		}
	}
}

// validBodies returns a valid body for every operation. Placeholders such as {task} are replaced with the ids of
// things that the test created before.
func validBodies() map[string]string {
	return map[string]string{
		"PUT /v1/pools/{pool}":                       `{"capacity":2,"lease_ms":60000,"paused":false,"limits":[],"windows":[]}`,
		"PUT /v1/profiles/{profile}":                 `{"limits":[` + perAccountPolicy + `]}`,
		"PUT /v1/limits/{set}":                       limitSetBody(),
		"POST /v1/limits/{set}/take":                 `{"id":"1","facts":{"phone":"+49","user":7}}`,
		"POST /v1/limits/{set}/peek":                 `{"takes":[{"facts":{"phone":"+49"},"cost":2},{}]}`,
		"POST /v1/limits/{set}/return":               `{"id":"1","facts":{"phone":"+49","user":7},"cost":1}`,
		"POST /v1/batches":                           newBatchBody,
		"PATCH /v1/batches/{id}":                     `{"priority":3,"weight":null,"lane":"urgent","not_after":"2099-01-01T00:00:00Z","max_attempts":2}`,
		"POST /v1/batches/{id}/pause":                `{"reason":"a look first"}`,
		"PATCH /v1/pools/{pool}":                     `{"capacity":3,"lease_ms":null,"paused":false}`,
		"POST /v1/pools/{pool}/slots/{slot}/release": releaseSlotBody,
		"POST /v1/pools/{pool}/leases":               `{"lease_ms":60000,"metadata":{"branch":"main"}}`,
		"POST /v1/pools/{pool}/leases/{lease}/renew": `{"token":{token},"lease_ms":60000}`,
		"POST /v1/pools/{pool}/pause":                `{"reason":"a look first"}`,
		"POST /v1/pools/pause":                       `{"reason":"a look first"}`,
		"POST /v1/devices":                           `{"id":"d-new","tags":{"city":"hangzhou"}}`,
		"PATCH /v1/devices/{id}":                     `{"tags":{"city":null,"area":"330100"}}`,
		"POST /v1/devices/retag":                     `{"set":{"model":"x2"},"unset":["old"]}`,
		"POST /v1/devices/{device}/report":           `{"id":"x","attributes":{"firmware":"7.2"}}`,
		"POST /v1/devices/{id}/block":                `{"reason":"it smokes"}`,
		"POST /v1/devices/{id}/unblock":              `{"reason":"repaired"}`,
		"POST /v1/devices/block":                     `{"reason":"it smokes"}`,
		"POST /v1/devices/unblock":                   `null`,
		"POST /v1/devices/{id}/token":                `{"overlap_ms":60000}`,
		"POST /v1/tokens":                            `{"name":"n","role":"viewer","expires_at":"2099-01-01T00:00:00Z"}`,
	}
}

// addRequiredFilter adds a query parameter to the paths of lists that require a filter.
func addRequiredFilter(path string) string {
	switch path {
	case "/v1/tasks/cancel", "/v1/tasks/retry":
		return path + "?batch=1"
	case "/v1/devices/retag":
		return path + "?prefix=d"
	case "/v1/devices/delete", "/v1/devices/block", "/v1/devices/unblock":
		return path + "?prefix=none"
	}
	if path == "/v1/pools/pause" || path == "/v1/pools/resume" {
		return path + "?dry_run=true"
	}
	if path == "/v1/find" {
		return path + "?q=1"
	}
	return path
}

// releaseSlotBody is the body of a request that takes a slot back from its holder.
const releaseSlotBody = `{"reason":"it hangs"}`

// prepareOperations creates the objects that performOperation needs. In the first batch, the task of device d-1 has failed.
// Device d-2 holds the returned grant.
func (b *testAPI) prepareOperations() rig.Grant {
	b.Helper()
	b.PutPool("p", `{"capacity":1}`)
	b.PutPool("leased", `{"capacity":200}`)
	b.CreateBatch(newBatchBody)
	b.SendReport("d-1", b.ReportUntilGranted("d-1").Result("failed", `,"error":"none"`)).Expect(200)
	g := b.ReportUntilGranted("d-2")
	b.CreateBatch(newBatchBody)
	b.putProfile("x", ``)
	b.putLimitSet("x", limitSetBody())
	return g
}

// performOperation sends a valid request of this operation with this token, after prepareOperations returned g. It can be called
// repeatedly, because an object that the request creates or deletes has a new name. holder is the token of the holder of a lease.
func (b *testAPI) performOperation(row operators.Operation, token, holder string, g rig.Grant) rig.Response {
	b.Helper()
	unique := rand.Text()
	fill := map[string]string{
		"{pool}": "p", "{device}": "d-2", "{id}": "1", "{slot}": fmt.Sprint(g.Slot), "{token}": fmt.Sprint(g.Token), "{profile}": "x", "{set}": "x",
		`"id":"d-new"`: `"id":"` + unique + `"`, `"name":"n"`: `"name":"` + unique + `"`,
	}
	switch {
	case row.ID == "deletePool":
		b.PutPool(unique, `{"capacity":60}`)
		fill["{pool}"] = unique
	case row.ID == "deleteLimitSet":
		b.putLimitSet(unique, limitSetBody())
		fill["{set}"] = unique
	case row.ID == "deleteProfile":
		b.putProfile(unique, ``)
		fill["{profile}"] = unique
	case row.ID == "deleteDevice":
		b.createDevice(unique)
		fill["{id}"] = unique
	case row.ID == "cancelTask", row.ID == "getTask":
		fill["{id}"] = fmt.Sprint(g.ID)
	case row.ID == "cancelBatch": // a later operation retries tasks of the first batch
		fill["{id}"] = "2"
	case strings.HasPrefix(row.Path, "/v1/devices"):
		fill["{id}"] = "d-1"
	case strings.HasPrefix(row.Path, "/v1/pools/{pool}/leases"):
		fill["{pool}"] = "leased"
		fill["{lease}"], fill["{token}"] = b.acquireLease(holder)
	case strings.HasPrefix(row.Path, "/v1/tokens"):
		fill["{id}"] = fmt.Sprint(b.createTokenID())
	}
	body, path := validBodies()[row.Method+" "+row.Path], addRequiredFilter(row.Path)
	if row.ID == "releaseLease" {
		path += "?token={token}"
	}
	for name, value := range fill {
		body, path = strings.ReplaceAll(body, name, value), strings.ReplaceAll(path, name, value)
	}
	return b.Call(row.Method, path, token, body)
}

// acquireLease acquires a lease in the pool named leased. It returns the id of the lease and its fencing token.
func (b *testAPI) acquireLease(token string) (lease, fencing string) {
	b.Helper()
	got := b.requestLease(token, "leased", `{}`, 0).Expect(201).Object()
	return numberText(got["lease"]), numberText(got["token"])
}

func TestOpenAPIOperationsAnswerAsDescribed(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		g, d := b.prepareOperations(), b.readDocument()
		for _, name := range slices.Sorted(maps.Keys(d.operations())) {
			op, token := d.operations()[name], adminToken
			if op.OperationID == "report" {
				token = fleetToken
			}
			if op.RequestBody != nil && validBodies()[name] == "" {
				b.Errorf("%s: add a valid request to validBodies", name)
			}
			method, path, _ := strings.Cut(name, " ")
			a := b.performOperation(operators.Operation{ID: op.OperationID, Method: method, Path: path}, token, adminToken, g)
			described, ok := op.Responses[fmt.Sprint(a.Status)]
			if !ok || a.Status > 299 {
				b.Errorf("%s: status %d is not described: %.200s", name, a.Status, a.Body)
				continue
			}
			if a.Status == http.StatusNoContent {
				continue
			}
			var value any
			a.Decode(&value)
			for _, fault := range d.diffSchema(described.Content["application/json"].Schema, value, "body") {
				b.Errorf("%s: %s", name, fault)
			}
		}
	})
}

// diffSchema compares a JSON value with its schema. It returns the differences, with their place in the value.
func (d document) diffSchema(s schema, value any, valuePath string) []string {
	if s.Ref != "" {
		return d.diffSchema(d.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")], value, valuePath)
	}
	if !s.allowsType(value) {
		return []string{fmt.Sprintf("%s: %v is no %v", valuePath, value, s.Type)}
	}
	var faults []string
	switch v := value.(type) {
	case string:
		_, err := time.Parse("2006-01-02T15:04:05.000Z", v)
		if s.Format == "date-time" && err != nil || s.Enum != nil && !slices.Contains(s.Enum, value) {
			faults = append(faults, fmt.Sprintf("%s: %q is no %s %v", valuePath, v, s.Format, s.Enum))
		}
	case []any:
		for i, e := range v {
			faults = append(faults, d.diffSchema(*s.Items, e, fmt.Sprintf("%s[%d]", valuePath, i))...)
		}
	case map[string]any:
		faults = append(faults, d.diffObject(s, v, valuePath)...)
	}
	return faults
}

func (d document) diffObject(s schema, object map[string]any, valuePath string) (differences []string) {
	for _, name := range s.Required {
		if _, ok := object[name]; !ok {
			differences = append(differences, valuePath+"."+name+": missing")
		}
	}
	for name, e := range object {
		switch property, ok := s.Properties[name]; {
		case ok:
			differences = append(differences, d.diffSchema(property, e, valuePath+"."+name)...)
		case s.AdditionalProperties == false:
			differences = append(differences, valuePath+"."+name+": not described")
		}
	}
	return differences
}

// allowsType reports whether the schema allows the type of the value. A schema without a type allows every value.
func (s schema) allowsType(value any) bool {
	var types []any
	switch t := s.Type.(type) {
	case string:
		types = []any{t}
	case []any:
		types = t
	default:
		return true
	}
	return slices.ContainsFunc(types, func(t any) bool {
		switch v := value.(type) {
		case nil:
			return t == "null"
		case bool:
			return t == "boolean"
		case float64:
			return t == "number" || t == "integer" && v == float64(int64(v))
		case string:
			return t == "string"
		case []any:
			return t == "array"
		case map[string]any:
			return t == "object"
		}
		return false
	})
}
