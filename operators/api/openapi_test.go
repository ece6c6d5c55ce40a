package api_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const goldenDocument = "testdata/openapi.json"

// document is the part of /openapi.json that the tests use.
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

// schema is the part of JSON Schema that the document uses.
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

func (b *bench) document() document {
	b.Helper()
	var d document
	b.call("GET", "/openapi.json", "", nil).must(200).into(&d)
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
	got := indent(t, embedded(t).call("GET", "/openapi.json", "", nil).must(200).body)
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(goldenDocument, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(goldenDocument)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the contract changed; v1 only grows. After a look: go test ./operators/api -run OpenAPI -update\n%s", cmp.Diff(string(want), string(got)))
	}
}

func TestOpenAPIHasTheReportAndProblems(t *testing.T) {
	t.Parallel()
	d := embedded(t).document()
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

// asks returns a valid body for every operation. Placeholders such as {task} are replaced with things that the test
// created before.
func asks() map[string]string {
	return map[string]string{
		"PUT /v1/pools/{pool}":                       `{"capacity":2,"lease_ms":60000,"paused":false,"limits":[],"windows":[]}`,
		"PUT /v1/profiles/{profile}":                 `{"limits":[` + perAccount + `]}`,
		"PUT /v1/limits/{set}":                       aSet(),
		"POST /v1/limits/{set}/take":                 `{"id":"1","facts":{"phone":"+49","user":7}}`,
		"POST /v1/limits/{set}/peek":                 `{"takes":[{"facts":{"phone":"+49"},"cost":2},{}]}`,
		"POST /v1/limits/{set}/return":               `{"id":"1","facts":{"phone":"+49","user":7},"cost":1}`,
		"POST /v1/batches":                           newFields,
		"PATCH /v1/batches/{id}":                     `{"priority":3,"weight":null,"lane":"urgent","not_after":"2099-01-01T00:00:00Z","max_attempts":2}`,
		"POST /v1/batches/{id}/pause":                `{"reason":"a look first"}`,
		"PATCH /v1/pools/{pool}":                     `{"capacity":3,"lease_ms":null,"paused":false}`,
		"POST /v1/pools/{pool}/slots/{slot}/release": forced,
		"POST /v1/pools/{pool}/leases":               `{"lease_ms":60000,"metadata":{"branch":"main"}}`,
		"POST /v1/pools/{pool}/leases/{lease}/renew": `{"token":{token},"lease_ms":60000}`,
		"POST /v1/pools/{pool}/pause":                `{"reason":"a look first"}`,
		"POST /v1/devices":                           `{"id":"d-new","tags":{"city":"hangzhou"}}`,
		"PATCH /v1/devices/{id}":                     `{"tags":{"city":null,"area":"330100"}}`,
		"POST /v1/devices/retag":                     `{"set":{"model":"x2"},"unset":["old"]}`,
		"POST /v1/devices/{device}/report":           `{"id":"x","attributes":{"firmware":"7.2"}}`,
		"POST /v1/devices/{id}/token":                `{"overlap_ms":60000}`,
		"POST /v1/tokens":                            `{"name":"n","role":"viewer","expires_at":"2099-01-01T00:00:00Z"}`,
	}
}

// filtered adds a filter to the paths that need one.
func filtered(path string) string {
	switch path {
	case "/v1/tasks/cancel", "/v1/tasks/retry":
		return path + "?batch=1"
	case "/v1/devices/retag":
		return path + "?prefix=d"
	}
	if path == "/v1/find" {
		return path + "?q=1"
	}
	return path
}

// forced is the body of a request to take a slot back.
const forced = `{"reason":"it hangs"}`

// perform sends a valid request of an operation. The test has created a batch with two tasks: the task of d-1 has failed,
// and d-2 holds the grant g. The device gone may be deleted.
func (b *bench) perform(name string, op operation, g grant) answer {
	b.Helper()
	method, path, _ := strings.Cut(name, " ")
	fill := map[string]string{"{pool}": "p", "{device}": "d-2", "{id}": "1", "{slot}": fmt.Sprint(g.Slot), "{token}": fmt.Sprint(g.Token), "{profile}": "x", "{set}": "x"}
	token := adminToken
	switch {
	case op.OperationID == "report":
		token = fleetToken
	case op.OperationID == "deletePool":
		fill["{pool}"] = "empty"
	case op.OperationID == "deleteLimitSet":
		fill["{set}"] = "gone"
	case op.OperationID == "deleteProfile":
		fill["{profile}"] = "gone"
	case op.OperationID == "deleteDevice":
		fill["{id}"] = "d-gone"
	case op.OperationID == "cancelTask", op.OperationID == "getTask":
		fill["{id}"] = fmt.Sprint(g.ID)
	case op.OperationID == "cancelBatch": // a later operation retries tasks of the first batch
		fill["{id}"] = "2"
	case strings.HasPrefix(path, "/v1/devices"):
		fill["{id}"] = "d-1"
	case strings.HasPrefix(path, "/v1/pools/{pool}/leases"):
		fill["{pool}"] = "leased"
		fill["{lease}"], fill["{token}"] = b.heldLease(adminToken)
	case strings.HasPrefix(path, "/v1/tokens"):
		fill["{id}"] = fmt.Sprint(b.tokenID())
	}
	body, path := asks()[name], filtered(path)
	if op.OperationID == "releaseLease" {
		path += "?token={token}"
	}
	for name, value := range fill {
		body, path = strings.ReplaceAll(body, name, value), strings.ReplaceAll(path, name, value)
	}
	if op.RequestBody == nil {
		return b.call(method, path, token, nil)
	}
	if body == "" {
		b.Errorf("%s: add a valid request to asks", name)
	}
	return b.call(method, path, token, body)
}

// heldLease acquires a lease in the pool leased, and returns its number and its fencing token.
func (b *bench) heldLease(token string) (lease, fencing string) {
	b.Helper()
	got := b.lease(token, "leased", `{}`, 0).must(201).fields()
	return text(got["lease"]), text(got["token"])
}

func TestOpenAPIOperationsAnswerAsDescribed(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.pool("p", `{"capacity":1}`)
		b.pool("empty", `{"capacity":60}`)
		b.pool("leased", `{"capacity":60}`)
		b.batch(newFields)
		b.report("d-1", b.granted("d-1").result("failed", `,"error":"none"`)).must(200)
		g := b.granted("d-2")
		b.device("d-gone")
		b.profile("x", ``)
		b.profile("gone", ``)
		b.limitSet("x", aSet())
		b.limitSet("gone", aSet())
		d := b.document()
		for _, name := range slices.Sorted(maps.Keys(d.operations())) {
			op := d.operations()[name]
			a := b.perform(name, op, g)
			described, ok := op.Responses[fmt.Sprint(a.status)]
			if !ok || a.status > 299 {
				b.Errorf("%s: status %d is not described: %.200s", name, a.status, a.body)
				continue
			}
			if a.status == http.StatusNoContent {
				continue
			}
			var value any
			a.into(&value)
			for _, fault := range d.check(described.Content["application/json"].Schema, value, "body") {
				b.Errorf("%s: %s", name, fault)
			}
		}
	})
}

