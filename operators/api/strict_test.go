package api_test

import (
	"fmt"
	"strings"
	"testing"
)

// A JSON body has a member twice, or a member whose name is in another case. Different JSON parsers would interpret
// it differently, so it is refused.
func TestAmbiguousBodiesAreRefused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":1}`)
	for _, test := range []struct{ path, form, body, code, names string }{
		{"/v1/tokens", "application/json", `{"name":"x","role":"viewer","role":"admin"}`, "invalid_request", "role: appears twice"},
		{"/v1/tokens", "application/json", `{"name":"x","role":"viewer","Role":"admin"}`, "unknown_field", "Role"},
		{"/v1/tokens", "application/json", `{"name":"x","ROLE":"admin"}`, "unknown_field", "ROLE"},
		{"/v1/batches", "application/json", `{"pool":"p","tasks":[{"device":"a","device":"b"}]}`, "invalid_request", "tasks.device"},
		{"/v1/batches", "application/json", `{"pool":"p","tasks":[{"device":"a","Device":"b"}]}`, "unknown_field", "tasks.Device"},
		{"/v1/batches?pool=p", ndjsonType, `{"device":"a","device":"b"}`, "invalid_line", "device: appears twice"},
		{"/v1/batches?pool=p", ndjsonType, `{"Device":"a"}`, "invalid_line", "Device"},
		{"/v1/devices", ndjsonType, `{"id":"a","tags":{"x":"1","x":"2"}}`, "invalid_line", "tags.x"},
	} {
		a := b.sendWithType("POST", test.path, test.form, test.body)
		if text := string(a.Body); a.Status/100 != 4 || !strings.Contains(text, `"`+test.code+`"`) || !strings.Contains(text, test.names) {
			t.Errorf("%s %s: %d %s, want %s", test.path, test.body, a.Status, text, test.code)
		}
	}
	b.Call("POST", "/v1/devices", adminToken, `{"id":"d","tags":{"City":"a","city":"b"}}`).Expect(201)
	b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","devices":["d"],"payload":{"A":1,"a":2,"a":3}}`).Expect(201)
	b.Call("POST", "/v1/devices/retag?prefix=d", adminToken, `{"set":{"City":"b"}}`).Expect(200)
	b.Call("POST", "/v1/pools/p/leases", adminToken, `{"holder":"h","metadata":{"jobURL":"x","Of":{"Team":1}}}`).Expect(201)
}

// A request body has very many errors. The response lists only a few of them, and the check needs little memory.
func TestFewErrorsAreTold(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":1}`)
	for n, more := range map[int]string{100: "", 101: "and 1 more", 15_000: "and 14900 more"} {
		a := b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","tasks":[`+strings.Repeat(`{},`, n-1)+`{}]}`)
		p := a.ExpectProblem(422, "invalid_field")
		var told struct{ Errors []any }
		a.Decode(&told)
		if len(told.Errors) != min(n, 100) || !strings.HasSuffix(p.Detail, more) || len(a.Body) > 32<<10 {
			t.Errorf("%d errors: %d told in %d bytes, ... %s", n, len(told.Errors), len(a.Body), p.Detail[len(p.Detail)-40:])
		}
	}
	a := b.Call("PUT", "/v1/pools/q", adminToken, fmt.Sprintf(`{"windows":[%s{}]}`, strings.Repeat(`{},`, 300_000)))
	a.ExpectProblem(400, "invalid_request")
}