// check compares a value with its schema and returns the differences.
func (d document) check(s schema, value any, at string) []string {
	if s.Ref != "" {
		return d.check(d.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")], value, at)
	}
	if !s.allows(value) {
		return []string{fmt.Sprintf("%s: %v is no %v", at, value, s.Type)}
	}
	var faults []string
	switch v := value.(type) {
	case string:
		_, err := time.Parse("2006-01-02T15:04:05.000Z", v)
		if s.Format == "date-time" && err != nil || s.Enum != nil && !slices.Contains(s.Enum, value) {
			faults = append(faults, fmt.Sprintf("%s: %q is no %s %v", at, v, s.Format, s.Enum))
		}
	case []any:
		for i, e := range v {
			faults = append(faults, d.check(*s.Items, e, fmt.Sprintf("%s[%d]", at, i))...)
		}
	case map[string]any:
		faults = append(faults, d.checkObject(s, v, at)...)
	}
	return faults
}

func (d document) checkObject(s schema, object map[string]any, at string) (faults []string) {
	for _, name := range s.Required {
		if _, ok := object[name]; !ok {
			faults = append(faults, at+"."+name+": missing")
		}
	}
	for name, e := range object {
		switch property, ok := s.Properties[name]; {
		case ok:
			faults = append(faults, d.check(property, e, at+"."+name)...)
		case s.AdditionalProperties == false:
			faults = append(faults, at+"."+name+": not described")
		}
	}
	return faults
}

// allows reports whether the value has a type that the schema allows. A schema without a type allows every value.
func (s schema) allows(value any) bool {
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
